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
