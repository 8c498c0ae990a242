/** Look inside: the tokens of a text with the three embeddings that are added up; attention where the model has it. */

import { field, h, textArea } from "../dom.js";
import { INSIDE } from "../examples.js";
import { Frame, makeExamples, runButton } from "../panel.js";
import { number } from "../texts.js";
import { kindOf } from "../tokens.js";
import { Attention } from "./attention.js";

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeInside(info) {
  const first = textArea({ id: "inside-first", class: "first" });
  const second = textArea({ id: "inside-second", class: "second" });
  const examples = makeExamples(INSIDE, ([a, b]) => [a, b].filter(Boolean).join(" + "), ([a, b, focus]) => {
    [first.value, second.value] = [a, b];
    attention?.focus(focus);
    frame.whenShown(run);
  }, () => [first.value, second.value].filter(Boolean).join(" + "));
  const frame = new Frame("inside", run, h("div", { class: "pair" },
    field("page.text", first, { class: "field first" }), field("page.second", second, { class: "field second" })),
  h("div", { class: "fields" }, runButton()), examples);
  const attention = info.heads.includes("attention") ? new Attention(info, frame.view) : null;
  if (attention) frame.work.append(attention.element);

  function run() {
    attention?.clear();
    if (!first.value.trim()) return frame.runner.say("page.empty");
    const inputs = second.value.trim() ? { text: first.value, text_pair: second.value } : first.value;
    return frame.runner.run("/tokenize", { inputs, details: true, mask: true }, ([tokens]) => {
      attention?.run(inputs, tokens.length);
      return [showTokens(tokens, info.limits.tokens)];
    });
  }

  return frame;
}

/** A table: a column for each token; the rows are what BERT adds up, then the id. */
function showTokens(tokens, most) {
  const row = (key, kind, cell, sign) => h("tr", { class: kind }, h("th", { scope: "row" },
    h("span", { class: "sign", "aria-hidden": "true" }, sign), h("span", { t: key })), ...tokens.map(cell));
  const box = (kind, ...content) => h("td", {}, h("span", { class: `box ${kind}` }, ...content));
  const ofSegment = ({ segment }) => (segment ? "second" : "first");
  const table = h("table", { class: "tokens" },
    row("inside.row.piece", "pieces", (one) => box(`${kindOf(one)} ${one.unknown ? "unknown" : ""}`, one.piece), ""),
    row("inside.row.segment", "segments", (one) => box(ofSegment(one), "E", h("sub", {}, one.segment ? "B" : "A")), "+"),
    row("inside.row.position", "positions", (one) => box("position", "E", h("sub", {}, String(one.position))), "+"),
    row("inside.row.id", "ids", (one) => h("td", { class: "id" }, String(one.id)), ""));
  const kinds = [["first", "inside.first.segment"]];
  if (tokens.some(({ segment }) => segment)) kinds.push(["second", "inside.second.segment"]);
  kinds.push(["special", "inside.special"]);
  if (tokens.some(({ unknown }) => unknown)) kinds.push(["unknown", "inside.unknown"]);
  return h("div", { class: "card" },
    h("div", { class: "row-heading" }, h("h2", { t: ["inside.tokens", { count: number(tokens.length), most: number(most) }] }),
      h("ul", { class: "legend" }, ...kinds.map(([kind, key]) =>
        h("li", {}, h("span", { class: `swatch box ${kind}`, "aria-hidden": "true" }), h("span", { t: key }))))),
    h("div", { class: "scroll", tabindex: "0", role: "region", label: "inside.table" }, table));
}
