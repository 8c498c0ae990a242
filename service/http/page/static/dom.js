/** Elements, made from data. Texts of users and of the model become text nodes, never HTML. */

import { translateAttribute, translateText } from "./texts.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. `t` and the attributes in TRANSLATED take a key of texts.js and follow the language; `on` maps events to
 * functions; `style` maps custom properties to values; other attributes are set as they are, without those that are
 * null or false.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** As `h`, in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const TRANSLATED = { label: "aria-label", hint: "placeholder", tip: "title" };

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "t") translateText(element, value);
    else if (name in TRANSLATED) translateAttribute(element, TRANSLATED[name], value);
    else if (name === "on") Object.entries(value).forEach(([event, act]) => element.addEventListener(event, act));
    else if (name === "style") setStyle(element, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Through the object model: the content policy forbids the attribute `style`. */
export function setStyle(element, properties) {
  for (const [name, value] of Object.entries(properties)) element.style.setProperty(name, String(value));
}

/** A button that submits nothing by itself. */
export function button(attributes, act, ...children) {
  return h("button", { type: "button", ...attributes, on: { click: act } }, ...children);
}

let fields = 0;

/** A labelled control: the label's text is a key. */
export function field(key, control, attributes = {}) {
  control.id ||= `field-${(fields += 1)}`;
  return h("div", { class: "field", ...attributes }, h("label", { t: key, for: control.id }), control);
}

/** A text area that grows with its text; Enter submits its form, Shift+Enter starts a new line. */
export function textArea(attributes = {}, { submitsOnEnter = true } = {}) {
  const area = h("textarea", { rows: 2, spellcheck: "false", ...attributes });
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    if (submitsOnEnter ? !event.shiftKey : event.ctrlKey || event.metaKey) {
      event.preventDefault();
      area.form?.requestSubmit();
    }
  });
  return area;
}

/** A form whose submission runs `act`. */
export function form(act, ...children) {
  const submit = (event) => {
    event.preventDefault();
    act();
  };
  return h("form", { class: "form", on: { submit } }, ...children);
}

/** A choice between [value, key] pairs; without a key the value itself is shown. */
export function select(choices, act, attributes = {}) {
  const options = choices.map(([value, key]) => (key ? h("option", { value, t: key }) : h("option", { value }, String(value))));
  return h("select", { ...attributes, on: { change: act } }, ...options);
}

/** The lines of a text area that are not empty. @param {string} text */
export function splitLines(text) {
  return split(text, "\n");
}

/** Words with commas or semicolons between them. @param {string} text */
export function splitWords(text) {
  return split(text, /[,，;；]/);
}

function split(text, separator) {
  return text.split(separator).map((one) => one.trim()).filter(Boolean);
}
