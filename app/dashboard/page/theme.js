// Runs before the first paint, hence no module: dark and light follow the system unless the viewer chose one.
(() => {
  "use strict";
  const PLACE = "spica-theme";
  const known = ["auto", "light", "dark"];

  function chosen() {
    try {
      const kept = localStorage.getItem(PLACE);
      return known.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // Storage may be forbidden.
    }
  }

  function apply(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  apply(chosen());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(chosen()));
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = chosen();
    select.addEventListener("change", () => {
      try {
        localStorage.setItem(PLACE, select.value);
      } catch {
        // It then lasts until the page is left.
      }
      apply(select.value);
    });
  });
})();
