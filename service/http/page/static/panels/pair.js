/** Next sentence: two texts and the probability that the second comes after the first. */

import { bar } from "../charts.js";
import { button, field, h, textArea } from "../dom.js";
import { PAIRS } from "../examples.js";
import { Frame, makeExamples, runControls } from "../panel.js";
import { percent } from "../texts.js";

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makePair(info) {
  const first = textArea({ id: "pair-first", class: "first" });
  const second = textArea({ id: "pair-second", class: "second" });
  const examples = makeExamples(PAIRS, ([a, b]) => `${a} → ${b}`, ([a, b]) => fill(a, b),
    () => `${first.value} → ${second.value}`);
  const frame = new Frame("pair", run, h("div", { class: "pair" },
    field("pair.first", first, { class: "field first" }), field("pair.second", second, { class: "field second" })),
  h("div", { class: "fields" }, button({ class: "quiet", t: "pair.swap" }, () => fill(second.value, first.value)), runControls("pair")),
  examples);

  function fill(a, b) {
    [first.value, second.value] = [a, b];
    frame.whenShown(run);
  }

  function run() {
    if (!first.value.trim() || !second.value.trim()) return frame.runner.say("pair.empty");
    const body = { inputs: { text: first.value, text_pair: second.value }, ...frame.truncation };
    return frame.runner.run("/nsp", body, (value) => [verdict(value, info.pair_labels)]);
  }

  return frame;
}

/** The answer in words, then both probabilities. */
function verdict(value, labels) {
  const rows = labels.map((label, i) =>
    h("li", { class: "share" }, h("span", { t: `pair.${label}` }), bar(value[label], i ? "no" : "yes"),
      h("span", { class: "figure" }, percent(value[label]))));
  const kind = value.label === labels[0] ? "yes" : "no";
  return h("div", { class: "card" },
    h("p", { class: `verdict ${kind}` }, h("span", { t: `pair.${value.label}` }), " ",
      h("span", { class: "verdict-figure" }, percent(value[value.label]))),
    h("h2", { class: "small", t: "pair.share" }), h("ul", { class: "bars" }, ...rows));
}
