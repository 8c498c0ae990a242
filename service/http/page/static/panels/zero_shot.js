/** Zero-shot: labels of one's own, by a classifier of entailment. */

import { field, h, splitWords, textArea } from "../dom.js";
import { ZERO_SHOT } from "../examples.js";
import { Frame, checkBox, makeExamples, runControls, scoreList } from "../panel.js";

/** @returns {import("../panel.js").Panel} */
export function makeZeroShot() {
  const area = textArea({ id: "zero_shot-text" });
  const labels = h("input", { type: "text", id: "zero_shot-labels", autocomplete: "off" });
  const several = checkBox("zero_shot.several", "zero_shot-several");
  const examples = makeExamples(ZERO_SHOT, ({ text }) => text, (example) => {
    [area.value, labels.value] = [example.text, example.labels];
    frame.whenShown(run);
  }, () => area.value);
  const frame = new Frame("zero_shot", run, field("page.text", area), h("div", { class: "fields" },
    field("zero_shot.labels", labels, { class: "field wide" }), several, runControls("zero_shot")), examples);

  function run() {
    const names = splitWords(labels.value);
    if (!area.value.trim() || !names.length) return frame.runner.say("zero_shot.empty");
    const body = { inputs: area.value, candidate_labels: names, multi_label: several.firstChild.checked, ...frame.truncation };
    return frame.runner.run("/predict", body, (found) =>
      [scoreList("labels.result", found.labels.map((label, i) => [label, found.scores[i]]), true)]);
  }

  return frame;
}
