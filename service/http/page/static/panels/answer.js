/** Question answering: the span of a text that answers a question, marked in the text, and further candidates. */

import { field, h, select, textArea } from "../dom.js";
import { ANSWERS } from "../examples.js";
import { Frame, makeExamples, runButton, scoreList } from "../panel.js";
import { codePoints } from "../texts.js";

const COUNTS = [3, 1, 5, 10];

/** @returns {import("../panel.js").Panel} */
export function makeAnswer() {
  const question = textArea({ id: "answer-question", rows: 1 });
  const context = textArea({ id: "answer-context", rows: 6 }, { submitsOnEnter: false });
  const count = select(COUNTS.map((n) => [n]), () => frame.whenShown(run), { id: "answer-count" });
  const examples = makeExamples(ANSWERS, (example) => example.question, (example) => {
    [question.value, context.value] = [example.question, example.context];
    frame.whenShown(run);
  }, () => question.value);
  const frame = new Frame("answer", run, field("answer.question", question), field("page.text", context),
    h("div", { class: "fields" }, field("page.candidates", count), runButton()), examples);

  function run() {
    if (!question.value.trim() || !context.value.trim()) return frame.runner.say("answer.empty");
    const text = context.value;
    const body = { question: question.value, context: text, top_k: Number(count.value) };
    return frame.runner.run("/answer", body, (found) => {
      const answers = [found].flat();
      return [showSpan(text, answers[0]), answers.length ? scoreList("answer.candidates",
        answers.map(({ answer, score }) => [answer || "—", score]), true) : null];
    });
  }

  return frame;
}

/** The text with the answer marked. */
function showSpan(text, best) {
  const slice = codePoints(text);
  const parts = best?.answer
    ? [slice(0, best.start), h("mark", { class: "entity-1" }, slice(best.start, best.end)), slice(best.end)] : [text];
  return h("div", { class: "card" }, h("h2", { t: best?.answer ? "answer.result" : "answer.none" }), h("p", { class: "tagged" }, ...parts));
}
