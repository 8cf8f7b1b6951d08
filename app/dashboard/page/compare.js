// Two candidates beside each other, of one study or of two.

import { getJson, studyPath } from "./api.js";
import { el } from "./dom.js";
import { batchingWords, change, deploymentName, studyName } from "./format.js";
import { objectivePhrase, sense, verdict } from "./metrics.js";
import { crumbs, section } from "./parts.js";
import { courses, knobTable, latencies, metricTables } from "./side_by_side.js";
import { endAlike } from "./standing.js";

/** Fill the place. */
export async function showComparison(place, signal, leftStudy, leftId, rightStudy, rightId) {
  const [left, right] = await Promise.all([load(leftStudy, leftId, signal), load(rightStudy, rightId, signal)]);
  const sides = [left, right];
  const names = namesOf(left, right);
  const course = courses(sides.map(({ report }, side) => [names[side], report.timeline]));
  const percentiles = latencies(sides.map(({ candidate }, side) => [names[side], candidate.metrics]));
  place.replaceChildren(
    crumbs(["Studies", "#/"], [studyName(left.study), `#/studies/${leftStudy}`], ["Comparison"]),
    el("h1", {}, "Two candidates compared"),
    el("ul", { class: "sides" }, sides.map(({ study, candidate }, side) => el("li", {},
      el("strong", {}, `${names[side]}: `),
      el("a", { href: `#/studies/${study.id}/candidates/${candidate.id}` }, deploymentName(candidate.deployment)),
      `, ${batchingWords(candidate.deployment)}`,
      left.study.id !== right.study.id && `; ${candidate.rank === null ? "not ranked" : `rank ${candidate.rank}`} in ${studyName(study)}`))),
    el("p", { class: "lead" }, inShort(left.candidate, right.candidate)),
    el("p", {}, el("a", { href: `#/compare/${rightStudy}/${rightId}/${leftStudy}/${leftId}` }, "Swap the two")),
    section("Knobs", knobTable(left.candidate, right.candidate, names)),
    section("Metrics", metricTables([left.candidate, right.candidate], names)),
    section("Course of the replay", course.node),
    section("Latencies", percentiles.node),
  );
  course.draw();
  percentiles.draw();
}

function inShort(left, right) {
  if (endAlike(left, right)) return "The two end alike: every main figure is the same.";
  const said = Object.keys(left.objectives).filter((name) => name in right.objectives).map((name) => {
    const word = verdict(name, left.objectives[name], right.objectives[name], sense(name));
    return word === "same" ? `the same ${objectivePhrase(name)}` : `the ${word} ${objectivePhrase(name)} (${change(left.objectives[name], right.objectives[name])})`;
  });
  return said.length ? `Set beside B, A has ${said.join(" and ")}.` : "The two studies have no objective in common.";
}

async function load(studyId, candidateId, signal) {
  const path = (...parts) => studyPath(studyId, ...parts);
  const [study, candidate, report] = await Promise.all([
    getJson(path(), signal), getJson(path("candidates", candidateId), signal), getJson(path("candidates", candidateId, "report"), signal),
  ]);
  return { study, candidate, report };
}

function namesOf(left, right) {
  const rank = ({ candidate }) => (candidate.rank === null ? `trial ${candidate.trial}` : `rank ${candidate.rank}`);
  if (left.study.id === right.study.id) return [`A, ${rank(left)}`, `B, ${rank(right)}`];
  return ["A", "B"];
}
