(() => {
  "use strict";
  const root = document.documentElement;

  // The button that takes the code out of the way; the browser remembers it.
  const button = document.querySelector(".rn-code");
  const press = () => button?.setAttribute("aria-pressed", root.dataset.code === "off");
  button?.addEventListener("click", () => {
    root.dataset.code = root.dataset.code === "off" ? "on" : "off";
    localStorage.setItem("code", root.dataset.code);
    press();
  });
  press();

  // Formulas are no stops of the Tab key, but one that is wider than the screen scrolls.
  const reach = () => document.querySelectorAll("mjx-container").forEach((formula) => {
    const box = formula.hasAttribute("display") ? formula : formula.parentElement;
    const wide = formula.firstElementChild.scrollWidth > box.clientWidth + 2;
    if (wide && box.clientWidth) box.tabIndex = 0; else box.removeAttribute("tabindex");
  });
  addEventListener("load", () => globalThis.MathJax?.startup?.promise?.then(reach));
  addEventListener("resize", reach);

  // On paper nothing can be opened or switched: every answer is open, the page light.
  let closed = [];
  let theme = null;
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.sd-dropdown:not([open])")];
    closed.forEach((details) => { details.open = true; });
    theme ??= root.dataset.theme;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    closed.forEach((details) => { details.open = false; });
    root.dataset.theme = theme;
    theme = null;
  });
})();
