/** Tags: a text coloured by its entities. */

import { bar } from "../charts.js";
import { field, h, select, textArea } from "../dom.js";
import { TAGS } from "../examples.js";
import { Frame, makeExamples, runControls } from "../panel.js";
import { codePoints, percent } from "../texts.js";

const STRATEGIES = ["simple", "first", "average", "max"];
const COLOURS = 6; // as many as style.css has

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeTags(info) {
  const groups = [...new Set(info.labels.map((label) => label.replace(/^[BIES]-/, "")))];
  const area = textArea({ id: "tags-text" });
  const strategy = select(STRATEGIES.map((one) => [one, `tags.${one}`]), () => frame.whenShown(run), { id: "tags-strategy" });
  const examples = makeExamples(TAGS, (text) => text, (text) => {
    area.value = text;
    frame.whenShown(run);
  }, () => area.value);
  const frame = new Frame("tags", run, field("page.text", area),
    h("div", { class: "fields" }, field("tags.strategy", strategy), runControls("tags")), examples);
  const colourOf = (group) => `entity-${Math.max(0, groups.indexOf(group)) % COLOURS}`;

  function run() {
    const inputs = area.value;
    if (!inputs.trim()) return frame.runner.say("page.empty");
    const body = { inputs, aggregation_strategy: strategy.value, ...frame.truncation };
    return frame.runner.run("/tag", body, (tags) => [showText(inputs, tags), tags.length ? showList(inputs, tags) : null]);
  }

  function showText(text, tags) {
    const slice = codePoints(text);
    let at = 0;
    const parts = tags.toSorted((a, b) => a.start - b.start).flatMap(({ entity_group: group, start, end }) => {
      const before = slice(at, start);
      const own = h("mark", { class: colourOf(group) }, slice(Math.max(at, start), end), h("span", { class: "tag" }, group));
      at = Math.max(at, end);
      return [before, own];
    });
    return h("div", { class: "card" }, h("h2", { t: "tags.result" }), h("p", { class: "tagged" }, ...parts, slice(at)),
      tags.length === 0 && h("p", { class: "muted", t: "tags.none" }));
  }

  function showList(text, tags) {
    const slice = codePoints(text);
    const rows = tags.map(({ entity_group: group, start, end, score }) => h("li", { class: "share entity" },
      h("span", {}, h("span", { class: `swatch ${colourOf(group)}`, "aria-hidden": "true" }), `${slice(start, end)} `,
        h("span", { class: "muted" }, group)), bar(score), h("span", { class: "figure" }, percent(score))));
    return h("div", { class: "card" }, h("h2", { t: "tags.list" }), h("ol", { class: "bars" }, ...rows));
  }

  return frame;
}
