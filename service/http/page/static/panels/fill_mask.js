/** Fill the mask: words hidden by a click, candidates as bars, words compared. */

import { RequestError, post } from "../api.js";
import { bar } from "../charts.js";
import { button, field, h, select, splitWords, textArea } from "../dom.js";
import { MASK } from "../examples.js";
import { Frame, checkBox, makeExamples, runControls } from "../panel.js";
import { percent } from "../texts.js";
import { askPlace, candidateRows, isForeign, isWord, plain, rankBadge } from "../tokens.js";

// a character of a script without spaces, or a word with the apostrophes and hyphens inside it
const WORD = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]|[[\p{L}\p{M}\p{N}]--[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]]+(?:['’\-][[\p{L}\p{M}\p{N}]--[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]]+)*/gv;
const COUNTS = [5, 10, 20];
const MASKS = /_{2,}|\[mask\]|<mask>/giu; // what people write for a mask, beside the model's own

/** @typedef {{kind: "word" | "mask" | "other", text: string, start: number, end: number}} Part of a sentence */

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeFillMask(info) {
  return new FillMask(info).frame;
}

class FillMask {
  constructor(info) {
    this.info = info;
    this.mask = info.mask_token;
    /** @type {WeakMap<object, HTMLElement>} where a candidate's badges stand */
    this.places = new WeakMap();
    this.filled = false; // whether a candidate was taken
    this.area = textArea({ id: "mask-text", on: { input: () => this.#onInput() } });
    this.targets = h("input", { type: "text", hint: "mask.targets.hint", id: "mask-targets", autocomplete: "off" });
    this.count = select(COUNTS.map((n) => [n]), () => this.#ask(), { id: "mask-count" });
    this.words = h("input", { type: "hidden", id: "mask-words", value: "[]" }); // behind the masks; "" where it is not known
    this.joint = checkBox("mask.joint", "mask-joint");
    this.sentence = h("div", { class: "sentence", role: "group", label: "mask.hide" });
    this.frame = new Frame("mask", () => this.#run(), field("mask.text", this.area), this.words,
      h("div", { class: "fields" }, field("mask.targets", this.targets, { class: "field wide" }),
        field("page.candidates", this.count), this.joint, runControls("mask")),
      makeExamples(MASK, (example) => this.#write(example), (example) => this.#choose(example), () => this.area.value));
    this.frame.work.insertBefore(h("div", { class: "sentence-box" },
      h("p", { class: "muted small", t: "mask.hide" }), this.sentence), this.frame.result);
  }

  /** @returns {string[]} */
  get hidden() {
    return JSON.parse(this.words.value);
  }

  set hidden(words) {
    this.words.value = JSON.stringify(words);
  }

  #write({ text }) {
    return text.replaceAll("{mask}", this.mask);
  }

  #choose(example) {
    this.area.value = this.#write(example);
    this.hidden = example.hidden;
    this.filled = false;
    this.targets.value = example.targets ?? "";
    this.#ask();
  }

  #onInput() {
    this.filled = false;
    if (this.#masks().length !== this.hidden.length) this.hidden = this.#masks().map(() => "");
    this.#showSentence();
  }

  #masks() {
    return split(this.area.value, this.mask).filter(({ kind }) => kind === "mask");
  }

  #ask() {
    this.frame.whenShown(this.frame.run);
  }

  #run() {
    const masks = this.#masks().length;
    const runner = this.frame.runner;
    this.#showSentence();
    if (!this.area.value.trim()) return runner.say("mask.empty");
    if (!masks) return runner.say(this.filled ? "mask.done" : "mask.none");
    const inputs = this.area.value.replaceAll(MASKS, this.mask);
    const targets = splitWords(this.targets.value);
    const body = { inputs, top_k: Number(this.count.value), ...this.frame.truncation };
    if (this.joint.firstChild.checked && masks > 1) return this.#runJoint({ ...body, joint: true });
    if (targets.length) Object.assign(body, { targets, top_k: targets.length });
    return runner.run("/fill-mask", body, (value) => {
      const lists = (masks === 1 ? [value] : value).map((list) => list.map(asShown).toSorted((a, b) => a.pieces - b.pieces));
      const written = this.area.value.replaceAll(maskPattern(this.mask), "") + this.hidden.join("");
      const text = targets.length ? "" : written; // compared words may be of any script
      this.#showSentence(lists.map((list) => (list.find(({ word }) => !isForeign(word, text)) ?? list[0]).word));
      const cards = lists.map((list, i) => this.#candidates(list, i, text));
      this.#rank(body, lists, cards);
      return [h("div", { class: "candidates" }, ...cards)];
    });
  }

  /** Candidates for all masks at once: each fills the whole sentence. */
  #runJoint(body) {
    return this.frame.runner.run("/fill-mask", body, (list) => {
      const [text, runs] = [this.area.value, runsOf(this.area.value, this.mask)];
      const fits = list[0].texts.length === runs.length; // not if the tokenizer groups the masks differently
      this.#showSentence(fits ? runs.flatMap(({ masks }, i) => spread(list[0].texts[i], masks)) : []);
      const rows = list.map(({ score, sequence, texts }) => {
        const filled = fits ? runs.reduceRight((rest, run, i) => put(rest, run, texts[i]), text) : sequence;
        return h("li", {}, button({ class: "candidate joint", label: ["mask.take", { word: filled, share: percent(score) }] },
          () => this.#takeAll(filled), h("span", { class: "candidate-word" }, filled), ...measure({ share: score })));
      });
      return [h("div", { class: "card" }, h("h2", { t: "mask.sentences" }), h("ol", { class: "bars" }, ...rows), scaleNote())];
    });
  }

  #takeAll(text) {
    this.hidden = [];
    this.#taken(0, text);
  }

  /** Adds the ranks of the compared words, or the hidden word of each mask with its rank if it is no candidate. */
  #rank({ targets, top_k: _, ...body }, lists, cards) {
    const { signal } = this.frame.runner.running;
    const ofMask = (value, i) => (lists.length === 1 ? value : value[i]);
    let ranked = null; // of each mask, asked for once
    cards.forEach(async (card, i) => {
      const hidden = this.hidden[i] ?? "";
      if (!targets && (!hidden || lists[i].some(({ word }) => isWord(word, hidden)))) return;
      try {
        const words = targets ? lists[i] : (ofMask(await askWord(hidden, body, signal), i) ?? []).map(asShown);
        if (!words.length) card.append(h("p", { class: "muted small", t: ["mask.unknown", { word: hidden }] }));
        if (!targets) card.querySelector(".bars").append(...words.map((own) => this.#row(own, i)));
        for (const own of words) {
          if (own.pieces > 1 && lists.length > 1) continue; // the other masks would be filled too
          const place = { ...body, inputs: body.inputs.replace(this.mask, this.mask.repeat(own.pieces)) };
          const candidates = own.pieces > 1 ? await askPlace(place, own.pieces, this.info, signal)
            : ofMask(await (ranked ??= askPlace(body, 1, this.info, signal)), i);
          this.places.get(own).append(rankBadge(candidates, own));
        }
      } catch (error) {
        if (error.name !== "AbortError" && !(error instanceof RequestError)) throw error; // the candidates stay
      }
    });
  }

  /** The sentence's words as buttons, the best candidates in their places. The focus stays at its place. */
  #showSentence(best = []) {
    const held = [...this.sentence.children].indexOf(document.activeElement);
    let n = 0;
    const parts = split(this.area.value, this.mask).map((part) => {
      if (part.kind === "other") return part.text;
      if (part.kind === "word") {
        return button({ class: "word", label: ["mask.hide.word", { word: part.text }] }, () => this.#hide(part), part.text);
      }
      const [i, word] = [n, this.hidden[n] ?? ""];
      n += 1;
      const label = word ? ["mask.slot", { n: n, word }] : ["mask.nth", { n: n }];
      return button({ class: "slot", label }, () => this.#restore(part, i), plain(best[i] ?? "…"));
    });
    this.sentence.replaceChildren(...parts);
    if (held >= 0) (this.sentence.children[held] ?? this.sentence.lastElementChild ?? this.area).focus();
  }

  #candidates(list, index, text) {
    const key = list[0]?.target ? "mask.compared" : this.#masks().length === 1 ? "mask.one" : ["mask.nth", { n: index + 1 }];
    return h("div", { class: "card" }, h("h2", { t: key }), candidateRows(list, text, (one) => this.#row(one, index)), scaleNote());
  }

  #row(candidate, index) {
    const { word, share } = candidate;
    const isHidden = isWord(word, this.hidden[index] ?? "");
    const place = h("span", { class: "candidate-word" }, word, isHidden && h("span", { class: "badge", t: "mask.original" }));
    this.places.set(candidate, place);
    return h("li", {}, button({ class: "candidate", label: ["mask.take", { word, share: percent(share) }] },
      () => this.#take(index, candidate), place, ...measure(candidate)));
  }

  #hide({ text, start, end }) {
    const before = this.#masks().filter((one) => one.start < start).length;
    this.hidden = this.hidden.toSpliced(before, 0, text);
    this.#fill(put(this.area.value, { start, end }, this.mask));
  }

  #restore(place, index) {
    const word = this.hidden[index];
    if (!word) return;
    this.hidden = this.hidden.toSpliced(index, 1);
    this.#fill(put(this.area.value, place, word));
  }

  #take(index, { target, token_str: word }) {
    this.hidden = this.hidden.toSpliced(index, 1);
    this.#taken(index, put(this.area.value, this.#masks()[index], target || word));
  }

  /** The text after a candidate of a mask was chosen. The focus goes to its word, because the candidates are replaced. */
  #taken(index, text) {
    this.filled = true;
    this.sentence.querySelectorAll(".slot")[index]?.focus();
    this.#fill(text);
  }

  #fill(text) {
    this.area.value = text;
    this.#ask();
  }
}

/**
 * A candidate as it is shown: a word that was asked for as it was written, with the probability of all of its pieces.
 * @returns {{word: string, share: number, pieces: number, spelled: string[]}} with the candidate's own fields
 */
function asShown(candidate) {
  const { target, token_str: word, score, pieces: spelled = [], log_probability: log } = candidate;
  const pieces = spelled.length || 1;
  return { ...candidate, word: target || plain(word), share: pieces > 1 ? Math.exp(log) : score, pieces, spelled };
}

/** A probability as a bar. That of several pieces holds for a place of as many, so it is not on the scale of the bars. */
function measure({ share, pieces }) {
  if (pieces > 1) return [h("span", { class: "figure long", t: ["mask.pieces", { share: percent(share), pieces }] })];
  return [bar(share, "mask"), h("span", { class: "figure" }, percent(share))];
}

/** A word as a candidate for each mask; empty if the vocabulary lacks it. */
async function askWord(word, body, signal) {
  const { value: [pieces] } = await post("/tokenize", { inputs: word, details: true, add_special_tokens: false }, signal);
  return pieces.some(({ unknown }) => unknown) ? [] : (await post("/fill-mask", { ...body, targets: [word], top_k: 1 }, signal)).value;
}

/** The text with a word at a place; a piece that continues a word joins what stands before it. */
function put(text, { start, end }, word) {
  const joins = word.startsWith("##") && /\s/.test(text[start - 1] ?? "");
  return text.slice(0, joins ? start - 1 : start) + plain(word) + text.slice(end);
}

/** The text of a run of masks as a word for each; the first mask has all of it if the numbers differ. */
function spread(text, masks) {
  const words = text.split(" ");
  return words.length === masks ? words : [text, ...Array(masks - 1).fill("…")];
}

/** The scale of the bars, which is the same for all. */
function scaleNote() {
  return h("p", { class: "ends", "aria-hidden": "true" }, h("span", {}, "0"), h("span", { t: "mask.scale" }), h("span", {}, "100 %"));
}

function maskPattern(mask) {
  return new RegExp(`${mask.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}|${MASKS.source}`, "giu");
}

/** @param {string} text @param {string} mask @returns {Part[]} */
export function split(text, mask) {
  const parts = [];
  let start = 0;
  const add = (kind, end) => {
    if (end > start) parts.push({ kind, text: text.slice(start, end), start, end });
    start = end;
  };
  const addWords = (limit) => {
    for (const found of text.slice(start, limit).matchAll(WORD)) words.push([start + found.index, found[0].length]);
    for (const [at, length] of words.splice(0)) {
      add("other", at);
      add("word", at + length);
    }
    add("other", limit);
  };
  const words = [];
  for (const { index, 0: found } of text.matchAll(maskPattern(mask))) {
    addWords(index);
    add("mask", index + found.length);
  }
  addWords(text.length);
  return parts;
}

/** The masks of a text in runs of neighbours: a run is filled with one text. */
export function runsOf(text, mask) {
  const runs = [];
  for (const { start, end } of split(text, mask).filter(({ kind }) => kind === "mask")) {
    const last = runs.at(-1);
    if (last && !text.slice(last.end, start).trim()) Object.assign(last, { end, masks: last.masks + 1 });
    else runs.push({ start, end, masks: 1 });
  }
  return runs;
}
