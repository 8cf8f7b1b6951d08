// The dashboard: which view an address means, the API key, and what is shown when something fails.

import { key, Problem, useKey } from "./api.js";
import { dropCharts } from "./charts.js";
import { announce, el } from "./dom.js";
import { pause } from "./live.js";
import { failure } from "./words.js";
import { showCandidate } from "./candidate.js";
import { showComparison } from "./compare.js";
import { showStudies } from "./studies.js";
import { showStudy } from "./study.js";

const AGAIN_MS = 3_000;
const UUID = "([0-9a-fA-F-]{36})";
const ROUTES = [
  [/^#\/$/, showStudies],
  [new RegExp(`^#/studies/${UUID}$`), showStudy],
  [new RegExp(`^#/studies/${UUID}/candidates/${UUID}$`), showCandidate],
  [new RegExp(`^#/compare/${UUID}/${UUID}/${UUID}/${UUID}$`), showComparison],
];
const main = document.getElementById("main");
let left = new AbortController();

/** Show what the address says. Each view gets the place to fill, a signal that ends when it is left, and its ids. */
async function show({ moved }) {
  left.abort();
  dropCharts();
  left = new AbortController();
  const { signal } = left;
  const address = location.hash || "#/";
  const [view, ids] = find(address);
  const place = el("div", {}, el("p", { class: "loading", role: "status" }, "Loading …"));
  main.replaceChildren(place);
  if (view === null) {
    place.replaceChildren(el("h1", {}, "Nothing here"), el("p", {}, "This address names no page. ", el("a", { href: "#/" }, "To the studies")));
  }
  for (;;) {
    try {
      if (view !== null) await view(place, signal, ...ids);
      break;
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      if (!(error instanceof Problem)) throw error;
      complain(place, error);
      if (error.status !== 0 && error.status < 500) break;
      await pause(AGAIN_MS, signal);
      if (signal.aborted) return;
    }
  }
  if (signal.aborted) return;
  arrived(place, moved);
}

function find(address) {
  for (const [pattern, view] of ROUTES) {
    const match = pattern.exec(address);
    if (match) return [view, match.slice(1)];
  }
  return [null, []];
}

function arrived(place, moved) {
  const title = place.querySelector("h1");
  document.title = title ? `${title.textContent} – Spica Studies` : "Spica Studies";
  if (moved && title) {
    title.tabIndex = -1;
    title.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function complain(place, problem) {
  dropCharts();
  place.replaceChildren(
    el("h1", {}, problem.status === 401 ? "API key needed" : problem.status === 404 ? "Not found" : "This did not work"),
    el("p", { class: "notice bad", role: "alert" }, failure(problem)),
    el("p", {}, el("a", { href: "#/" }, "To the studies")),
  );
  if (problem.status === 401) askForKey();
}

const dialog = document.getElementById("key-dialog");
const field = document.getElementById("key-field");

function askForKey() {
  field.value = "";
  document.getElementById("key-forget").hidden = key() === null;
  if (!dialog.open) dialog.showModal();
  field.focus();
}

function changeKey(text) {
  useKey(text);
  dialog.close();
  announce(text ? "The key is in use." : "The key is forgotten.");
  show({ moved: false });
}

document.getElementById("key-button").addEventListener("click", askForKey);
document.getElementById("key-close").addEventListener("click", () => dialog.close());
document.getElementById("key-forget").addEventListener("click", () => changeKey(null));
document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (field.value.trim()) changeKey(field.value.trim());
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // its address would be taken for a view
  main.focus();
});
addEventListener("hashchange", () => show({ moved: true }));
show({ moved: false });
