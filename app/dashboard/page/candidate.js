// One candidate: why it won (or what it lost by), the course of its replay, its latencies, and how to run it for real.

import { getJson, getText, studyPath } from "./api.js";
import { el, refill } from "./dom.js";
import { batching, deploymentName, number, studyName } from "./format.js";
import { median, metricLabel } from "./metrics.js";
import { copyButton, crumbs, fact, section } from "./parts.js";
import { getRanking } from "./ranking.js";
import { courses, knobTable, latencies, metricTables, scaling } from "./side_by_side.js";
import { fullName, isPareto, objectivesOf, placeOf, reasons, rivalName, rivalOf, steadiness } from "./standing.js";

/** Fill the place. */
export async function showCandidate(place, signal, studyId, candidateId) {
  const path = (...parts) => studyPath(studyId, ...parts);
  const [study, candidate, report] = await Promise.all([
    getJson(path(), signal),
    getJson(path("candidates", candidateId), signal),
    getJson(path("candidates", candidateId, "report"), signal),
  ]);
  const ranked = await getRanking(study, signal);
  const next = rivalOf(candidate, ranked.items);
  const rival = next && (await getJson(path("candidates", next.id), signal));
  const course = courses([[deploymentName(candidate.deployment), report.timeline]]);
  const percentiles = latencies([[deploymentName(candidate.deployment), candidate.metrics]]);
  const scaled = scaling(report);
  place.replaceChildren(
    crumbs(["Studies", "#/"], [studyName(study), `#/studies/${studyId}`], [`Candidate ${candidate.rank ?? "without a rank"}`]),
    el("h1", {}, deploymentName(candidate.deployment)),
    el("p", { class: "lead" }, `${placeOf(study, candidate)}: ${objectivesOf(candidate)}. `, reasons(study, candidate, ranked).join(" "), " ", steadiness(study, candidate)),
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

function isWinner(study, candidate) {
  return candidate.rank === 1 && !isPareto(study);
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
  const middle = ranked.items.length > 2 ? (of) => median(ranked.items.map(of)) : null;
  const names = ["This one", rival ? rivalName(study, rival) : ""];
  return [
    rival && el("p", {}, "Set beside ", el("a", { href: `#/studies/${study.id}/candidates/${rival.id}` }, `${rivalName(study, rival)}, ${fullName(rival)}`), ". ",
      el("a", { href: `#/compare/${study.id}/${candidate.id}/${study.id}/${rival.id}` }, "Compare the two in full")),
    rival && knobTable(candidate, rival, names),
    metricTables([candidate, rival], names, middle && { name: ranked.isCut ? `Median of the first ${number(ranked.items.length)}` : "Median of all", of: middle }),
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
