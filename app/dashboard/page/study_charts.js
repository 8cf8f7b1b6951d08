// The two charts of a study: where the candidates lie, and how the best came about.

import { barsConfig, figure, scatterConfig, stepsConfig } from "./charts.js";
import { el } from "./dom.js";
import { deploymentName, number } from "./format.js";
import { byRank, objectiveLabel, objectiveUnit, sense } from "./metrics.js";
import { fullName, outcomes } from "./standing.js";
import { noCandidate } from "./words.js";

const BARS = 12;

/** Charts of a study's goal. open(id): what a click on a candidate does. */
export function studyCharts(study, open) {
  const goal = study.config.goal;
  const names = goal.target === "pareto" ? goal.pareto_objectives ?? ["throughput_per_gpu", "throughput_per_user"] : [goal.target];
  const isPlane = names.length > 1;
  const first = isPlane ? figure("Candidates by their objectives", scatterConfig, "tall") : figure("The best outcomes", barsConfig, "tall");
  const second = figure(isPlane ? "How the front grew" : "The best so far, over time", stepsConfig, "tall");
  const nothing = el("p", { class: "notice" });
  const drawn = el("div", { class: "charts" }, first.node, second.node);
  const cut = el("p", { class: "below" });
  const node = el("div", {}, nothing, drawn, cut);
  return {
    node,
    draw(now, ranked, points) {
      nothing.textContent = noCandidate(now);
      nothing.hidden = points.items.length > 0;
      drawn.hidden = !nothing.hidden;
      cut.textContent = points.isCut ? `The charts show the first ${number(points.items.length)} candidates evaluated.` : "";
      if (drawn.hidden) return;
      if (isPlane) first.draw(...plane(points.items, names, open));
      else first.draw(...bars(ranked, names[0], open));
      second.draw(...steps(now, points.items, names));
    },
  };
}

function axisTitle(objective) {
  return `${objectiveLabel(objective)}, ${objectiveUnit(objective)}`;
}

function plane(candidates, [x, y], open) {
  const point = (each) => ({ x: each.objectives[x], y: each.objectives[y], name: deploymentName(each.deployment), id: each.id });
  const front = candidates.filter((each) => each.on_front).map(point).sort((a, b) => a.x - b.x);
  const all = candidates.filter((each) => !each.on_front).map(point);
  const spoken = `Scatter of ${candidates.length} candidates, ${front.length} of them on the front. The table below has the figures.`;
  return [{ front, all, xTitle: axisTitle(x), yTitle: axisTitle(y), open }, spoken];
}

function bars(ranked, objective, open) {
  const shown = outcomes(ranked).slice(0, BARS).map(({ first }) => first);
  const data = {
    names: shown.map((each) => `${each.rank}. ${fullName(each)}`),
    values: shown.map((each) => each.objectives[objective]),
    ids: shown.map((each) => each.id),
    title: axisTitle(objective),
    open,
  };
  const spoken = shown.length
    ? `Bars of the best ${shown.length} outcomes: from ${number(data.values[0])} for ${data.names[0]} to ${number(data.values.at(-1))}. The table below has the figures.`
    : "No ranked candidate.";
  return [data, spoken];
}

function steps(study, candidates, names) {
  const began = Date.parse(study.started_at ?? study.created_at);
  const inTime = candidates
    .map((each) => ({ ...each, seconds: Math.max(0, (Date.parse(each.created_at) - began) / 1000) }))
    .sort((a, b) => a.seconds - b.seconds || a.trial - b.trial);
  const points = names.length > 1 ? hypervolumes(inTime, names) : incumbents(inTime, names[0]);
  const end = study.finished_at ? (Date.parse(study.finished_at) - began) / 1000 : inTime.at(-1).seconds;
  if (end > points.at(-1).x) points.push({ ...points.at(-1), x: end });
  const dots = names.length > 1 ? [] : inTime.map((each) => ({ x: each.seconds, y: each.objectives[names[0]], name: deploymentName(each.deployment) }));
  const yTitle = names.length > 1 ? "hypervolume, % of the present front" : axisTitle(names[0]);
  return [{ points, dots, xTitle: "seconds since the start", yTitle, isPart: names.length > 1 }, `Line of the best so far: ${points.length} steps, now ${number(points.at(-1).y)}.`];
}

function incumbents(inTime, objective) {
  const points = [];
  let best = null;
  for (const each of inTime) {
    if (best !== null && byRank(each, best) >= 0) continue;
    best = each;
    points.push({ x: each.seconds, y: each.objectives[objective], name: deploymentName(each.deployment) });
  }
  return points;
}

/** Area that the front of the first two objectives covers, as percent of its present area, over time. */
function hypervolumes(inTime, [first, second]) {
  const wayX = sense(first);
  const wayY = sense(second);
  const places = inTime.map((each) => ({ x: wayX * each.objectives[first], y: wayY * each.objectives[second], seconds: each.seconds }));
  const origin = { x: wayX > 0 ? 0 : Math.min(...places.map(({ x }) => x)), y: wayY > 0 ? 0 : Math.min(...places.map(({ y }) => y)) };
  let front = [];
  const steps = [];
  for (const each of places) {
    if (front.some(({ x, y }) => x >= each.x && y >= each.y)) continue;
    front = [...front.filter(({ x, y }) => x > each.x || y > each.y), each].sort((a, b) => b.x - a.x);
    steps.push({ x: each.seconds, y: area(front, origin) });
  }
  const whole = steps.at(-1).y || 1;
  return steps.map(({ x, y }) => ({ x, y: (y / whole) * 100, name: "" }));
}

function area(front, origin) {
  let sum = 0;
  let below = origin.y;
  for (const { x, y } of front) {
    sum += (x - origin.x) * Math.max(0, y - below);
    below = Math.max(below, y);
  }
  return sum;
}
