// Making and renewing elements. Everything shown goes through text nodes, so nothing a client wrote is ever markup.

/**
 * A new element. Attributes that are null, undefined or false are left out; `onclick` and the like become listeners.
 * Children are nodes, texts and numbers, nested as one likes; null, undefined and false are left out.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Renew what a parent holds. Focus, and which details are open, survive through `data-stay`, a name of its own. */
export function refill(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset.stay : undefined;
  const open = new Set([...parent.querySelectorAll("details[open][data-stay]")].map((each) => each.dataset.stay));
  parent.replaceChildren(...flat(children));
  for (const each of parent.querySelectorAll("details[data-stay]")) {
    if (open.has(each.dataset.stay)) each.open = true;
  }
  if (focused) parent.querySelector(`[data-stay="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** Say something to those who do not see the page change. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** A table that scrolls within itself on a narrow screen, reachable by keyboard. */
export function scrolling(label, table) {
  return el("div", { class: "scrolling", tabindex: "0", role: "region", "aria-label": label }, table);
}

/** A plain table: head texts, rows of cells; `numbers` names the columns that are aligned to the right. */
export function plainTable(caption, head, rows, numbers = []) {
  const align = (column) => (numbers.includes(column) ? "number" : null);
  return scrolling(
    caption,
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, head.map((text, column) => el("th", { scope: "col", class: align(column) }, text)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, column) =>
        column === 0 ? el("th", { scope: "row", class: align(column) }, cell) : el("td", { class: align(column) }, cell)))))),
  );
}
