// Charts: Chart.js with the page's colours. Each is named for those who cannot see it; the figures are in tables nearby.

import { el } from "./dom.js";
import { number } from "./format.js";

const SERIES = ["--series-1", "--series-2", "--series-3", "--series-4"];
const shown = new Set();

document.addEventListener("themechange", () => {
  for (const figure of shown) figure.redraw();
});

/** End every chart of a page that is left. */
export function dropCharts() {
  for (const figure of shown) figure.drop();
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { text: read("--muted"), grid: read("--line"), accent: read("--accent"), faint: read("--faint"), series: SERIES.map(read) };
}

/** A figure with a caption. `draw(data)` makes or renews it; makeConfig(data, colours) gives Chart.js its settings. */
export function figure(caption, makeConfig, size = "") {
  const canvas = el("canvas", { role: "img", "aria-label": caption });
  const node = el("figure", { class: `chart ${size}` }, el("figcaption", {}, caption), el("div", { class: "canvas" }, canvas));
  let chart = null;
  let last;
  const self = {
    node,
    draw(data, spoken = caption) {
      last = data;
      canvas.setAttribute("aria-label", spoken);
      const config = makeConfig(data, colours());
      if (chart) {
        chart.data = config.data;
        chart.options = config.options;
        chart.update("none");
      } else {
        chart = new window.Chart(canvas, config);
        shown.add(self);
      }
    },
    redraw() {
      if (chart) self.draw(last, canvas.getAttribute("aria-label"));
    },
    drop() {
      chart?.destroy();
      chart = null;
      shown.delete(self);
    },
  };
  return self;
}

function axis(title, look, more = {}) {
  const { ticks = {}, ...rest } = more;
  return {
    title: { display: Boolean(title), text: title, color: look.text },
    ticks: { color: look.text, maxRotation: 0, autoSkipPadding: 12, ...ticks },
    grid: { color: look.grid },
    border: { color: look.grid },
    ...rest,
  };
}

function options(look, scales, { legend = false, label, title, onClick } = {}) {
  return {
    animation: false,
    responsive: true,
    maintainAspectRatio: false,
    interaction: { mode: "nearest", intersect: false },
    onClick,
    scales,
    plugins: {
      legend: { display: legend, labels: { color: look.text, boxWidth: 12, boxHeight: 12 } },
      tooltip: { callbacks: { ...(label && { label }), ...(title && { title }) } },
    },
  };
}

/** Candidates in the plane of two objectives. data: { all, front: [{ x, y, name, id }], xTitle, yTitle, open(id) }. */
export function scatterConfig(data, look) {
  const click = (_event, found, chart) => {
    const hit = found[0] && chart.data.datasets[found[0].datasetIndex].data[found[0].index];
    if (hit) data.open(hit.id);
  };
  return {
    type: "scatter",
    data: {
      datasets: [
        {
          label: "On the front", data: data.front, showLine: true, borderColor: look.series[0], borderWidth: 1.5,
          backgroundColor: look.series[0], pointRadius: 5, pointHoverRadius: 7,
        },
        { label: "Other candidates", data: data.all, backgroundColor: look.faint, borderColor: look.faint, pointStyle: "rectRot", pointRadius: 4 },
      ],
    },
    options: options(look, { x: axis(data.xTitle, look), y: axis(data.yTitle, look) }, {
      legend: true,
      onClick: click,
      label: ({ raw }) => `${raw.name}: ${number(raw.x)}, ${number(raw.y)}`,
    }),
  };
}

/** The first candidates as bars. data: { names, values, ids, title, open(id) }. */
export function barsConfig(data, look) {
  return {
    type: "bar",
    data: {
      labels: data.names,
      datasets: [{ data: data.values, backgroundColor: data.values.map((_, place) => (place ? look.faint : look.series[0])), borderRadius: 3 }],
    },
    options: {
      ...options(look, {
        x: axis(data.title, look, { beginAtZero: true }),
        y: axis("", look, { ticks: { autoSkip: false, callback(value) { return shortened(this.getLabelForValue(value)); } }, grid: { display: false } }),
      }, { onClick: (_event, found) => found[0] && data.open(data.ids[found[0].index]) }),
      indexAxis: "y",
      interaction: { mode: "nearest", axis: "y", intersect: false },
    },
  };
}

function shortened(text) {
  return text.length > 34 ? `${text.slice(0, 33)}…` : text;
}

/** Steps over time, and dots that led to them. data: { points, dots: [{ x: seconds, y, name }], xTitle, yTitle, isPart: whether y is a percentage }. */
export function stepsConfig(data, look) {
  return {
    type: "line",
    data: {
      datasets: [
        { label: "Best so far", data: data.points, stepped: true, borderColor: look.series[0], backgroundColor: look.series[0], borderWidth: 2.5, pointRadius: 0 },
        { label: "Each candidate", data: data.dots, showLine: false, backgroundColor: look.faint, borderColor: look.faint, pointRadius: 3 },
      ],
    },
    options: options(look, {
      x: axis(data.xTitle, look, { type: "linear", min: 0 }),
      y: axis(data.yTitle, look, data.isPart ? { min: 0, max: 100 } : { grace: "8%" }),
    }, { legend: data.dots.length > 0, title: ([item]) => `${number(item.parsed.x)} s`, label: ({ raw }) => `${number(raw.y)}${raw.name ? ` – ${raw.name}` : ""}` }),
  };
}

/** Series over the time of a replay. data: { series: [{ name, points: [{ x: seconds, y }] }], yTitle, stepped: whether values hold until the next }. */
export function courseConfig(data, look) {
  return {
    type: "line",
    data: {
      datasets: data.series.map(({ name, points }, place) => ({
        label: name, data: points, borderColor: look.series[place],
        backgroundColor: look.series[place], stepped: Boolean(data.stepped), borderWidth: 1.8, borderDash: place % 2 ? [5, 3] : [], pointRadius: 0,
      })),
    },
    options: options(look, {
      x: axis("seconds of the replay", look, { type: "linear", min: 0 }),
      y: axis(data.yTitle, look, { min: 0 }),
    }, { legend: data.series.length > 1, title: ([item]) => `${number(item.parsed.x)} s`, label: (item) => `${item.dataset.label}: ${number(item.parsed.y)}` }),
  };
}

/** Groups of bars. data: { groups, series: [{ name, values }], yTitle }. */
export function groupsConfig(data, look) {
  return {
    type: "bar",
    data: {
      labels: data.groups,
      datasets: data.series.map(({ name, values }, place) => ({ label: name, data: values, backgroundColor: place ? look.faint : look.series[0], borderRadius: 2 })),
    },
    options: options(look, { x: axis("", look, { grid: { display: false } }), y: axis(data.yTitle, look, { beginAtZero: true }) }, {
      legend: data.series.length > 1,
      label: (item) => `${item.dataset.label}: ${number(item.parsed.y)}`,
    }),
  };
}
