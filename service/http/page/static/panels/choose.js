/** Choices: which of several texts fits a prompt best. */

import { field, h, splitLines, textArea } from "../dom.js";
import { CHOICES } from "../examples.js";
import { Frame, makeExamples, runControls, scoreList } from "../panel.js";

/** @returns {import("../panel.js").Panel} */
export function makeChoose() {
  const prompt = textArea({ id: "choose-prompt" });
  const lines = textArea({ id: "choose-lines", rows: 4 }, { submitsOnEnter: false });
  const examples = makeExamples(CHOICES, (example) => example.prompt, (example) => {
    [prompt.value, lines.value] = [example.prompt, example.choices.join("\n")];
    frame.whenShown(run);
  }, () => prompt.value);
  const frame = new Frame("choose", run, field("choose.prompt", prompt), field("choose.lines", lines),
    h("div", { class: "fields" }, runControls("choose")), examples);

  function run() {
    const choices = splitLines(lines.value);
    if (!prompt.value.trim() || choices.length < 2) return frame.runner.say("choose.empty");
    return frame.runner.run("/choose", { prompt: prompt.value, choices, ...frame.truncation }, (found) =>
      [scoreList("choose.result", found.map(({ choice, score }) => [choice, score]), true)]);
  }

  return frame;
}
