/** The words of the page in two languages; elements made with a key follow the language. */

import { keep, recall } from "./stored.js";
import en from "./texts/en.js";
import zh from "./texts/zh.js";

const TEXTS = { en, zh };
const STORED = "packbert-language";
/** @type {WeakMap<Element, Map<string, any>>} of each translated element: the attribute ("" for its text) and its key */
const translated = new WeakMap();
const listeners = new Set();

let language = recall(STORED, Object.keys(TEXTS)) ?? document.documentElement.lang;
document.documentElement.lang = language;

/** @typedef {string | [string, Record<string, string | number>]} Key a key of the texts, with values for its {names} */

/** @param {Key} key @returns {string} in the current language */
export function text(key) {
  const [name, values] = Array.isArray(key) ? key : [key, {}];
  const found = TEXTS[language][name] ?? TEXTS.en[name];
  if (found === undefined) throw new Error(`no text has the key ${name}`);
  return found.replace(/\{(\w+)\}/g, (_, value) => String(values[value]));
}

/** Whether a text has this name. @param {string} name */
export function hasText(name) {
  return name in TEXTS.en;
}

/** @param {Element} element @param {Key} key */
export function translateText(element, key) {
  remember(element, "", key);
}

/** @param {Element} element @param {string} attribute @param {Key} key */
export function translateAttribute(element, attribute, key) {
  remember(element, attribute, key);
}

function remember(element, attribute, key) {
  if (!translated.has(element)) translated.set(element, new Map());
  translated.get(element).set(attribute, key);
  element.setAttribute("data-translated", "");
  write(element, attribute, key);
}

function write(element, attribute, key) {
  if (attribute) element.setAttribute(attribute, text(key));
  else element.textContent = text(key);
}

/** @returns {"en" | "zh"} */
export function currentLanguage() {
  return language;
}

/** Changes the language of the whole page, also of what it shows already. @param {"en" | "zh"} chosen */
export function setLanguage(chosen) {
  language = chosen;
  document.documentElement.lang = chosen;
  keep(STORED, chosen);
  for (const element of document.querySelectorAll("[data-translated]")) {
    translated.get(element)?.forEach((key, attribute) => write(element, attribute, key));
  }
  listeners.forEach((act) => act());
}

/** Runs `act` after each change of the language. */
export function onLanguage(act) {
  listeners.add(act);
}

/** @param {number} value @param {Intl.NumberFormatOptions} [options] */
export function number(value, options = {}) {
  return new Intl.NumberFormat(language, { maximumFractionDigits: 2, ...options }).format(value);
}

/** Parts of a text by the service's offsets, which count code points and not UTF-16 units. @param {string} whole */
export function codePoints(whole) {
  const characters = Array.from(whole);
  return (start, end) => characters.slice(start, end).join("");
}

/** A probability as a percentage that never rounds to 0. @param {number} share */
export function percent(share) {
  if (share > 0 && share < 1e-4) return "< 0.01 %";
  return `${number(100 * share, { maximumFractionDigits: share < 0.01 ? 2 : 1 })} %`;
}

/** A duration. @param {number} seconds */
export function duration(seconds) {
  if (seconds >= 1) return `${number(seconds, { maximumSignificantDigits: 3 })} s`;
  return `${number(1e3 * seconds, { maximumSignificantDigits: 3 })} ms`;
}

/** 950, 12.1k, 3.4M: for axes and figures beside a picture. @param {number} value */
export function short(value) {
  return number(value, { notation: value >= 10000 ? "compact" : "standard", maximumFractionDigits: value < 100 ? 1 : 0 });
}
