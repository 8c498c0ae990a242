/** Attention as lines between the tokens, for a layer and a head. Every head of the layer is a small picture too. */

import { button, field, h, select, setStyle, svg } from "../dom.js";
import { Runner } from "../panel.js";
import { number, percent } from "../texts.js";
import { kindOf } from "../tokens.js";

const LEAST_WEIGHT = 0.02; // thinner lines are not drawn
const ROLLOUT = "rollout";

export class Attention {
  /** @param {any} info of the model @param {import("../request_view.js").RequestView} view */
  constructor(info, view) {
    const layers = Array.from({ length: info.sizes.layers }, (_, i) => [i, ["attention.layer.nth", { n: i + 1 }]]);
    this.layer = select([...layers, [ROLLOUT, "attention.rollout"]], () => this.#ask(), { id: "inside-layer" });
    this.chosen = h("input", { type: "hidden", id: "inside-head", value: "" }); // the head's number; "": their mean
    this.figure = h("div", { class: "result", "aria-live": "polite", "aria-busy": "false" });
    this.matrices = [];
    this.isOpen = false; // the first request of a process opens the graph of the attention
    this.runner = new Runner(this.figure, view, { isFurther: true });
    this.element = h("div", { class: "card", hidden: true }, h("h2", { t: "attention.title" }),
      h("p", { class: "muted", t: "attention.help" }), h("div", { class: "fields" }, field("attention.layer", this.layer), this.chosen),
      this.figure);
    this.most = info.limits.attention;
    this.token = null; // the one whose row is held; null: all of them
    this.word = null; // whose row is held once it is there
  }

  /** null: the mean of the heads */
  get head() {
    const head = Number(this.chosen.value) - 1;
    return this.chosen.value && head < this.matrices.length ? head : null;
  }

  /** What the next run opens on. @param {{layer: number, head: number, word: string}} focus counted from 1 */
  focus({ layer, head, word }) {
    if (this.layer.querySelector(`option[value="${layer - 1}"]`)) this.layer.value = String(layer - 1);
    this.chosen.value = String(head);
    this.word = word;
  }

  clear() {
    this.runner.stop();
    this.element.hidden = true;
  }

  /** @param {any} inputs as in the request of /tokenize @param {number} count of tokens */
  run(inputs, count) {
    Object.assign(this, { inputs, token: null, matrices: [] });
    this.element.hidden = false;
    if (count > this.most) this.runner.say(["attention.long", { count: number(count), most: this.most }]);
    else this.#ask();
  }

  #ask() {
    const isRollout = this.layer.value === ROLLOUT;
    const body = { inputs: this.inputs, layers: isRollout ? null : [Number(this.layer.value)], heads: null,
      reduce: isRollout ? ROLLOUT : null };
    if (!this.isOpen) this.figure.replaceChildren(h("p", { class: "empty", t: "attention.opening" }));
    this.runner.run("/attention", body, (value) => {
      this.isOpen = true;
      this.pieces = value.pieces;
      this.matrices = isRollout ? [] : value.attention[0];
      this.mean = isRollout ? value.attention : meanOf(this.matrices);
      this.drawing = h("div", { class: "attention" });
      this.heads = h("div", { class: "heads", role: "group", label: "attention.heads" }, ...this.#headButtons());
      const held = this.pieces.findLastIndex(({ text }) => text === this.word);
      this.token = held >= 0 ? held : null;
      this.word = null;
      this.#choose(this.head);
      return [isRollout ? null : this.heads, this.drawing];
    });
  }

  #headButtons() {
    return [null, ...this.matrices.keys()].map((head) => {
      const key = head === null ? "attention.mean" : ["attention.head.nth", { n: head + 1 }];
      const matrix = head === null ? this.mean : this.matrices[head];
      return button({ class: "head", "aria-pressed": "false" }, () => this.#choose(head), thumbnail(matrix), h("span", { t: key }));
    });
  }

  #choose(head) {
    this.chosen.value = head === null ? "" : String(head + 1);
    [...this.heads.children].forEach((one, i) => one.setAttribute("aria-pressed", String(i === (head === null ? 0 : head + 1))));
    this.#draw();
  }

  #draw() {
    this.matrix = this.head === null ? this.mean : this.matrices[this.head];
    const hold = (i) => {
      this.token = this.token === i ? null : i;
      this.#light(this.token);
    };
    const left = this.pieces.map((piece, i) => h("li", { on: { pointerenter: () => this.#light(i), pointerleave: () => this.#light(this.token) } },
      button({ class: `box ${kindOf(piece)}`, label: ["attention.token", { token: textOf(piece) }] }, () => hold(i), textOf(piece))));
    const right = this.pieces.map((piece) => h("li", {}, h("span", { class: `box ${kindOf(piece)}` }, textOf(piece)),
      h("span", { class: "figure" })));
    this.lines = h("div");
    this.drawing.replaceChildren(h("ol", { class: "from" }, ...left), this.lines, h("ol", { class: "to" }, ...right));
    setStyle(this.drawing, { "--tokens": this.matrix.length });
    this.#light(this.token);
  }

  /** Shows what one token reads, with percentages; null: what all of them do. */
  #light(token) {
    this.drawing.classList.toggle("chosen", token !== null);
    this.drawing.querySelectorAll(".from button").forEach((one, i) => one.setAttribute("aria-pressed", String(i === this.token)));
    this.drawing.querySelectorAll(".to li").forEach((one, i) => {
      const weight = token === null ? 0 : this.matrix[token][i];
      setStyle(one.firstChild, { "--weight": weight });
      one.lastChild.textContent = token !== null && weight >= LEAST_WEIGHT ? percent(weight) : "";
    });
    this.lines.replaceChildren(lines(this.matrix, token));
  }
}

function textOf({ piece, text }) {
  return piece || text;
}

/** @param {number[][][]} matrices one for each head */
function meanOf(matrices) {
  return matrices[0].map((row, i) => row.map((_, j) => matrices.reduce((sum, one) => sum + one[i][j], 0) / matrices.length));
}

/** A line for each weight of a query, or of the one chosen. */
function lines(matrix, chosen) {
  const size = matrix.length;
  const drawn = matrix.flatMap((row, i) => (chosen === null || chosen === i ? row.map((weight, j) => [i, j, weight]) : []))
    .filter(([, , weight]) => weight >= LEAST_WEIGHT)
    .map(([i, j, weight]) => svg("line", { x1: 0, y1: i + 0.5, x2: 1, y2: j + 0.5, "vector-effect": "non-scaling-stroke",
      "stroke-width": (0.8 + 3 * weight).toFixed(2), "stroke-opacity": Math.min(1, 0.1 + 1.2 * weight).toFixed(3) }));
  return svg("svg", { class: "lines", viewBox: `0 0 1 ${size}`, preserveAspectRatio: "none", role: "img",
    label: "attention.lines" }, ...drawn);
}

/** The matrix as a picture, a dot for each weight. */
function thumbnail(matrix) {
  const size = matrix.length;
  const canvas = h("canvas", { width: size, height: size, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  matrix.flat().forEach((weight, i) => image.data.set([112, 92, 214, 255 * Math.sqrt(weight)], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}
