// The list of studies, newest first, renewed while it is looked at.

import { getJson } from "./api.js";
import { el, refill, scrolling } from "./dom.js";
import { age, number, percent, studyName, time } from "./format.js";
import { pause } from "./live.js";
import { statusMark } from "./parts.js";
import { count } from "./words.js";

const EVERY_MS = 3_000;
const STATUSES = ["queued", "planning", "running", "succeeded", "failed", "cancelled"];
const PAGE = 50;

/** Fill the place; renewing goes on until the signal. */
export async function showStudies(place, signal) {
  const wanted = { status: "", text: "", limit: PAGE };
  const body = el("div", {});
  let page = null;
  let turn = 0;
  const load = async () => {
    turn += 1;
    const asked = turn;
    const status = wanted.status ? `&status=${wanted.status}` : "";
    const fresh = await getJson(`studies?limit=${Math.min(wanted.limit, 500)}${status}`, signal);
    if (asked !== turn) return; // The viewer has asked for something else since.
    page = fresh;
    draw();
  };
  const loadSoon = () => load().catch(() => {}); // Renewing tells when nothing answers.
  const draw = () => refill(body, list(page, wanted, () => { wanted.limit += PAGE; loadSoon(); }));
  const filters = el("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    el("label", {}, "Status ", el("select", { id: "status-filter", onchange: (event) => { wanted.status = event.target.value; loadSoon(); } },
      el("option", { value: "" }, "any"), STATUSES.map((status) => el("option", { value: status }, status)))),
    el("label", {}, "Contains ", el("input", {
      id: "text-filter", type: "search", placeholder: "name, model, label",
      oninput: (event) => { wanted.text = event.target.value.trim().toLowerCase(); draw(); },
    })));
  await load();
  place.replaceChildren(el("h1", {}, "Studies"), filters, body);
  keepFresh(load, place, signal);
}

async function keepFresh(load, place, signal) {
  const lost = el("p", { class: "notice bad", role: "status" }, "The service does not answer; trying again. What you see may be old.");
  while (!signal.aborted) {
    await pause(EVERY_MS, signal);
    if (signal.aborted || document.hidden) continue;
    try {
      await load();
      lost.remove();
    } catch (error) {
      if (!signal.aborted && error.name !== "AbortError") place.insertBefore(lost, place.children[1] ?? null);
    }
  }
}

function list(page, wanted, more) {
  const items = page.items.filter((study) => !wanted.text || haystack(study).includes(wanted.text));
  if (!items.length) return el("p", { class: "notice" }, emptyWords(page, wanted));
  return [
    scrolling("Studies", el("table", { class: "studies" },
      el("caption", {}, `${count(items.length, "study", "studies")}, newest first`),
      el("thead", {}, el("tr", {}, ["Study", "Status", "Progress", "Best", "Created"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, items.map(row)))),
    page.next_cursor && page.items.length < 500 && el("button", { type: "button", "data-stay": "more", onclick: more }, "Show older ones"),
  ];
}

function haystack(study) {
  const labels = Object.entries(study.labels).map(([name, value]) => `${name}=${value}`);
  return [study.name ?? "", study.model_name, study.id, ...labels].join(" ").toLowerCase();
}

function emptyWords(page, wanted) {
  if (page.items.length) return "No study contains that text.";
  if (wanted.status) return `No study is ${wanted.status}.`;
  return "There are no studies yet. Submit one: POST /studies with a configuration; openapi/examples has some to begin with.";
}

function row(study) {
  const labels = Object.entries(study.labels);
  return el("tr", {},
    el("th", { scope: "row" },
      el("a", { href: `#/studies/${study.id}`, "data-stay": study.id }, studyName(study)),
      study.name && el("span", { class: "below" }, study.model_name),
      labels.length > 0 && el("span", { class: "below" }, labels.map(([name, value]) => `${name}=${value}`).join(", "))),
    el("td", {}, statusMark(study.status)),
    el("td", {}, bar(study), el("span", { class: "below" }, count(study.progress.done, "trial"))),
    el("td", {}, best(study)),
    el("td", { title: time(study.created_at) }, age(study.created_at)));
}

function bar(study) {
  const { fraction } = study.progress;
  if (fraction === null) return null;
  return el("span", {}, el("progress", { max: 1, value: fraction, "aria-label": `progress of ${studyName(study)}` }), ` ${percent(fraction)}`);
}

function best(study) {
  if (study.best === null) return study.problem ? el("span", { class: "below" }, study.problem.title) : "–";
  const { front_size: front, score, used_gpus: gpus } = study.best;
  const text = front ? `front of ${front}` : `score ${number(Math.abs(score))}`;
  return [text, el("span", { class: "below" }, count(gpus, "GPU"))];
}
