// One candidate: why it won (or what it lost by), the course of its replay, its latencies, and how to run it for real.

import { getItems, getJson, getText, studyPath } from "./api.js";
import { el, refill } from "./dom.js";
import { batching, change, deploymentName, number, studyName } from "./format.js";
import { median, metricLabel, objectivePhrase, objectiveUnit, sense } from "./metrics.js";
import { copyButton, crumbs, fact, section } from "./parts.js";
import { courses, knobDifferences, knobTable, latencies, metricTables, scaling } from "./side_by_side.js";

const MOST_SAID = 3; // differences in the opening sentence; the table has all

/** Fill the place. */
export async function showCandidate(place, signal, studyId, candidateId) {
  const path = (...parts) => studyPath(studyId, ...parts);
  const [study, candidate, report, { items: ranked }] = await Promise.all([
    getJson(path(), signal),
    getJson(path("candidates", candidateId), signal),
    getJson(path("candidates", candidateId, "report"), signal),
    getItems(path("candidates"), signal, 500),
  ]);
  const rival = rivalOf(candidate, ranked);
  const course = courses([[deploymentName(candidate.deployment), report.timeline]]);
  const percentiles = latencies([[deploymentName(candidate.deployment), candidate.metrics]]);
  const scaled = scaling(report);
  place.replaceChildren(
    crumbs(["Studies", "#/"], [studyName(study), `#/studies/${studyId}`], [`Candidate ${candidate.rank ?? "without a rank"}`]),
    el("h1", {}, deploymentName(candidate.deployment)),
    el("p", { class: "lead" }, verdictOf(study, candidate, rival, ranked)),
    el("dl", { class: "facts" }, facts(study, candidate)),
    section(isWinner(study, candidate) ? "Why it won" : "How it compares", against(study, candidate, rival, ranked)),
    section("How to run it", deploymentTexts(path, candidate, signal)),
    section("Course of the replay", course.node),
    ...(scaled ? [section("Scaling", scaled.node)] : []),
    section("Latencies", percentiles.node),
  );
  course.draw();
  scaled?.draw();
  percentiles.draw();
}

function isPareto(study) {
  return study.config.goal.target === "pareto";
}

function isWinner(study, candidate) {
  return candidate.rank === 1 && !isPareto(study);
}

/** The candidate to set beside: the runner-up of the winner, else the winner; the neighbour on a front. */
function rivalOf(candidate, ranked) {
  const first = ranked.find((each) => each.id !== candidate.id);
  if (candidate.rank === null) return first ?? null;
  return ranked.find((each) => each.rank === (candidate.rank === 1 ? 2 : 1)) ?? first ?? null;
}

function nameOf(study, rival) {
  if (rival.rank === 1) return isPareto(study) ? "the first of the front" : "the winner";
  return isPareto(study) ? `place ${rival.rank}` : "the runner-up";
}

function verdictOf(study, candidate, rival, ranked) {
  const names = Object.keys(candidate.objectives);
  const values = names.map((name) => `${objectivePhrase(name)} ${number(candidate.objectives[name])} ${objectiveUnit(name)}`);
  const place = candidate.rank === null ? "Not ranked" : isPareto(study) ? `Place ${candidate.rank} of ${ranked.length} on the front` : `Rank ${candidate.rank} of ${ranked.length}`;
  const parts = [`${place}: ${values.join(", ")}.`];
  if (rival && !isPareto(study)) {
    const middle = median(ranked.map((each) => each.objectives[names[0]]));
    const differs = knobDifferences(candidate, rival);
    parts.push(`That is ${change(candidate.objectives[names[0]], rival.objectives[names[0]])} against ${nameOf(study, rival)} and ${change(candidate.objectives[names[0]], middle)} against the median.`);
    if (differs.length > 0 && differs.length <= MOST_SAID) {
      parts.push(`From ${nameOf(study, rival)} it differs in ${differs.map(([name, mine, theirs]) => `${name} (${mine} instead of ${theirs})`).join(", ")}.`);
    }
  }
  if (isPareto(study) && candidate.on_front) {
    const best = names.filter((name) => ranked.every((each) => (each.objectives[name] - candidate.objectives[name]) * sense(name) <= 0));
    parts.push(best.length ? `Nothing has better ${best.map((name) => objectivePhrase(name)).join(" or ")}.` : "Whatever beats it in one objective is worse in another.");
  }
  if (rival && candidate.rejected !== rival.rejected) parts.push(`It rejects ${number(candidate.rejected)} requests, ${nameOf(study, rival)} ${number(rival.rejected)}: fewer rejections come first.`);
  return parts.join(" ");
}

function facts(study, candidate) {
  const { deployment } = candidate;
  const known = Object.entries(candidate.load).filter(([, value]) => value !== null);
  return [
    fact("GPUs", number(candidate.used_gpus), `${deployment.hardware_sku}, budget ${study.config.search_space.gpu_budget}`),
    fact("Engine", deployment.backend, deployment.mode === "agg" ? "prefill and decode together" : "prefill and decode apart"),
    fact("Batching", batching(deployment), "tokens / sequences in a step"),
    fact("Rejected", number(candidate.rejected), "requests it can never hold"),
    candidate.sla_met !== null && fact("SLA", candidate.sla_met ? "met" : "missed", "by the means of the replay"),
    known.map(([name, value]) => fact(metricLabel(name), number(value))),
  ];
}

function against(study, candidate, rival, ranked) {
  const others = ranked.filter((each) => each.rank !== null);
  const middle = others.length > 2 ? (of) => median(others.map(of)) : null;
  const names = ["this one", rival ? nameOf(study, rival) : ""];
  return [
    rival && el("p", {}, "Set beside ", el("a", { href: `#/studies/${study.id}/candidates/${rival.id}` }, `${nameOf(study, rival)}, ${deploymentName(rival.deployment)}, ${batching(rival.deployment)}`), ". ",
      el("a", { href: `#/compare/${study.id}/${candidate.id}/${study.id}/${rival.id}` }, "Compare the two in full")),
    rival && knobTable(candidate, rival, names),
    metricTables([candidate, rival], names, middle),
  ];
}

function deploymentTexts(path, candidate, signal) {
  const formats = [candidate.deployment.backend, "dynamo"];
  const text = el("pre", { class: "launch", tabindex: "0", "aria-label": "deployment text" });
  const state = el("p", { class: "below", role: "status" });
  const buttons = formats.map((format) => el("button", { type: "button", "aria-pressed": "false", onclick: () => show(format) }, format === "dynamo" ? "Dynamo manifest" : `${format} commands`));
  async function show(format) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(formats[place] === format)));
    try {
      const fresh = await getText(`${path("candidates", candidate.id, "deployment")}?format=${format}`, signal);
      text.textContent = fresh;
      refill(state);
    } catch (error) {
      if (signal.aborted) return;
      text.textContent = "";
      refill(state, error.message);
    }
  }
  show(formats[0]);
  return el("div", {}, el("div", { class: "buttons" }, buttons, copyButton("Copy", () => text.textContent, () => text)), state, text);
}
