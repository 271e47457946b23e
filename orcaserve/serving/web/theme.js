// Runs before anything is drawn, so that nobody who chose dark sees a white flash.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("orcaserve-theme") ?? "auto";
    } catch {
      return "auto"; // storage is off
    }
  };
  window.orcaTheme = {
    chosen,
    choose(theme) {
      localStorage.setItem("orcaserve-theme", theme);
      this.apply();
    },
    apply() {
      const theme = chosen();
      const shown = theme === "light" || theme === "dark" ? theme : dark.matches ? "dark" : "light";
      document.documentElement.dataset.theme = shown;
      this.changed?.();
    },
  };
  dark.addEventListener("change", () => window.orcaTheme.apply());
  window.orcaTheme.apply();
})();
