/** Similarity: cosines of one text with several, and the map of their vectors. */

import { scatter } from "../charts.js";
import { field, h, select, splitLines, textArea } from "../dom.js";
import { SIMILAR } from "../examples.js";
import { Frame, makeExamples, runControls } from "../panel.js";
import { number, percent } from "../texts.js";
import { cosine, project } from "../vectors.js";

const MOST_LINES = 60;

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeSimilar(info) {
  const query = textArea({ id: "similar-query", rows: 1 });
  const lines = textArea({ id: "similar-lines", rows: 6 }, { submitsOnEnter: false });
  const poolings = ["cls", "mean"].filter((one) => one !== info.pooling).map((one) => [one]);
  const pooling = select([["", ["similar.default", { pooling: info.pooling }]], ...poolings], () => frame.whenShown(run), { id: "similar-pooling" });
  const examples = makeExamples(SIMILAR, ({ name }) => name, fill, () => nameOf(query.value, lines.value));
  const frame = new Frame("similar", run, field("similar.query", query), field("similar.lines", lines),
    h("div", { class: "fields" }, field("similar.pooling", pooling), runControls("similar")), examples);

  function fill(example) {
    query.value = example.query;
    lines.value = example.lines.join("\n");
    frame.whenShown(run);
  }

  function run() {
    const texts = splitLines(lines.value);
    if (!query.value.trim() || texts.length < 2) return frame.runner.say("similar.empty");
    if (texts.length > MOST_LINES) {
      return frame.runner.say(["similar.many", { count: number(texts.length), most: MOST_LINES }]);
    }
    const inputs = [query.value.trim(), ...texts];
    const body = { inputs, normalize: true, ...(pooling.value && { pooling: pooling.value }), ...frame.truncation };
    return frame.runner.run("/embed", body, (vectors) => showNeighbours(inputs, vectors));
  }

  return frame;
}

/** The name of the example that the fields hold. */
function nameOf(query, lines) {
  const held = Object.values(SIMILAR).flat().find((one) => one.query === query && one.lines.join("\n") === lines);
  return held?.name ?? "";
}

/** @param {string[]} inputs the query first @param {number[][]} vectors */
function showNeighbours(inputs, vectors) {
  const [query, ...others] = vectors;
  const ranked = others.map((vector, i) => ({ i: i + 1, text: inputs[i + 1], cosine: cosine(query, vector) }))
    .sort((a, b) => b.cosine - a.cosine);
  const low = Math.min(0, ...ranked.map((one) => one.cosine));
  const rows = ranked.map((one, rank) => h("li", { class: "neighbour", "data-name": String(rank + 1) },
    h("span", { class: "rank", "aria-hidden": "true" }, String(rank + 1)), h("span", { class: "neighbour-text" }, one.text),
    h("span", { class: "lollipop", "aria-hidden": "true" }, h("span", { style: { "--share": (one.cosine - low) / (1 - low) } })),
    h("span", { class: "figure" }, number(one.cosine, { minimumFractionDigits: 2 }))));
  const scale = h("li", { class: "neighbour scale", "aria-hidden": "true" }, h("span"), h("span"),
    h("span", { class: "ends" }, h("span", {}, number(low)), h("span", { t: "similar.scale" }), h("span", {}, "1")));
  const list = h("div", { class: "card" }, h("h2", { t: "similar.nearest" }), h("ol", { class: "bars" }, ...rows, scale));
  const map = showMap(inputs, vectors, ranked);
  linkByName(list, map);
  return [list, map];
}

function showMap(inputs, vectors, ranked) {
  const { points, shares } = project(vectors);
  const marks = ranked.map(({ i, text }, rank) =>
    ({ x: points[i][0], y: points[i][1], name: String(rank + 1), text, kind: rank < 3 ? "near" : "" })).reverse();
  marks.push({ x: points[0][0], y: points[0][1], name: "★", text: inputs[0], kind: "query" });
  return h("div", { class: "card" }, h("h2", { t: "similar.map" }),
    scatter(marks, ["similar.map.label", { count: ranked.length }]),
    h("p", { class: "muted small" }, h("span", { class: "star", "aria-hidden": "true" }, "★ "), h("span", { t: "similar.you" }),
      " · ", h("span", { t: ["similar.map.help", { share: percent(shares[0] + shares[1]) }] })),
    h("p", { class: "caption", "aria-hidden": "true" }));
}

/** A row under the pointer marks its point, and the other way round. */
function linkByName(...cards) {
  const marked = (event, on) => {
    const { name, text } = event.target.closest("[data-name]")?.dataset ?? {};
    if (!name) return;
    for (const caption of cards.flatMap((card) => [...card.querySelectorAll(".caption")])) caption.textContent = on && text ? `${name} ${text}` : "";
    for (const card of cards) {
      card.querySelectorAll("[data-name]").forEach((one) => one.classList.toggle("marked", on && one.dataset.name === name));
    }
  };
  for (const card of cards) {
    card.addEventListener("pointerover", (event) => marked(event, true));
    card.addEventListener("click", (event) => marked(event, true)); // a touch
    card.addEventListener("pointerout", (event) => marked(event, false));
  }
}
