/** Reranking: texts by their relevance to a query, by a cross-encoder, ColBERT or BGE-M3. */

import { field, h, splitLines, textArea } from "../dom.js";
import { SIMILAR } from "../examples.js";
import { Frame, makeExamples, runControls, scoreList } from "../panel.js";

/** @returns {import("../panel.js").Panel} */
export function makeRerank() {
  const query = textArea({ id: "rerank-query", rows: 1 });
  const lines = textArea({ id: "rerank-lines", rows: 6 }, { submitsOnEnter: false });
  const examples = makeExamples(SIMILAR, ({ name }) => name, (example) => {
    [query.value, lines.value] = [example.query, example.lines.join("\n")];
    frame.whenShown(run);
  }, () => query.value);
  const frame = new Frame("rerank", run, field("rerank.query", query), field("similar.lines", lines),
    h("div", { class: "fields" }, runControls("rerank")), examples);

  function run() {
    const texts = splitLines(lines.value);
    if (!query.value.trim() || !texts.length) return frame.runner.say("rerank.empty");
    return frame.runner.run("/rerank", { query: query.value.trim(), texts, ...frame.truncation }, (ranked) =>
      [scoreList("rerank.result", ranked.map(({ index, score }) => [texts[index], score]), false)]);
  }

  return frame;
}
