/** Labels: what a classifier says of a text or a pair. */

import { bar } from "../charts.js";
import { field, form, h, textArea } from "../dom.js";
import { LABELS } from "../examples.js";
import { Frame, makeExamples } from "../panel.js";
import { number, percent } from "../texts.js";

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeLabels(info) {
  const first = textArea({ id: "labels-text" });
  const second = textArea({ id: "labels-pair", rows: 1 });
  const examples = makeExamples(LABELS, (text) => text, (text) => {
    [first.value, second.value] = [text, ""];
    frame.whenShown(run);
  }, () => first.value);
  const frame = new Frame("labels", form(() => frame.whenShown(run), field("labels.text", first),
    field("labels.pair", second), h("div", { class: "fields" }, h("button", { class: "primary", t: "page.run" })), examples));
  const isShare = info.label_scores !== "none";

  function run() {
    if (!first.value.trim()) return frame.runner.say("labels.empty");
    const inputs = second.value.trim() ? { text: first.value, text_pair: second.value } : first.value;
    return frame.runner.run("/predict", { inputs }, (labels) => [showLabels(labels)]);
  }

  function showLabels(labels) {
    const most = Math.max(...labels.map(({ score }) => Math.abs(score)), 1e-12);
    const rows = labels.map(({ label, score }, i) => h("li", { class: "share" }, h("span", {}, label),
      bar(isShare ? score : Math.abs(score) / most, i ? "" : "yes"),
      h("span", { class: "figure" }, isShare ? percent(score) : number(score))));
    return h("div", { class: "card" }, h("h2", { t: "labels.result" }), h("ol", { class: "bars" }, ...rows));
  }

  return {
    element: frame.element,
    open() {
      if (!first.value) examples.querySelector("button").click();
      frame.open();
    },
  };
}
