/** How surprising: each word of a text, or of two, coloured by its probability given the others. */

import { RequestError } from "../api.js";
import { bar } from "../charts.js";
import { button, field, h, setStyle, textArea } from "../dom.js";
import { SURPRISES } from "../examples.js";
import { Frame, errorCard, makeExamples, runControls } from "../panel.js";
import { codePoints, number, percent } from "../texts.js";
import { askPlace, candidateRows, plain, rankBadge } from "../tokens.js";

const MOST_BITS = 16; // the deepest colour
const CANDIDATES = 5;

/** @typedef {{start: number, stop: number, bits: number, spelled: string[]}} Word characters (code points), surprise, pieces */

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeSurprise(info) {
  const first = textArea({ id: "surprise-first", class: "first" });
  const second = textArea({ id: "surprise-second", class: "second" });
  const examples = makeExamples(SURPRISES, ([a, b]) => [a, b].filter(Boolean).join(" / "), ([a, b]) => {
    [first.value, second.value] = [a, b];
    frame.whenShown(run);
  }, () => [first.value, second.value].filter(Boolean).join(" / "));
  const frame = new Frame("surprise", run, h("div", { class: "pair" },
    field("page.text", first, { class: "field first" }), field("surprise.second", second, { class: "field second" })),
  h("div", { class: "fields" }, runControls("surprise")), examples);
  /** @type {WeakMap<HTMLElement, AbortController>} the last request about a word, of each text */
  const asked = new WeakMap();

  function run() {
    const inputs = [first.value, second.value].filter((one) => one.trim());
    if (!inputs.length) return frame.runner.say("page.empty");
    return frame.runner.run("/score", { inputs, ...frame.truncation }, (value) => {
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
  async function explain(slice, { start, stop, bits, spelled }, place) {
    asked.get(place)?.abort();
    const running = new AbortController();
    asked.set(place, running);
    const [before, word, pieces, share] = [slice(0, start), slice(start, stop), spelled.length, 2 ** -bits];
    const heading = h("h3", { t: ["surprise.expected", { word, share: percent(share) }] });
    const inputs = before + info.mask_token.repeat(pieces) + slice(stop);
    try {
      const found = await askPlace({ inputs, ...frame.truncation }, pieces, info, running.signal);
      const nth = before.split(info.mask_token).length - 1; // a text may have masks of its own
      const list = Array.isArray(found[0]) ? found[nth] : found;
      const best = list.slice(0, CANDIDATES).map(({ token_str: one, texts, score }) => ({ word: plain(one ?? texts[nth]), score }));
      const row = (one) => (pieces > 1 ? h("li", {}, one.word) : h("li", { class: "share" }, h("span", {}, one.word),
        bar(one.score, "mask"), h("span", { class: "figure" }, percent(one.score))));
      place.replaceChildren(heading, h("p", { class: "muted small" }, rankBadge(list, { share, pieces, spelled }), " ",
        pieces > 1 && h("span", { t: ["surprise.pieces", { pieces }] })), candidateRows(best, slice(0), row));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof RequestError)) throw error;
      place.replaceChildren(heading, errorCard(error));
    }
  }

  return frame;
}

/** The tokens of /score as words. @returns {Word[]} */
function wordsOf(tokens) {
  const words = [];
  let last = null;
  for (const { word, start, stop, piece, log_probability: log } of tokens) {
    if (words.length && word !== null && word === last) {
      const own = words.at(-1);
      Object.assign(own, { stop, bits: own.bits - log / Math.LN2, spelled: [...own.spelled, piece] });
    } else words.push({ start, stop, bits: -log / Math.LN2, spelled: [piece] });
    last = word;
  }
  return words;
}
