// The quieter sections of a study: why trials found nothing, what was left out, warnings, and what it rests on.

import { el, plainTable } from "./dom.js";
import { deploymentName, number, shape } from "./format.js";
import * as words from "./words.js";

const MOST_ROWS = 200;

/** Trials without a result, counted by reason, with one example each and all of them on demand. */
export function fruitlessTrials(study, trials) {
  const { done, feasible, cancelled } = study.progress;
  if (!trials.length) {
    return el("p", {}, done === 0 ? (study.finished_at ? "No trial was run." : "No trial has ended yet.") : done === feasible ? "Every trial that ended is a candidate." : `${number(cancelled)} trials were cancelled.`);
  }
  const groups = new Map();
  for (const trial of trials) {
    const name = `${trial.status} ${trial.reason?.code ?? ""}`;
    groups.set(name, [...(groups.get(name) ?? []), trial]);
  }
  const rows = [...groups.values()].sort((a, b) => b.length - a.length).map((group) => [
    group[0].reason ? words.reason(group[0].reason.code) : "no reason given", group[0].status.replace("_", " "), number(group.length),
    group[0].reason?.detail ?? "",
  ]);
  const each = trials.slice(0, MOST_ROWS).map((trial) => [
    String(trial.number), deploymentName(trial.deployment), trial.status.replace("_", " "), trial.reason?.detail ?? "",
  ]);
  return [
    plainTable("Counted by reason", ["Reason", "Outcome", "Trials", "For example"], rows, [2]),
    details("fruitless", `Each of these trials${trials.length > MOST_ROWS ? ` (the first ${MOST_ROWS})` : ""}`,
      plainTable("Trials without a result", ["Trial", "Deployment", "Outcome", "Reason"], each)),
  ];
}

/** The plan's excluded shapes, counted by reason, all of them on demand. */
export function excludedShapes(plan) {
  if (plan === null) return el("p", {}, "There is no plan yet.");
  if (!plan.excluded.length) return el("p", {}, "The plan leaves no shape out.");
  const counts = new Map();
  for (const { code } of plan.excluded) counts.set(code, (counts.get(code) ?? 0) + 1);
  const said = [...counts].map(([code, amount]) => `${words.reason(code)}: ${number(amount)}`).join("; ");
  const rows = plan.excluded.slice(0, MOST_ROWS).map((each) => [
    each.backend, each.shape ? shape(each.shape) : "all shapes", each.gpus === null ? "–" : String(each.gpus), each.detail,
  ]);
  return [
    el("p", {}, `The plan leaves out ${words.count(plan.excluded.length, "shape")}: ${said}.`),
    details("excluded", `Each of them, with its reason${plan.excluded.length > MOST_ROWS ? ` (the first ${MOST_ROWS})` : ""}`,
      plainTable("Excluded shapes", ["Engine", "Shape", "GPUs", "Reason"], rows, [2])),
  ];
}

/** Warnings about the configuration, of the study and of its plan. */
export function warnings(study, plan) {
  const all = [...study.warnings, ...(plan?.warnings ?? [])];
  const seen = new Set();
  const items = all.filter(({ pointer, detail }) => {
    const name = `${pointer} ${detail}`;
    return !seen.has(name) && seen.add(name);
  });
  if (!items.length) return null;
  return el("div", { class: "notice warn" },
    el("strong", {}, words.count(items.length, "warning")),
    el("ul", {}, items.map(({ pointer, detail }) => el("li", {}, pointer && el("code", {}, pointer), pointer && ": ", detail))));
}

/** Data versions, seed, configuration. */
export function settings(study) {
  const { provenance } = study;
  const data = provenance.perf_data;
  const rows = [
    ["Study", study.id],
    ["Simulator", provenance.simulator_version],
    ["Measured data", data ? `${data.package} ${data.version}` : "–"],
    ["Seed", String(provenance.seed)],
    ["Repeatable", provenance.repeatable ? "yes" : "no: a trial timed out, which depends on the machine"],
    ...(provenance.trace_sha256 ? [["Trace", provenance.trace_sha256]] : []),
  ];
  return [
    plainTable("Provenance", ["What", "Value"], rows),
    details("config", "The configuration, defaults filled in", el("pre", { tabindex: "0" }, JSON.stringify(study.config, null, 2))),
  ];
}

function details(name, summary, ...children) {
  return el("details", { "data-stay": name }, el("summary", {}, summary), children);
}
