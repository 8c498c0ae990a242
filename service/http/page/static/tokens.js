/** What the pictures of tokens and of candidates share. */

import { post } from "./api.js";
import { h } from "./dom.js";
import { number } from "./texts.js";

const FILLINGS = 10; // of a place of several pieces: the service's default beam
const SCRIPTS = [/[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u,
  ...["Latin", "Greek", "Cyrillic", "Arabic", "Hebrew", "Devanagari", "Thai", "Hangul"].map((one) => new RegExp(`\\p{Script=${one}}`, "u"))];

/** The kind of a token decides its colour. */
export function kindOf({ special, segment, side }) {
  if (special) return "special";
  return (side ?? segment) ? "second" : "first";
}

/** A candidate as it is written: without the mark of "##ing", the space of " the" and those between Chinese characters. */
export function plain(word) {
  return word.replace(/^##/, "").replace(/(?<=\p{Script=Han})\s+(?=\p{Script=Han})/gu, "").trim() || word;
}

/** Whether the candidate is the word. */
export function isWord(candidate, word) {
  return plain(candidate).toLowerCase() === word.toLowerCase();
}

/** Whether a word has letters, and all of them of scripts that the text has not. */
export function isForeign(word, text) {
  const [used, own] = [text, word].map((one) => SCRIPTS.filter((script) => script.test(one)));
  return used.length > 0 && own.length > 0 && !own.some((one) => used.includes(one));
}

/** The rows of candidates; those of another script than the text's are behind a switch. */
export function candidateRows(list, text, row) {
  const [own, others] = [false, true].map((foreign) => list.filter(({ word }) => isForeign(word, text) === foreign));
  return h("div", {}, h("ol", { class: "bars" }, ...own.map(row)), others.length > 0 && h("details", { class: "foreign" },
    h("summary", { t: ["mask.foreign", { count: others.length }] }), h("ol", { class: "bars" }, ...others.map(row))));
}

/** Candidates for a place of the text: of one piece as many as the service gives, of several the best fillings. */
export async function askPlace(body, pieces, { limits, sizes }, signal) {
  const asked = pieces > 1 ? { joint: true, top_k: FILLINGS } : { top_k: Math.min(limits.top_k, sizes.vocabulary) };
  return (await post("/fill-mask", { ...body, ...asked }, signal)).value;
}

/** The rank of a word among the candidates for its place: of one piece by its probability, of several by the pieces. */
export function rankBadge(candidates, { share, pieces, spelled }) {
  const rank = pieces > 1 ? candidates.findIndex((one) => String(one.pieces) === String(spelled))
    : candidates.filter(({ score }) => score > share * (1 + 1e-6)).length;
  const isListed = rank >= 0 && rank < candidates.length;
  return h("span", { class: "badge",
    t: isListed ? ["mask.rank", { rank: number(rank + 1) }] : ["mask.rank.below", { rank: number(candidates.length) }] });
}
