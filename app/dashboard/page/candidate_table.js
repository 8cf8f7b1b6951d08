// The candidates of a study as a table to sort, and to choose two from for a comparison.

import { el, refill, scrolling } from "./dom.js";
import { deploymentName, number, pools } from "./format.js";
import { objectiveLabel, objectiveUnit } from "./metrics.js";
import { outcomes } from "./standing.js";
import { noCandidate } from "./words.js";

const PAGE = 20;
const METRICS = [
  ["output_throughput_tok_s", "Output", "tok/s"],
  ["mean_ttft_ms", "Mean TTFT", "ms"],
  ["p99_ttft_ms", "p99 TTFT", "ms"],
  ["mean_tpot_ms", "Mean TPOT", "ms"],
  ["mean_e2e_latency_ms", "Mean end-to-end", "ms"],
];

/** A table that keeps its order, its choice and its focus while candidates arrive. */
export function candidateTable(study, isPareto) {
  const state = { sorted: null, descends: false, shown: PAGE, chosen: new Set(), all: [], items: [], isFolded: true };
  let columns = [];
  const header = el("tr", {});
  const body = el("tbody", {});
  const caption = el("caption", {});
  const below = el("div", { class: "buttons" });
  const table = scrolling("Candidates", el("table", { class: "candidates" }, caption, el("thead", {}, header), body));
  const nothing = el("p", { class: "notice" });
  const fold = el("input", { type: "checkbox", checked: true, onchange: () => { state.isFolded = fold.checked; choose(); } });
  const folding = el("label", { class: "fold" }, fold, " One row for candidates that end alike (same main figures and GPUs)");
  const node = el("div", {}, nothing, folding, table, below);

  function choose() {
    const groups = outcomes(state.all);
    folding.hidden = groups.length === state.all.length;
    state.items = state.isFolded ? groups.map(({ first }) => first) : state.all;
    const alike = new Map(groups.map(({ first, alike: others }) => [first.id, others]));
    columns = columnsFor(state.items, isPareto, state.isFolded && !folding.hidden ? alike : null);
    draw();
  }

  function draw() {
    nothing.hidden = state.items.length > 0;
    table.hidden = !nothing.hidden;
    const column = columns.find(({ name }) => name === state.sorted) ?? columns[0];
    const sorted = inOrder(state.items, column, state.descends);
    caption.textContent = captionOf(state, isPareto);
    refill(header, el("th", { scope: "col" }, "Compare"), columns.map((each) => head(each, each === column)));
    refill(body, sorted.slice(0, state.shown).map(row));
    drawBelow();
  }

  function head(column, isSorted) {
    const order = isSorted ? (state.descends ? "descending" : "ascending") : null;
    return el("th", { scope: "col", "aria-sort": order, class: column.isNumber ? "number" : null },
      el("button", { type: "button", class: "sort", "data-stay": `sort ${column.name}`, onclick: () => sortBy(column, isSorted) },
        column.name, el("span", { "aria-hidden": "true", class: "arrow" }, isSorted ? (state.descends ? " ▼" : " ▲") : " ▽"),
        column.unit && el("span", { class: "unit" }, column.unit)));
  }

  function sortBy(column, isSorted) {
    state.descends = isSorted ? !state.descends : column.startsDescending;
    state.sorted = column.name;
    draw();
  }

  function row(candidate) {
    const name = deploymentName(candidate.deployment);
    const box = el("input", {
      type: "checkbox", "aria-label": `compare ${name}`, "data-stay": `choose ${candidate.id}`,
      onchange: () => { (box.checked ? state.chosen.add(candidate.id) : state.chosen.delete(candidate.id)); drawBelow(); },
    });
    box.checked = state.chosen.has(candidate.id);
    return el("tr", { class: candidate.rank === 1 && !isPareto ? "first" : null }, el("td", { class: "choose" }, box), columns.map((column) => {
      const text = column.isNumber ? number(column.value(candidate)) : column.value(candidate);
      if (column.name !== "Deployment") return el("td", { class: column.isNumber ? "number" : null }, text ?? "–");
      return el("th", { scope: "row" }, el("a", { href: `#/studies/${study.id}/candidates/${candidate.id}`, "data-stay": candidate.id }, text));
    }));
  }

  function drawBelow() {
    const [one, other] = state.chosen;
    const isReady = state.chosen.size === 2;
    refill(below,
      state.items.length > state.shown && el("button", { type: "button", "data-stay": "more", onclick: () => { state.shown += PAGE; draw(); } },
        `Show more (${number(state.items.length - state.shown)} left)`),
      state.items.length > 1 && (isReady
        ? el("a", { class: "button", "data-stay": "compare", href: `#/compare/${study.id}/${one}/${study.id}/${other}` }, "Compare the two chosen")
        : el("span", { class: "below", role: "status" }, `Choose two candidates to compare them (${state.chosen.size} chosen).`)));
  }

  return {
    node,
    draw(now, ranked) {
      state.all = ranked.items;
      state.isCut = ranked.isCut;
      nothing.textContent = noCandidate(now);
      choose();
    },
  };
}

function captionOf({ all, items, shown, isCut }, isPareto) {
  const listed = number(Math.min(items.length, shown));
  const whole = `${isCut ? "the first " : ""}${number(all.length)} candidates ${isPareto ? "on the front" : "ranked"}`;
  const what = items.length < all.length ? `${listed} of ${number(items.length)} outcomes among ${whole}` : `${listed} of ${whole}`;
  return `${what}; press a column’s name to sort`;
}

function columnsFor(items, isPareto, alike) {
  const text = (name, value) => ({ name, value, isNumber: false, startsDescending: false });
  const figure = (name, unit, value, startsDescending = false) => ({ name, unit, value, isNumber: true, startsDescending });
  const objectives = Object.keys(items[0]?.objectives ?? {});
  const varies = (value) => new Set(items.map(value)).size > 1;
  const perPool = (field) => (each) => pools(each.deployment).map(([, pool]) => pool[field]).join(" / ");
  const optional = [
    text("Router", (each) => each.deployment.router.mode.replace("_", " ")),
    text("Planner", (each) => (each.deployment.planner ? "scales" : "none")),
    figure("KV load", "", (each) => each.deployment.kv_load_ratio),
    figure("MTP", "tokens", (each) => each.deployment.aic_nextn),
    figure("Rejected", "requests", (each) => each.rejected),
  ].filter((column) => varies(column.value));
  return [
    figure(isPareto ? "Place" : "Rank", "", (each) => each.rank),
    text("Deployment", (each) => deploymentName(each.deployment)),
    figure("GPUs", "", (each) => each.used_gpus),
    ...objectives.map((name) => figure(objectiveLabel(name), objectiveUnit(name), (each) => each.objectives[name], true)),
    text("Batch tokens", perPool("max_num_batched_tokens")),
    text("Batch seqs", perPool("max_num_seqs")),
    ...optional,
    ...(alike ? [figure("Alike", "others", (each) => alike.get(each.id), true)] : []),
    ...METRICS.map(([name, label, unit]) => figure(label, unit, (each) => each.metrics[name], name === "output_throughput_tok_s")),
  ];
}

function inOrder(items, column, descends) {
  const way = descends ? -1 : 1;
  return [...items].sort((a, b) => {
    const [left, right] = [column.value(a), column.value(b)];
    if (left === right) return 0;
    if (left === null || left === undefined) return 1; // without a value: last, either way
    if (right === null || right === undefined) return -1;
    return way * (column.isNumber ? left - right : String(left).localeCompare(String(right), "en", { numeric: true }));
  });
}
