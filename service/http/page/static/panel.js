/** What all panels share: their frame, the run of a request with its states, the row of examples. */

import { RequestError, post } from "./api.js";
import { button, h } from "./dom.js";
import { RequestView } from "./request_view.js";
import { currentLanguage, onLanguage } from "./texts.js";

/**
 * @typedef {object} Panel
 * @property {HTMLElement} element
 * @property {() => void} open runs when the panel is shown
 * @property {() => void} [close] runs when another panel is shown
 */

export const UNAUTHORIZED = "unauthorized"; // the event of a request that the service refused for its key

/** One request at a time: a later one ends the one before it. */
export class Runner {
  /**
   * @param {HTMLElement} result @param {RequestView} view
   * @param {{isFurther?: boolean}} [options] isFurther: its requests belong to a run of another one
   */
  constructor(result, view, { isFurther = false } = {}) {
    Object.assign(this, { result, view, isFurther, running: null });
  }

  /**
   * Sends the request and lets `show` put its answer into the result.
   * @param {string} path @param {any} body @param {(value: any) => (Node | null)[]} show
   */
  async run(path, body, show) {
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
      this.#settle(errorCard(error));
      if (error.status === 401) this.result.dispatchEvent(new CustomEvent(UNAUTHORIZED, { bubbles: true }));
    }
  }

  /** Shows a sentence in place of a result; sends nothing. */
  say(key) {
    this.stop();
    this.#settle(h("p", { class: "empty", t: key }));
  }

  stop() {
    this.running?.abort();
    this.running = null;
  }

  #settle(...children) {
    this.result.replaceChildren(...children.filter(Boolean));
    this.result.setAttribute("aria-busy", "false");
  }
}

/** @param {RequestError} error */
function errorCard({ status, code, message, requestId, retryAfter }) {
  const title = status === 0 ? "error.unreachable" : status === 429 ? ["error.busy", { seconds: retryAfter || 1 }]
    : status >= 500 && status !== 501 ? "error.failed" : "error.title";
  const details = [code && `${status} ${code}`].filter(Boolean).join("");
  return h("div", { class: "error", role: "alert" }, h("p", { class: "error-title", t: title }), h("p", {}, message),
    h("p", { class: "muted" }, details, requestId && " · ", requestId && h("span", { t: ["error.id", { id: requestId }] })));
}

/** A panel's frame: title, form and result at the left, the request at the right. */
export class Frame {
  #due = null; // what to run when the panel is shown
  #latest = null;

  /** @param {string} name of its texts @param {...Node} controls */
  constructor(name, ...controls) {
    this.view = new RequestView();
    this.result = h("div", { class: "result", "aria-live": "polite", "aria-busy": "false" });
    this.runner = new Runner(this.result, this.view);
    this.work = h("div", { class: "work" }, h("div", { class: "card" }, ...controls), this.result);
    this.element = h("section", { class: "panel", hidden: true, id: `panel-${name}`, "aria-labelledby": `title-${name}` },
      makeHeader(name), h("div", { class: "columns" }, this.work, this.view.element));
    this.work.addEventListener(UNAUTHORIZED, () => (this.#due = this.#latest));
  }

  /** Runs `act` now, or when the panel is shown the next time. */
  whenShown(act) {
    this.#latest = act;
    if (this.element.hidden) this.#due = act;
    else act();
  }

  open() {
    const act = this.#due;
    this.#due = null;
    act?.();
  }
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
