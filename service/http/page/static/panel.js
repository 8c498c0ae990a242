/** What all panels share: their frame, the run of a request with its states, the row of examples. */

import { RequestError, post } from "./api.js";
import { bar } from "./charts.js";
import { button, form, h } from "./dom.js";
import { RequestView } from "./request_view.js";
import { currentLanguage, hasText, number, onLanguage, percent } from "./texts.js";

/**
 * @typedef {object} Panel
 * @property {HTMLElement} element
 * @property {() => void} open runs when the panel is shown
 * @property {() => void} [close] runs when another panel is shown
 * @property {URLSearchParams} [state] what the address holds of it
 * @property {(state: URLSearchParams) => void} [restore]
 */

export const UNAUTHORIZED = "unauthorized"; // the event of a request that the service refused for its key
export const CHANGED = "state"; // the event of a panel whose fields were sent
const TYPING_MILLISECONDS = 150; // after the last key, until what was typed is sent
const RETRIES = 5; // of a request that the service was too busy for
const NARROW = matchMedia("(max-width: 900px)"); // the answer is below the fields

/** One request at a time: a later one ends the one before it. */
export class Runner {
  /**
   * @param {HTMLElement} result @param {RequestView} view
   * @param {{isFurther?: boolean, notice?: HTMLElement}} [options] isFurther: its requests belong to a run of another
   * one; notice: the place of errors, by default that of the result
   */
  constructor(result, view, { isFurther = false, notice = result } = {}) {
    Object.assign(this, { result, view, isFurther, notice, running: null, timer: null });
  }

  /**
   * Sends the request and lets `show` put its answer into the result. Where the service is busy, it is sent again.
   * @param {string} path @param {any} body @param {(value: any) => (Node | null)[]} show
   */
  async run(path, body, show, retries = RETRIES) {
    this.stop();
    const running = (this.running = new AbortController());
    this.view.showRequest(path, body, { isFurther: this.isFurther });
    this.result.setAttribute("aria-busy", "true");
    try {
      const answer = await post(path, body, running.signal);
      if (running !== this.running) return;
      this.view.showAnswer(path, answer);
      this.#settle(...show(answer.value));
    } catch (error) {
      if (running !== this.running || error.name === "AbortError") return;
      if (!(error instanceof RequestError)) throw error;
      this.#settle();
      if (error.status === 429 && retries) this.#countDown(error, () => this.run(path, body, show, retries - 1));
      else this.notice.replaceChildren(errorCard(error));
      if (error.status === 401) this.result.dispatchEvent(new CustomEvent(UNAUTHORIZED, { bubbles: true }));
    }
  }

  /** Shows a sentence in place of a result; sends nothing. */
  say(key) {
    this.stop();
    this.#settle(h("p", { class: "empty", t: key }));
  }

  stop() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.running = null;
  }

  #countDown(error, act) {
    const until = performance.now() + 1e3 * Math.max(1, Number(error.retryAfter) || 1);
    const tick = () => {
      const seconds = Math.ceil((until - performance.now()) / 1e3);
      if (seconds <= 0) return act();
      this.notice.replaceChildren(errorCard(error, ["error.busy", { seconds }]));
      this.timer = setTimeout(tick, 1e3);
    };
    tick();
  }

  #settle(...children) {
    this.notice.replaceChildren();
    this.result.replaceChildren(...children.filter(Boolean));
    this.result.setAttribute("aria-busy", "false");
  }
}

/** The error in the page's language by its code, the service's own sentence below it. @param {RequestError} error */
export function errorCard({ status, code, message, requestId }, key) {
  const general = status === 0 ? "error.unreachable" : status >= 500 && status !== 501 ? "error.failed" : "error.title";
  const title = key ?? (hasText(`code.${code}`) ? `code.${code}` : general);
  return h("div", { class: "error", role: "alert" }, h("p", { class: "error-title", t: title }),
    status > 0 && h("p", { lang: "en" }, message), status > 0 && h("p", { class: "muted" }, [status, code].filter(Boolean).join(" "),
      requestId && " · ", requestId && h("span", { t: ["error.id", { id: requestId }] })));
}

/** A panel: title, form and result at the left, the request at the right. What is typed is sent by itself. */
export class Frame {
  #due = null; // what to run when the panel is shown
  #latest = null;
  #typing = null;

  /**
   * @param {string} name of its texts, and the beginning of its fields' ids
   * @param {() => void} run sends what the fields hold
   * @param {...Node} controls
   */
  constructor(name, run, ...controls) {
    this.run = run;
    this.view = new RequestView();
    this.result = h("div", { class: "result", "aria-live": "polite", "aria-busy": "false" });
    this.notice = h("div", { class: "errors" });
    this.runner = new Runner(this.result, this.view, { notice: this.notice });
    this.form = form(() => this.submit(), ...controls);
    this.form.querySelector(".examples").before(this.notice); // beside the button
    this.work = h("div", { class: "work" }, h("div", { class: "card" }, this.form), this.result);
    this.element = h("section", { class: "panel", hidden: true, id: `panel-${name}`, "aria-labelledby": `title-${name}` },
      makeHeader(name), h("div", { class: "columns" }, this.work, this.view.element));
    this.name = name;
    this.initial = new Map();
    this.work.addEventListener(UNAUTHORIZED, () => (this.#due = this.#latest));
    this.form.addEventListener("input", (event) => this.#wait(event));
    this.form.addEventListener("compositionend", (event) => this.#wait(event));
  }

  /** The fields whose values the address holds, by their names there. */
  get fields() {
    const found = [...this.work.querySelectorAll(`[id^="${this.name}-"]`)].filter((one) => "value" in one && one.tagName !== "BUTTON");
    const named = new Map(found.map((one) => [one.id.slice(this.name.length + 1), one]));
    for (const [name, field] of named) if (!this.initial.has(name)) this.initial.set(name, valueOf(field));
    return named;
  }

  /** What differs from a panel without texts. @returns {URLSearchParams} */
  get state() {
    const changed = [...this.fields].map(([name, field]) => [name, valueOf(field)]);
    return new URLSearchParams(changed.filter(([name, value]) => value !== this.initial.get(name)));
  }

  /** Shows what an address holds. @param {URLSearchParams} state */
  restore(state) {
    for (const [name, field] of this.fields) {
      const value = state.get(name) ?? this.initial.get(name);
      if (field.type === "checkbox") field.checked = value === "true";
      else field.value = value;
    }
    this.whenShown(this.run);
  }

  /** The fields of a request whose long texts are cut. @returns {{truncate?: boolean}} */
  get truncation() {
    return this.fields.get("truncate").checked ? { truncate: true } : {};
  }

  submit() {
    clearTimeout(this.#typing);
    this.whenShown(this.run);
    if (NARROW.matches) this.result.scrollIntoView({ block: "nearest" });
  }

  /** Runs `act` now, or when the panel is shown the next time. */
  whenShown(act) {
    this.#latest = act;
    if (this.element.hidden) this.#due = act;
    else {
      act();
      this.element.dispatchEvent(new CustomEvent(CHANGED, { bubbles: true }));
    }
  }

  /** Shows the first example where no text is there. */
  open() {
    const isEmpty = [...this.fields.values()].every((one) => one.tagName !== "TEXTAREA" || !one.value);
    if (isEmpty) this.element.querySelector(".example").click();
    const act = this.#due;
    this.#due = null;
    if (act) this.whenShown(act);
  }

  close() {
    clearTimeout(this.#typing);
  }

  #wait(event) {
    if (event.isComposing) return;
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.whenShown(this.run), TYPING_MILLISECONDS);
  }
}

/** @returns {string} */
function valueOf(field) {
  return field.type === "checkbox" ? String(field.checked) : field.value;
}

/** The button that sends at once. */
export function runButton() {
  return h("button", { class: "primary", t: "page.run" });
}

/** The button, and the choice to cut long texts. @param {string} name of the panel */
export function runControls(name) {
  return h("div", { class: "run" }, checkBox("page.truncate", `${name}-truncate`), runButton());
}

/** A box to tick. @param {string} key of its text */
export function checkBox(key, id) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", id }), h("span", { t: key }));
}

/** The title of a panel and what it is for. @param {string} name */
export function makeHeader(name) {
  return h("header", { class: "panel-header" }, h("h1", { id: `title-${name}`, t: `${name}.title` }),
    h("p", { class: "lead", t: `${name}.help` }));
}

/**
 * Buttons with the examples of the page's language. An example stays in the fields until they are changed; when the
 * language changes, the first example of the other language takes its place.
 * @param {Record<"en" | "zh", any[]>} examples @param {(example: any) => string} write
 * @param {(example: any) => void} choose @param {() => string} read what the fields hold, as `write` writes it
 */
export function makeExamples(examples, write, choose, read) {
  const list = h("div", { class: "examples", role: "group", label: "page.examples" });
  const show = () => list.replaceChildren(h("span", { class: "muted small", t: "page.examples" }), ...examples[currentLanguage()].map((example) =>
    button({ class: "example" }, () => choose(example), write(example))));
  onLanguage(() => {
    const unchanged = Object.values(examples).flat().some((one) => write(one) === read());
    show();
    if (unchanged) choose(examples[currentLanguage()][0]);
  });
  show();
  return list;
}

/**
 * Names with their scores, as bars.
 * @param {string} title @param {[string, number][]} scores @param {boolean} isShare whether each is a probability
 */
export function scoreList(title, scores, isShare) {
  const values = scores.map(([, score]) => score);
  const [low, most] = [Math.min(...values, 0), Math.max(...values, 1e-12)];
  const rows = scores.map(([name, score], i) => h("li", { class: "share" }, h("span", {}, name),
    bar(isShare ? score : (score - low) / (most - low), i ? "" : "yes"),
    h("span", { class: "figure" }, isShare ? percent(score) : number(score, { maximumSignificantDigits: 3 }))));
  return h("div", { class: "card" }, h("h2", { t: title }), h("ol", { class: "bars" }, ...rows));
}
