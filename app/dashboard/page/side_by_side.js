// What one candidate and two compared candidates are shown with: metrics, knobs, latencies and the course of the replay.

import { courseConfig, figure, groupsConfig } from "./charts.js";
import { el, plainTable } from "./dom.js";
import { change, knobs, number } from "./format.js";
import { direction, LATENCIES, mainMetrics, metricLabel, objectiveLabel, objectiveUnit, otherMetrics, PERCENTILES, sense, verdict } from "./metrics.js";

const SIGNS = { better: "▲ better", worse: "▼ worse", same: "same", "": "" };

/** Objectives and metrics of a candidate beside another's; `middle`, medians to set beside the main ones: a name, and of(metric). */
export function metricTables([left, right], [leftName, rightName], middle = null) {
  const objectives = Object.keys(left.objectives).map((name) => line(
    `${objectiveLabel(name)}, ${objectiveUnit(name)}`, left.objectives[name], right?.objectives[name], middle?.of((each) => each.objectives[name]), name, sense(name)));
  const metrics = (names, mid) => names.map((name) => line(
    metricLabel(name), left.metrics[name], right?.metrics[name], mid?.of((each) => each.metrics[name]), name, direction(name)));
  const head = (mid) => ["Metric", leftName, ...(right ? [rightName, "Difference", `${leftName.split(",")[0]} is`] : []), ...(mid ? [mid.name, "Difference"] : [])];
  const table = (caption, rows, mid) => plainTable(caption, head(mid), rows, head(mid).map((_, place) => place).slice(1));
  return [
    table("Objectives and main metrics", [...objectives, ...metrics(mainMetrics(left.metrics), middle)], middle),
    el("details", {}, el("summary", {}, "The other metrics"), table("Other metrics", metrics(otherMetrics(left.metrics)), null)),
  ];

  function line(label, value, other, mid, name, way) {
    const said = right ? verdict(name, value, other, way) : "";
    return [
      label, number(value),
      ...(right ? [number(other), change(value, other), el("span", { class: said || null }, SIGNS[said])] : []),
      ...(mid === undefined ? [] : [number(mid), change(value, mid)]),
    ];
  }
}

/** The knobs in which two deployments differ: [name, value of the left, value of the right]. */
export function knobDifferences(left, right) {
  const [mine, theirs] = [knobs(left.deployment), knobs(right.deployment)];
  const names = [...new Set([...mine.keys(), ...theirs.keys()])].filter((name) => mine.get(name) !== theirs.get(name));
  return names.map((name) => [name.replaceAll("_", " "), mine.get(name) ?? "–", theirs.get(name) ?? "–"]);
}

/** The same as a table. */
export function knobTable(left, right, [leftName, rightName]) {
  const rows = knobDifferences(left, right);
  return rows.length ? plainTable("Knobs that differ", ["Knob", leftName, rightName], rows, [1, 2]) : el("p", {}, "Their knobs are the same.");
}

/** Latency percentiles of candidates as bars, and as a table. candidates: [[name, metrics]]. */
export function latencies(candidates) {
  const figures = LATENCIES.map(([stem, label]) => {
    const chart = figure(label, groupsConfig, "small");
    return { chart, draw: () => chart.draw({
      groups: PERCENTILES,
      series: candidates.map(([name, metrics]) => ({ name, values: PERCENTILES.map((each) => metrics[`${each}_${stem}`]) })),
      yTitle: "ms",
    }, `${label} by percentile; the table below has the figures.`) };
  });
  const rows = LATENCIES.flatMap(([stem, label]) => candidates.map(([name, metrics]) => [
    candidates.length > 1 ? `${label}: ${name}` : label, ...["mean", ...PERCENTILES, "max"].map((each) => number(metrics[`${each}_${stem}`])),
  ]));
  return {
    node: el("div", {}, el("div", { class: "charts" }, figures.map(({ chart }) => chart.node)),
      plainTable("Latencies, ms", ["Latency", "mean", ...PERCENTILES, "max"], rows, [1, 2, 3, 4, 5, 6, 7])),
    draw: () => figures.forEach(({ draw }) => draw()),
  };
}

const COURSES = [["In flight", "in_flight", "requests", 1], ["Queued", "queued", "requests", 1], ["KV cache in use", "kv_used_ratio", "%", 100], ["Output", "output_tok_s", "tok/s", 1]];

/** The course of the replay of one or more candidates. reports: [[name, timeline]]. */
export function courses(reports) {
  const known = reports.filter(([, timeline]) => timeline?.edge_ms?.length > 1);
  if (!known.length) return { node: el("p", { class: "notice" }, "This replay took no time, so it has no course."), draw: () => {} };
  const figures = groupsOf(known).map(({ caption, series, unit }) => {
    const chart = figure(caption, courseConfig);
    return { chart, draw: () => chart.draw({ series, yTitle: unit }, `${caption} over the time of the replay.`) };
  });
  return { node: el("div", { class: "charts" }, figures.map(({ chart }) => chart.node)), draw: () => figures.forEach(({ draw }) => draw()) };
}

function groupsOf(known) {
  const points = ([, timeline], member, factor) => timeline[member].map((value, bucket) => ({
    x: (timeline.edge_ms[bucket] + timeline.edge_ms[bucket + 1]) / 2000, y: value * factor,
  }));
  if (known.length > 1) {
    return COURSES.map(([caption, member, unit, factor]) => ({ caption, unit, series: known.map((each) => ({ name: each[0], points: points(each, member, factor) })) }));
  }
  const [flight, queued, ...rest] = COURSES.map(([caption, member, unit, factor]) => ({ caption, unit, series: [{ name: caption, points: points(known[0], member, factor) }] }));
  return [{ caption: "Requests in flight and queued", unit: flight.unit, series: [...flight.series, ...queued.series] }, ...rest];
}

const DIRECTIONS = { scale_up: "▲ up", scale_down: "▼ down" };

/** What a planner did during the replay: GPUs of every role over time, and each decision. Null where none scales. */
export function scaling(report) {
  if (!report.scaling) return null;
  const { events, gpus, planner_total_ticks: ticks } = report.scaling;
  const endMs = report.timeline?.edge_ms?.at(-1) ?? 0;
  const series = Object.entries(gpus).map(([role, line]) => {
    const points = line.instant_ms.map((instant, place) => ({ x: instant / 1000, y: line.gpus[place] }));
    return { name: role, points: [...points, { x: Math.max(endMs / 1000, points.at(-1)?.x ?? 0), y: points.at(-1)?.y ?? 0 }] };
  });
  const chart = figure("GPUs in use", courseConfig);
  const rows = events.map((event) => [number(event.at_s), event.component, number(event.from_count), number(event.to_count), DIRECTIONS[event.reason] ?? event.reason]);
  const said = `The planner looked ${number(ticks)} times and changed the number of engines ${number(events.length)} times.`;
  return {
    node: el("div", {}, el("p", {}, said), el("div", { class: "charts" }, chart.node),
      events.length > 0 && el("details", {}, el("summary", {}, "Every decision"),
        plainTable("Decisions of the planner", ["Second of the replay", "Role", "Engines before", "Engines after", "Direction"], rows, [2, 3]))),
    draw: () => chart.draw({ series, yTitle: "GPUs", stepped: true }, `GPUs of ${Object.keys(gpus).join(" and ")} over the time of the replay. ${said}`),
  };
}
