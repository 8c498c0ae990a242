/** Fill the mask: words hidden by a click, candidates as bars, words compared. */

import { RequestError, post } from "../api.js";
import { bar } from "../charts.js";
import { button, field, h, select, splitWords, textArea } from "../dom.js";
import { MASK } from "../examples.js";
import { Frame, checkBox, makeExamples, runButton, truncateSwitch } from "../panel.js";
import { percent } from "../texts.js";
import { RANKS, isWord, plain } from "../tokens.js";

// a character of a script without spaces, or a word with the apostrophes and hyphens inside it
const WORD = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]|[[\p{L}\p{M}\p{N}]--[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]]+(?:['’\-][[\p{L}\p{M}\p{N}]--[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]]+)*/gv;
const COUNTS = [5, 10, 20];
const MASKS = /_{2,}|\[mask\]|<mask>/giu; // what people write for a mask, beside the model's own

/** @typedef {{kind: "word" | "mask" | "other", text: string, start: number, end: number}} Part of a sentence */

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeFillMask(info) {
  return new FillMask(info.mask_token).frame;
}

class FillMask {
  constructor(mask) {
    this.mask = mask;
    this.filled = false; // whether a candidate was taken
    this.area = textArea({ id: "mask-text", on: { input: () => this.#onInput() } });
    this.targets = h("input", { type: "text", hint: "mask.targets.hint", id: "mask-targets", autocomplete: "off" });
    this.count = select(COUNTS.map((n) => [n]), () => this.#ask(), { id: "mask-count" });
    this.words = h("input", { type: "hidden", id: "mask-words", value: "[]" }); // behind the masks; "" where it is not known
    this.joint = checkBox("mask.joint", "mask-joint");
    this.truncate = truncateSwitch("mask-truncate");
    this.sentence = h("div", { class: "sentence", role: "group", label: "mask.hide" });
    this.frame = new Frame("mask", () => this.#run(), field("mask.text", this.area), this.words,
      h("div", { class: "fields" }, field("mask.targets", this.targets, { class: "field wide" }),
        field("mask.count", this.count), this.joint, this.truncate.element, runButton()),
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
    const body = { inputs, top_k: Number(this.count.value), ...this.truncate.field() };
    if (this.joint.firstChild.checked && masks > 1) return this.#runJoint({ ...body, joint: true });
    if (targets.length) Object.assign(body, { targets, top_k: targets.length });
    return runner.run("/fill-mask", body, (value) => {
      const lists = masks === 1 ? [value] : value;
      this.#showSentence(lists.map((list) => list[0]?.token_str));
      const cards = lists.map((list, i) => this.#candidates(list, i, targets.length > 0));
      this.#rank(body, lists, cards);
      return [h("div", { class: "candidates" }, ...cards)];
    });
  }

  /** Candidates for all masks at once: each fills the whole sentence. */
  #runJoint(body) {
    return this.frame.runner.run("/fill-mask", body, (list) => {
      this.#showSentence(list[0]?.texts);
      const rows = list.map(({ score, sequence }) => h("li", {}, button({ class: "candidate joint",
        label: ["mask.take", { word: sequence, share: percent(score) }] }, () => this.#takeAll(sequence),
      h("span", { class: "candidate-word" }, sequence), bar(score, "mask"), h("span", { class: "figure" }, percent(score)))));
      return [h("div", { class: "card" }, h("h2", { t: "mask.sentences" }), h("ol", { class: "bars" }, ...rows), scaleNote())];
    });
  }

  #takeAll(sequence) {
    this.hidden = [];
    this.filled = true;
    this.area.value = sequence;
    this.#ask();
  }

  /** Adds the probability and the rank of the hidden words that are not among the candidates. */
  async #rank(body, lists, cards) {
    const missing = this.hidden.map((word, i) => [word, i]).filter(([word, i]) => word && !lists[i].some((one) => isWord(one, word)));
    if (!missing.length) return;
    const { signal } = this.frame.runner.running;
    const send = (more) => post("/fill-mask", { ...body, ...more }, signal).then(({ value }) => (lists.length === 1 ? [value] : value));
    try {
      const [scored, ranked] = await Promise.all([send({ targets: [...new Set(missing.map(([word]) => word))], top_k: missing.length }),
        send({ targets: undefined, top_k: RANKS })]);
      for (const [word, i] of missing) {
        const own = scored[i].find((one) => one.target === word || isWord(one, word));
        if (!own) continue;
        const rank = ranked[i].findIndex((one) => isWord(one, word)) + 1;
        cards[i].querySelector(".bars").append(h("li", { class: "share own" }, h("span", {}, word, " ", h("span", { class: "badge",
          t: rank ? ["mask.rank", { rank }] : ["mask.rank.below", { rank: RANKS }] })), bar(own.score, "mask"),
        h("span", { class: "figure" }, percent(own.score))));
      }
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof RequestError)) throw error; // the candidates stay
    }
  }

  /** The sentence's words as buttons, the best candidates in their places. */
  #showSentence(best = []) {
    let n = 0;
    const parts = split(this.area.value, this.mask).map((part) => {
      if (part.kind === "other") return part.text;
      if (part.kind === "word") {
        return button({ class: "word", label: ["mask.hide.word", { word: part.text }] }, () => this.#hide(part), part.text);
      }
      const [i, word] = [n, this.hidden[n] ?? ""];
      n += 1;
      const label = word ? ["mask.slot", { n: n, word }] : ["mask.slot.empty", { n: n }];
      return button({ class: "slot", label }, () => this.#restore(part, i), plain(best[i] ?? "…"));
    });
    this.sentence.replaceChildren(...parts);
  }

  #candidates(list, index, compared) {
    const key = compared ? "mask.compared" : this.#masks().length === 1 ? "mask.one" : ["mask.nth", { n: index + 1 }];
    const original = this.hidden[index] ?? "";
    const rows = list.map((candidate) => {
      const { score, token_str: word } = candidate;
      const shown = plain(word);
      const label = ["mask.take", { word: shown, share: percent(score) }];
      return h("li", {}, button({ class: "candidate", label }, () => this.#take(index, word),
        h("span", { class: "candidate-word" }, shown,
          original && isWord(candidate, original) && h("span", { class: "badge", t: "mask.original" })),
        bar(score, "mask"), h("span", { class: "figure" }, percent(score))));
    });
    return h("div", { class: "card" }, h("h2", { t: key }), h("ol", { class: "bars" }, ...rows), scaleNote());
  }

  #hide({ text, start, end }) {
    const before = this.#masks().filter((one) => one.start < start).length;
    this.hidden = this.hidden.toSpliced(before, 0, text);
    this.#replace(start, end, this.mask);
  }

  #restore({ start, end }, index) {
    const word = this.hidden[index];
    if (!word) return;
    this.hidden = this.hidden.toSpliced(index, 1);
    this.#replace(start, end, word);
  }

  /** A piece that continues a word joins what stands before it. */
  #take(index, word) {
    const { start, end } = this.#masks()[index];
    const isSuffix = word.startsWith("##") && /\s/.test(this.area.value[start - 1] ?? "");
    this.hidden = this.hidden.toSpliced(index, 1);
    this.filled = true;
    this.#replace(isSuffix ? start - 1 : start, end, plain(word));
  }

  #replace(start, end, text) {
    this.area.value = this.area.value.slice(0, start) + text + this.area.value.slice(end);
    this.#ask();
  }
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
