// Small pieces that several views show.

import { announce, el } from "./dom.js";

const MARKS = { queued: "◌", planning: "◔", running: "◑", succeeded: "✓", failed: "✕", cancelled: "⊘" };

/** A study's status: a word with a sign, so colour is not needed to tell them apart. */
export function statusMark(status) {
  return el("span", { class: `status ${status}` }, el("span", { "aria-hidden": "true" }, `${MARKS[status] ?? "?"} `), status);
}

/** A fact with a name, for a list of facts. */
export function fact(name, value, note) {
  return el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, value, note && el("span", { class: "below" }, note)));
}

/** A section with a heading. */
export function section(title, ...children) {
  const id = `section-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return el("section", { "aria-labelledby": id }, el("h2", { id }, title), children);
}

/** A way back to a study, and the page's place in it. */
export function crumbs(...links) {
  return el("nav", { class: "crumbs", "aria-label": "Where you are" }, links.map(([text, href], place) => [
    place > 0 && el("span", { "aria-hidden": "true" }, " › "), href ? el("a", { href }, text) : el("span", { "aria-current": "page" }, text),
  ]));
}

/** A button that copies a text, and says so; where the browser forbids that, the text is selected instead. */
export function copyButton(label, textOf, shown) {
  const button = el("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(textOf());
      button.textContent = "Copied";
      announce("Copied.");
    } catch {
      getSelection().selectAllChildren(shown());
      button.textContent = "Selected: press Ctrl+C";
      announce("The text is selected. Press Control C to copy it.");
    }
    setTimeout(() => { button.textContent = label; }, 2500);
  });
  return button;
}
