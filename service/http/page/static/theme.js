/** Light or dark: as the system says, until the button chooses. */

import { button } from "./dom.js";
import { keep, recall } from "./stored.js";
import { translateText } from "./texts.js";

const STORED = "packbert-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** A button that names the theme it changes to. */
export function makeThemeButton() {
  let chosen = recall(STORED, ["dark", "light"]);
  const isDark = () => (chosen ?? (system.matches ? "dark" : "light")) === "dark";
  const element = button({ class: "quiet", id: "theme" }, () => {
    chosen = isDark() ? "light" : "dark";
    keep(STORED, chosen);
    apply();
  });
  const apply = () => {
    document.documentElement.style.setProperty("color-scheme", chosen ?? "light dark");
    translateText(element, isDark() ? "page.light" : "page.dark");
  };
  system.addEventListener("change", apply);
  apply();
  return element;
}
