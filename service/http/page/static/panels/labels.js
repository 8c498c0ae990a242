/** Labels: what a classifier says of a text or a pair. */

import { field, h, textArea } from "../dom.js";
import { LABELS } from "../examples.js";
import { Frame, makeExamples, runControls, scoreList } from "../panel.js";

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeLabels(info) {
  const first = textArea({ id: "labels-text" });
  const second = textArea({ id: "labels-pair", rows: 1 });
  const examples = makeExamples(LABELS, (text) => text, (text) => {
    [first.value, second.value] = [text, ""];
    frame.whenShown(run);
  }, () => first.value);
  const frame = new Frame("labels", run, field("page.text", first), field("page.second", second),
    h("div", { class: "fields" }, runControls("labels")), examples);

  function run() {
    if (!first.value.trim()) return frame.runner.say("page.empty");
    const inputs = second.value.trim() ? { text: first.value, text_pair: second.value } : first.value;
    return frame.runner.run("/predict", { inputs, ...frame.truncation }, (labels) =>
      [scoreList("labels.result", labels.map(({ label, score }) => [label, score]), info.label_scores !== "none")]);
  }

  return frame;
}
