/** The card beside each panel: its requests as curl and Python, the times of their stages, the answers. */

import { addressOf, isKeyRequired } from "./api.js";
import { stackedBar } from "./charts.js";
import { button, h } from "./dom.js";
import { number } from "./texts.js";

const SHOWN_CHARACTERS = 4000;
const COPIED_MILLISECONDS = 1600;

/** @typedef {{path: string, body: any, answer: import("./api.js").Answer | null}} Request */

export class RequestView {
  constructor() {
    this.form = "curl";
    /** @type {Request[]} of the last run of the panel, one for each path */
    this.requests = [];
    this.routes = h("div", { class: "segmented", role: "group", label: "request.title" });
    this.code = h("code");
    this.block = h("pre", { class: "code", tabindex: "0", role: "region", label: "request.code" }, this.code);
    this.forms = h("div", { class: "segmented", role: "group", label: "request.code" },
      this.#formButton("curl"), this.#formButton("python"));
    this.copy = button({ class: "quiet", t: "request.copy" }, () => this.#copyCode());
    this.time = h("div", { class: "time" });
    this.answer = h("pre", { class: "code", tabindex: "0", role: "region", label: "request.answer" });
    this.filled = h("div", { hidden: true, class: "request-filled" }, this.routes,
      h("div", { class: "request-bar" }, this.forms, this.copy), this.block, this.time,
      h("details", {}, h("summary", { t: "request.answer" }), this.answer));
    this.empty = h("p", { class: "muted", t: "request.empty" });
    this.element = h("aside", { class: "card request" }, h("h2", { t: "request.title" }), this.empty, this.filled);
  }

  /**
   * Shows a request when it is sent, in place of the others or, if it is a further one of the same run, beside them.
   * @param {string} path @param {any} body
   */
  showRequest(path, body, { isFurther = false } = {}) {
    this.empty.hidden = true;
    this.filled.hidden = false;
    const others = isFurther ? this.requests.filter((one) => one.path !== path) : [];
    const request = { path, body, answer: null };
    this.requests = [...others, request];
    this.routes.hidden = this.requests.length < 2;
    this.routes.replaceChildren(...this.requests.map((one) => button({}, () => this.#choose(one), one.path)));
    this.#choose(request);
  }

  /** The answer to the last request with this path. @param {string} path @param {import("./api.js").Answer} answer */
  showAnswer(path, answer) {
    const request = this.requests.find((one) => one.path === path);
    request.answer = answer;
    if (request === this.shown) this.#choose(request);
  }

  #choose(request) {
    this.shown = request;
    [...this.routes.children].forEach((one, i) => one.setAttribute("aria-pressed", String(this.requests[i] === request)));
    this.#writeCode();
    this.time.replaceChildren();
    this.answer.textContent = "";
    if (request.answer) this.#showTimes(request.answer);
  }

  #showTimes({ text, stages, milliseconds }) {
    const inService = stages.reduce((sum, [, one]) => sum + one, 0);
    const parts = [...stages, ["network", Math.max(0, milliseconds - inService)]];
    const total = number(milliseconds, { maximumFractionDigits: milliseconds < 10 ? 1 : 0 });
    this.time.replaceChildren(
      h("div", { class: "row-heading" }, h("h3", { t: "request.time" }),
        h("span", { class: "muted", t: ["request.total", { ms: total }] })),
      stackedBar(parts.map(([name, value]) => ({ kind: name, key: `stage.${name}`, value })), (one) =>
        `${number(one, { maximumFractionDigits: 2 })} ms`));
    this.#writeAnswer(text);
  }

  #writeAnswer(text) {
    const shown = text.slice(0, SHOWN_CHARACTERS);
    const rest = text.length - shown.length;
    this.answer.replaceChildren(shown);
    if (rest) this.answer.append(h("span", { class: "muted", t: ["request.cut", { count: number(rest) }] }));
  }

  #formButton(form) {
    const choose = () => {
      this.form = form;
      [...this.forms.children].forEach((one) => one.setAttribute("aria-pressed", String(one === chosen)));
      this.#writeCode();
    };
    const chosen = button({ t: `request.${form}`, "aria-pressed": String(form === this.form) }, choose);
    return chosen;
  }

  #writeCode() {
    const { path, body } = this.shown;
    this.code.textContent = this.form === "curl" ? asCurl(path, body) : asPython(path, body);
  }

  async #copyCode() {
    const text = this.code.textContent;
    if (navigator.clipboard) await navigator.clipboard.writeText(text).catch(() => this.#copySelection());
    else this.#copySelection(); // a page over http from another machine has no clipboard
    this.copy.textContent = "";
    this.copy.append(h("span", { t: "request.copied", role: "status" }));
    setTimeout(() => this.copy.replaceChildren(h("span", { t: "request.copy" })), COPIED_MILLISECONDS);
  }

  #copySelection() {
    getSelection().selectAllChildren(this.code);
    document.execCommand("copy");
  }
}

/** The request as a command of a POSIX shell; the key as a variable of it. */
export function asCurl(path, body) {
  const quoted = writeJson(body).replaceAll("'", String.raw`'\''`);
  const key = isKeyRequired() ? `  -H "authorization: Bearer $KEY" \\\n` : "";
  return `curl ${addressOf(path)} \\\n${key}  -d '${quoted}'`;
}

/** JSON in one line, with spaces where a line may break. */
function writeJson(value) {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(writeJson).join(", ")}]`;
  return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${writeJson(one)}`).join(", ")}}`;
}

/** The request in Python, with the library requests. */
export function asPython(path, body) {
  const key = isKeyRequired();
  const lines = key ? ["import os", "", "import requests", ""] : ["import requests", ""];
  lines.push("answer = requests.post(", `    "${addressOf(path)}",`, `    json=${pythonLiteral(body, 4)},`);
  if (key) lines.push(`    headers={"authorization": "Bearer " + os.environ["KEY"]},`);
  return [...lines, ").json()"].join("\n");
}

/** A value of JSON as Python writes it: one line if it is short. @param {any} value @param {number} indent */
export function pythonLiteral(value, indent = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value).replaceAll("\u007f", "\\x7f");
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((one) => pythonLiteral(one, indent + 4))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonLiteral(one, indent + 4)}`);
  const [open, close] = isList ? "[]" : "{}";
  const oneLine = `${open}${parts.join(", ")}${close}`;
  if (oneLine.length <= 60 && !oneLine.includes("\n")) return oneLine;
  const space = " ".repeat(indent);
  return `${open}\n${parts.map((part) => `${space}    ${part},\n`).join("")}${space}${close}`;
}
