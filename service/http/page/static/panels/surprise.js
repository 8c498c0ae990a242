/** How surprising: each word of a text, or of two, coloured by its probability given the others. */

import { RequestError, post } from "../api.js";
import { bar } from "../charts.js";
import { button, field, h, setStyle, textArea } from "../dom.js";
import { SURPRISES } from "../examples.js";
import { Frame, makeExamples, runButton } from "../panel.js";
import { codePoints, number, percent } from "../texts.js";
import { RANKS, isWord } from "../tokens.js";

const MOST_BITS = 16; // the deepest colour
const CANDIDATES = 5;

/** @typedef {{start: number, stop: number, bits: number, pieces: number}} Word characters (code points), surprise */

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeSurprise(info) {
  const first = textArea({ id: "surprise-first", class: "first" });
  const second = textArea({ id: "surprise-second", class: "second" });
  const examples = makeExamples(SURPRISES, ([a, b]) => [a, b].filter(Boolean).join(" / "), ([a, b]) => {
    [first.value, second.value] = [a, b];
    frame.whenShown(run);
  }, () => [first.value, second.value].filter(Boolean).join(" / "));
  const frame = new Frame("surprise", run, h("div", { class: "pair" },
    field("surprise.first", first, { class: "field first" }), field("surprise.second", second, { class: "field second" })),
  h("div", { class: "fields" }, runButton()), examples);
  /** @type {WeakMap<HTMLElement, AbortController>} the last request about a word, of each text */
  const asked = new WeakMap();

  function run() {
    const inputs = [first.value, second.value].filter((one) => one.trim());
    if (!inputs.length) return frame.runner.say("surprise.empty");
    return frame.runner.run("/score", { inputs }, (value) => {
      const cards = [value].flat().map((scored, i) => showText(inputs[i], scored));
      return [h("div", { class: "candidates" }, ...cards)];
    });
  }

  /** The text in colours, its surprise, and the word that surprises most. */
  function showText(text, scored) {
    const slice = codePoints(text);
    const words = wordsOf(scored.tokens);
    const details = h("div", { class: "result", "aria-live": "polite" });
    let at = 0;
    const parts = words.flatMap((word) => {
      const own = slice(word.start, word.stop);
      const label = ["surprise.word", { word: own, bits: number(word.bits, { maximumFractionDigits: 1 }) }];
      const element = button({ class: "surprising", label, "aria-pressed": "false" }, () => choose(word, element), own);
      setStyle(element, { "--share": Math.min(1, word.bits / MOST_BITS) });
      const before = slice(at, word.start);
      at = word.stop;
      return [before, element];
    });
    const choose = (word, element) => {
      element.parentElement.querySelectorAll("[aria-pressed]").forEach((one) => one.setAttribute("aria-pressed", String(one === element)));
      return explain(slice, word, details);
    };
    const paragraph = h("p", { class: "tagged" }, ...parts, slice(at));
    const most = words.reduce((best, one) => (best && best.bits >= one.bits ? best : one), null);
    if (most) choose(most, paragraph.querySelectorAll("button")[words.indexOf(most)]);
    const sums = { bits: number(-scored.pseudo_log_likelihood / Math.LN2, { maximumFractionDigits: 1 }),
      perplexity: number(scored.pseudo_perplexity, { maximumSignificantDigits: 3 }) };
    return h("div", { class: "card" }, h("h2", { t: ["surprise.sum", sums] }), paragraph, details);
  }

  /** What the model expects in the place of a word, and the word's own rank there. */
  async function explain(slice, { start, stop, bits, pieces }, place) {
    asked.get(place)?.abort();
    const running = new AbortController();
    asked.set(place, running);
    const word = slice(start, stop);
    const heading = h("h3", { t: ["surprise.expected", { word, share: percent(2 ** -bits) }] });
    const inputs = [slice(0, start), ...Array(pieces).fill(info.mask_token), slice(stop)].join("");
    try {
      const { value } = await post("/fill-mask", { inputs, top_k: RANKS }, running.signal);
      const list = pieces === 1 ? value : [];
      const rank = list.findIndex((one) => isWord(one, word)) + 1;
      const rows = list.slice(0, CANDIDATES).map(({ token_str: one, score }) => h("li", { class: "share" }, h("span", {}, one.trim()),
        bar(score, "mask"), h("span", { class: "figure" }, percent(score))));
      place.replaceChildren(heading, h("p", { class: "muted small", t: pieces > 1 ? ["surprise.pieces", { pieces }]
        : rank ? ["mask.rank", { rank }] : ["mask.rank.below", { rank: RANKS }] }), h("ol", { class: "bars" }, ...rows));
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof RequestError)) throw error;
      if (error.name !== "AbortError") place.replaceChildren(heading);
    }
  }

  return frame;
}

/** The tokens of /score as words. @returns {Word[]} */
function wordsOf(tokens) {
  const words = [];
  let last = null;
  for (const { word, start, stop, log_probability: log } of tokens) {
    if (words.length && word !== null && word === last) {
      const own = words.at(-1);
      Object.assign(own, { stop, bits: own.bits - log / Math.LN2, pieces: own.pieces + 1 });
    } else words.push({ start, stop, bits: -log / Math.LN2, pieces: 1 });
    last = word;
  }
  return words;
}
