// The answer of a study in one place: what won, by how much, why, and how firmly. Of a front: its ends.

import { el } from "./dom.js";
import { batchingWords, deploymentName, number } from "./format.js";
import { ENDED } from "./live.js";
import { objectiveLabel, objectivePhrase, objectiveUnit, sense } from "./metrics.js";
import { fact, section } from "./parts.js";
import { endAlike, isPareto, reasons, rivalOf, steadiness } from "./standing.js";
import { count } from "./words.js";

const FIGURES = [["output_throughput_tok_s", "Output", "tok/s"], ["mean_ttft_ms", "Mean TTFT", "ms"], ["mean_tpot_ms", "Mean TPOT", "ms"], ["p99_e2e_latency_ms", "p99 end-to-end", "ms"]];

/** The card of a study; null while there is no candidate. ranked: as `getItems` gives it. */
export function winnerCard(study, ranked) {
  if (!ranked.items.length) return null;
  return el("div", { class: "winner" }, isPareto(study) ? ends(study, ranked.items) : first(study, ranked));
}

function first(study, ranked) {
  const [winner] = ranked.items;
  const rival = rivalOf(winner, ranked.items);
  return section(titleOf(study),
    el("p", { class: "name" }, link(study, winner, "winner")),
    el("p", { class: "muted" }, described(winner)),
    el("dl", { class: "facts" },
      Object.entries(winner.objectives).map(([name, value]) => fact(objectiveLabel(name), number(value), objectiveUnit(name))),
      FIGURES.filter(([name]) => name in winner.metrics).map(([name, label, unit]) => fact(label, number(winner.metrics[name]), unit))),
    el("p", {}, el("strong", {}, "Why. "), reasons(study, winner, ranked).join(" ")),
    steadiness(study, winner) && el("p", {}, el("strong", {}, "How firm. "), steadiness(study, winner)),
    el("p", { class: "buttons" },
      el("a", { class: "button", href: `${address(study, winner)}`, "data-stay": "winner more" }, "How to run it, and its replay"),
      rival && !endAlike(winner, rival) && el("a", { class: "button", href: `#/compare/${study.id}/${winner.id}/${study.id}/${rival.id}`, "data-stay": "winner compare" }, "Compare with the next best")));
}

function titleOf({ status }) {
  if (status === "succeeded") return "The winner";
  return ENDED.has(status) ? "The best of what was tried" : "The best so far";
}

function ends(study, front) {
  const names = Object.keys(front[0].objectives);
  const best = (name) => front.reduce((a, b) => ((b.objectives[name] - a.objectives[name]) * sense(name) > 0 ? b : a));
  const values = ({ objectives }) => names.map((name) => `${objectivePhrase(name)} ${number(objectives[name])} ${objectiveUnit(name)}`).join(", ");
  return section("The choice",
    el("p", {}, `Nothing beats any of the ${number(study.best?.front_size ?? front.length)} candidates on the front in every objective. Its ends:`),
    el("ul", {}, names.map((name) => el("li", {}, el("strong", {}, `Best ${objectivePhrase(name)}: `), link(study, best(name), `best ${name}`), ` with ${values(best(name))}; ${described(best(name))}.`))));
}

function link(study, candidate, name) {
  return el("a", { href: address(study, candidate), "data-stay": name }, deploymentName(candidate.deployment));
}

function address(study, candidate) {
  return `#/studies/${study.id}/candidates/${candidate.id}`;
}

function described({ deployment, used_gpus: gpus }) {
  const router = deployment.router.mode === "kv_router" ? "KV router" : "round robin";
  const together = deployment.mode === "agg" ? "prefill and decode together" : "prefill and decode apart";
  return [count(gpus, "GPU"), together, batchingWords(deployment), router, deployment.planner && "a planner scales it"].filter(Boolean).join(" · ");
}
