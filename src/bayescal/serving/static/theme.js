// Light or dark: as the system says, until the button is used.

import { $ } from "./dom.js";

const KEY = "bayescal-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function now() {
  return localStorage.getItem(KEY) ?? (system.matches ? "dark" : "light");
}

function apply() {
  const dark = now() === "dark";
  document.documentElement.dataset.theme = now();
  $("theme").textContent = dark ? "☀" : "☾";
  $("theme").setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
  $("theme").setAttribute("aria-pressed", String(dark));
}

export function startTheme() {
  apply();
  system.addEventListener("change", apply);
  $("theme").addEventListener("click", () => {
    localStorage.setItem(KEY, now() === "dark" ? "light" : "dark");
    apply();
  });
}
