/** Fill the mask: words hidden by a click, candidates as bars, words compared. */

import { bar } from "../charts.js";
import { button, field, form, h, select, textArea } from "../dom.js";
import { MASK } from "../examples.js";
import { Frame, makeExamples } from "../panel.js";
import { percent } from "../texts.js";

// a character of a script without spaces, or a word with the apostrophes and hyphens inside it
const WORD = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]|[[\p{L}\p{M}\p{N}]--[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]]+(?:['’\-][[\p{L}\p{M}\p{N}]--[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]]+)*/gv;
const COUNTS = [5, 10, 20];

/** @typedef {{kind: "word" | "mask" | "other", text: string, start: number, end: number}} Part of a sentence */

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeFillMask(info) {
  return new FillMask(info.mask_token);
}

class FillMask {
  constructor(mask) {
    this.mask = mask;
    this.hidden = []; // the words behind the masks, in their order; "" where it is not known
    this.filled = false; // whether a candidate was taken
    this.area = textArea({ id: "mask-text", on: { input: () => this.#onInput() } });
    this.targets = h("input", { type: "text", hint: "mask.targets.hint", id: "mask-targets", autocomplete: "off" });
    this.count = select(COUNTS.map((n) => [n]), () => this.#ask());
    this.sentence = h("div", { class: "sentence", role: "group", label: "mask.hide" });
    this.frame = new Frame("mask", form(() => this.#ask(), field("mask.text", this.area),
      h("div", { class: "fields" }, field("mask.targets", this.targets, { class: "field wide" }),
        field("mask.count", this.count), h("button", { class: "primary", t: "page.run" })),
      makeExamples(MASK, (example) => this.#write(example), (example) => this.#choose(example), () => this.area.value)));
    this.frame.work.insertBefore(h("div", { class: "sentence-box" },
      h("p", { class: "muted small", t: "mask.hide" }), this.sentence), this.frame.result);
    this.element = this.frame.element;
  }

  open() {
    if (!this.area.value) this.area.form.querySelector(".example").click();
    this.frame.open();
  }

  #write({ text }) {
    return text.replaceAll("{mask}", this.mask);
  }

  #choose(example) {
    this.area.value = this.#write(example);
    this.hidden = [...example.hidden];
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
    this.frame.whenShown(() => this.#run());
  }

  #run() {
    const masks = this.#masks().length;
    const runner = this.frame.runner;
    this.#showSentence();
    if (!this.area.value.trim()) return runner.say("mask.empty");
    if (!masks) return runner.say(this.filled ? "mask.done" : "mask.none");
    const targets = this.targets.value.split(/[,，;；]/).map((word) => word.trim()).filter(Boolean);
    const body = { inputs: this.area.value, top_k: Number(this.count.value) };
    if (targets.length) Object.assign(body, { targets, top_k: targets.length });
    return runner.run("/fill-mask", body, (value) => {
      const lists = masks === 1 ? [value] : value;
      this.#showSentence(lists);
      return [h("div", { class: "candidates" }, ...lists.map((list, i) => this.#candidates(list, i, targets.length > 0)))];
    });
  }

  /** The sentence's words as buttons, the best candidates in their places. */
  #showSentence(lists = []) {
    let n = 0;
    const parts = split(this.area.value, this.mask).map((part) => {
      if (part.kind === "other") return part.text;
      if (part.kind === "word") {
        return button({ class: "word", label: ["mask.hide.word", { word: part.text }] }, () => this.#hide(part), part.text);
      }
      const [i, word] = [n, this.hidden[n] ?? ""];
      n += 1;
      const label = word ? ["mask.slot", { n: n, word }] : ["mask.slot.empty", { n: n }];
      return button({ class: "slot", label }, () => this.#restore(part, i), plain(lists[i]?.[0]?.token_str ?? "…"));
    });
    this.sentence.replaceChildren(...parts);
  }

  #candidates(list, index, compared) {
    const key = compared ? "mask.compared" : this.#masks().length === 1 ? "mask.one" : ["mask.nth", { n: index + 1 }];
    const most = Math.max(...list.map(({ score }) => score), 1e-12);
    const original = (this.hidden[index] ?? "").toLowerCase();
    const rows = list.map(({ score, token_str: word }) => {
      const shown = plain(word);
      const label = ["mask.take", { word: shown, share: percent(score) }];
      return h("li", {}, button({ class: "candidate", label }, () => this.#take(index, word),
        h("span", { class: "candidate-word" }, shown,
          original && shown.toLowerCase() === original && h("span", { class: "badge", t: "mask.original" })),
        bar(score / most, "mask"), h("span", { class: "figure" }, percent(score))));
    });
    return h("div", { class: "card" }, h("h2", { t: key }), h("ol", { class: "bars" }, ...rows));
  }

  #hide({ text, start, end }) {
    const before = this.#masks().filter((one) => one.start < start).length;
    this.hidden.splice(before, 0, text);
    this.#replace(start, end, this.mask);
  }

  #restore({ start, end }, index) {
    const word = this.hidden[index];
    if (!word) return;
    this.hidden.splice(index, 1);
    this.#replace(start, end, word);
  }

  /** A piece that continues a word joins what stands before it. */
  #take(index, word) {
    const { start, end } = this.#masks()[index];
    const isSuffix = word.startsWith("##") && /\s/.test(this.area.value[start - 1] ?? "");
    this.hidden.splice(index, 1);
    this.filled = true;
    this.#replace(isSuffix ? start - 1 : start, end, plain(word));
  }

  #replace(start, end, text) {
    this.area.value = this.area.value.slice(0, start) + text + this.area.value.slice(end);
    this.#ask();
  }
}

/** A candidate without the marks of its vocabulary: "##ing" and " the". */
function plain(word) {
  return word.replace(/^##/, "").trim() || word;
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
  for (let at = text.indexOf(mask); at >= 0; at = text.indexOf(mask, start)) {
    addWords(at);
    add("mask", at + mask.length);
  }
  addWords(text.length);
  return parts;
}
