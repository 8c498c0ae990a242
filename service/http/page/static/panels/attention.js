/** Attention as lines between the tokens, for a layer and a head. Every head of the layer is a small picture too. */

import { button, field, h, select, setStyle, svg } from "../dom.js";
import { Runner } from "../panel.js";
import { number } from "../texts.js";
import { kindOf } from "../tokens.js";

const MOST_TOKENS = 128; // where /info does not say it
const LEAST_WEIGHT = 0.02; // thinner lines are not drawn
const ROLLOUT = "rollout";

export class Attention {
  /** @param {any} info of the model @param {import("../request_view.js").RequestView} view */
  constructor(info, view) {
    const layers = Array.from({ length: info.sizes.layers }, (_, i) => [i, ["attention.layer.nth", { n: i + 1 }]]);
    this.layer = select([...layers, [ROLLOUT, "attention.rollout"]], () => this.#ask(), { id: "attention-layer" });
    this.figure = h("div", { class: "result", "aria-live": "polite", "aria-busy": "false" });
    this.runner = new Runner(this.figure, view, { isFurther: true });
    this.element = h("div", { class: "card", hidden: true }, h("h2", { t: "attention.title" }),
      h("p", { class: "muted", t: "attention.help" }), h("div", { class: "fields" }, field("attention.layer", this.layer)),
      this.figure);
    this.most = info.limits.attention ?? MOST_TOKENS;
    this.head = null; // null: their mean
    this.token = null; // null: all of them
  }

  clear() {
    this.runner.stop();
    this.element.hidden = true;
  }

  /** @param {any} inputs as in the request of /tokenize @param {number} count of tokens */
  run(inputs, count) {
    Object.assign(this, { inputs, token: null });
    this.element.hidden = false;
    if (count > this.most) this.runner.say(["attention.long", { count: number(count), most: this.most }]);
    else this.#ask();
  }

  #ask() {
    const isRollout = this.layer.value === ROLLOUT;
    const body = { inputs: this.inputs, layers: isRollout ? null : [Number(this.layer.value)], heads: null,
      reduce: isRollout ? ROLLOUT : null };
    this.runner.run("/attention", body, (value) => {
      this.pieces = value.pieces;
      this.matrices = isRollout ? [] : value.attention[0];
      this.mean = isRollout ? value.attention : meanOf(this.matrices);
      this.drawing = h("div", { class: "attention" });
      this.heads = h("div", { class: "heads", role: "group", label: "attention.heads" }, ...this.#headButtons());
      this.#choose(this.head < this.matrices.length ? this.head : null);
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
    this.head = head;
    [...this.heads.children].forEach((one, i) => one.setAttribute("aria-pressed", String(i === (head === null ? 0 : head + 1))));
    this.#draw();
  }

  #draw() {
    const matrix = this.head === null ? this.mean : this.matrices[this.head];
    const size = matrix.length;
    const left = this.pieces.map((piece, i) => h("li", {}, button({ class: `box ${kindOf(piece)}`,
      label: ["attention.token", { token: textOf(piece) }], "aria-pressed": String(this.token === i) }, () => {
      this.token = this.token === i ? null : i;
      this.#draw();
    }, textOf(piece))));
    const right = this.pieces.map((piece, i) => h("li", {}, h("span", { class: `box ${kindOf(piece)}`,
      style: this.token === null ? {} : { "--weight": matrix[this.token][i] } }, textOf(piece))));
    const focused = this.drawing.contains(document.activeElement) ? this.token : null;
    this.drawing.classList.toggle("chosen", this.token !== null);
    this.drawing.replaceChildren(h("ol", { class: "from" }, ...left), lines(matrix, this.token), h("ol", {}, ...right));
    setStyle(this.drawing, { "--tokens": size });
    if (focused !== null) left[focused].firstChild.focus();
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
