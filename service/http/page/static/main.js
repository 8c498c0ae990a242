/** Starts the page: reads /info, makes the panels that the model has, shows the one that the address names. */

import { get, isKeyRequired, setKey } from "./api.js";
import { button, h } from "./dom.js";
import { CHANGED, UNAUTHORIZED } from "./panel.js";
import { makeAnswer } from "./panels/answer.js";
import { makeChoose } from "./panels/choose.js";
import { makeFillMask } from "./panels/fill_mask.js";
import { makeInside } from "./panels/inside.js";
import { makeLabels } from "./panels/labels.js";
import { makePair } from "./panels/pair.js";
import { makeRerank } from "./panels/rerank.js";
import { makeSimilar } from "./panels/similar.js";
import { makeStatus } from "./panels/status.js";
import { makeSurprise } from "./panels/surprise.js";
import { makeTags } from "./panels/tags.js";
import { makeZeroShot } from "./panels/zero_shot.js";
import { currentLanguage, hasText, number, setLanguage } from "./texts.js";
import { makeThemeButton } from "./theme.js";

const BUNDLED = "sample"; // the name of the model that comes with the service
const AGAIN_MILLISECONDS = 1000; // until /info is read again while the model loads
/** @type {[string, (info: any) => boolean, (info: any) => import("./panel.js").Panel][]} name, condition, maker */
const PANELS = [
  ["labels", ({ heads, labels }) => heads.includes("labels") && labels.length > 1, makeLabels],
  ["zero_shot", ({ labels }) => labels?.some((one) => /^entail/i.test(one)), makeZeroShot],
  ["rerank", ({ rerank }) => rerank, makeRerank],
  ["tags", ({ heads }) => heads.includes("tags"), makeTags],
  ["answer", ({ heads }) => heads.includes("spans"), makeAnswer],
  ["choose", ({ heads }) => heads.includes("choices"), makeChoose],
  ["mask", ({ heads }) => heads.includes("fill_mask"), makeFillMask],
  ["surprise", ({ heads }) => heads.includes("fill_mask"), makeSurprise],
  ["pair", ({ heads }) => heads.includes("pair"), makePair],
  ["similar", ({ pooling }) => pooling !== "multi", makeSimilar], // multi: several vectors for a text, which Reranking compares
  ["inside", () => true, makeInside],
  ["status", () => true, makeStatus],
];

const model = h("span", { class: "model" });
const navigation = h("nav", { class: "tabs", label: "page.panels" });
const content = h("main", { id: "content", tabindex: "-1" });
const keyBar = makeKeyBar();
/** @type {Map<string, import("./panel.js").Panel>} */
const panels = new Map();
let shown = "";

function makeTop() {
  const change = () => setLanguage(currentLanguage() === "en" ? "zh" : "en");
  return h("header", { class: "top" },
    h("div", { class: "top-inner" }, h("span", { class: "brand" }, "packbert"), model,
      h("div", { class: "tools" }, h("a", { class: "quiet", href: "docs", t: "page.reference" }), makeThemeButton(),
        button({ class: "quiet", id: "language", t: "page.language" }, change))), navigation);
}

async function start() {
  document.body.append(h("a", { class: "skip", href: "#content", t: "page.skip", on: { click: skip } }), makeTop(), keyBar.element, content);
  say("page.loading");
  const info = await readInfo();
  content.replaceChildren();
  showModel(info);
  for (const [name, isThere, make] of PANELS) {
    if (!isThere(info)) continue;
    panels.set(name, make(info));
    content.append(panels.get(name).element);
    const short = `${name}.tab`;
    navigation.append(h("a", { href: `#${name}`, t: hasText(short) ? short : `${name}.title` }));
  }
  addEventListener("hashchange", show);
  content.addEventListener(UNAUTHORIZED, () => keyBar.ask());
  content.addEventListener(CHANGED, writeAddress);
  if (isKeyRequired()) keyBar.ask({ isWrong: false });
  show();
}

/** Shows a sentence in place of the panels. */
function say(key) {
  content.replaceChildren(h("p", { class: "empty", role: "status", t: key }));
}

function skip(event) {
  event.preventDefault();
  content.focus();
}

/** Asks again while the model loads or the service cannot be reached. */
async function readInfo() {
  for (;;) {
    try {
      return (await get("/info")).value;
    } catch ({ status }) {
      say(status === 503 ? "page.loading" : "page.unreachable");
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}

/** Opens the page of another model, which is below its own path, with the same panel. */
function makeModelChoice(name, names) {
  const own = `models/${name}/`;
  const root = location.pathname.endsWith(`/${own}`) ? own.replace(/[^/]+/g, "..") : "";
  const options = names.map((one) => h("option", { value: one, selected: one === name }, one));
  const choose = ({ target }) => location.assign(new URL(`${root}models/${target.value}/#${shown}`, document.baseURI));
  return h("select", { id: "model", label: "page.model.choice", on: { change: choose } }, ...options);
}

/** The model's name, what it is, and behind it what /info says of it. */
function showModel(info) {
  const { model: name, family, sizes, precision, execution_provider: provider, limits, verification, versions, identity,
    models } = info;
  const layers = h("span", { class: "chip", t: ["page.layers", { layers: sizes.layers, hidden: sizes.hidden }] });
  const chips = [family, precision, provider].filter(Boolean).map((one) => h("span", { class: "chip" }, one));
  const isBundled = name === BUNDLED;
  const errors = Object.entries(verification).filter(([measure]) => measure.endsWith("_max_abs_error"));
  const difference = Math.max(...errors.map(([, value]) => value));
  const facts = [["page.model.tokens", number(limits.tokens)], ["page.model.inputs", number(limits.inputs)],
    ["page.model.difference", number(difference, { maximumSignificantDigits: 2 })],
    ["page.model.license", identity.license], ["page.model.languages", identity.languages.join(", ")],
    ["page.model.version", versions.service]].filter(([, value]) => value !== "");
  const card = h("details", { class: "facts" }, h("summary", { t: "page.model.card" }), h("dl", {}, ...facts.flatMap(([key, value]) =>
    [h("dt", { t: key }), h("dd", {}, String(value))])), h("a", { href: "info" }, "/info"));
  model.replaceChildren(models.length > 1 ? makeModelChoice(name, models) : h("strong", {}, name), layers, ...chips, card);
  if (isBundled) model.append(h("span", { class: "bundled" }, h("span", { t: "page.model.bundled" }), " ", h("code", {}, "packbert serve NAME")));
}

/** The panel that the address names, or the first one, with the texts that the address has. */
function show() {
  const [stated, state] = splitAddress();
  const name = panels.has(stated) ? stated : panels.keys().next().value;
  if (name === stated && state) panels.get(name).restore?.(new URLSearchParams(state));
  if (name === shown) return;
  panels.get(shown)?.close?.();
  shown = name;
  for (const [one, { element }] of panels) element.hidden = one !== name;
  for (const link of navigation.children) {
    link.removeAttribute("aria-current");
    if (link.hash !== `#${name}`) continue;
    link.setAttribute("aria-current", "page");
    navigation.scrollLeft = link.offsetLeft - navigation.offsetLeft; // scrollIntoView would move the start of Tab too
  }
  open();
}

/** The panel's name, and its fields. */
function splitAddress() {
  const [name, ...state] = location.hash.slice(1).split("?");
  return [name, state.join("?")];
}

/** The address opens what is shown now. */
function writeAddress() {
  const { state } = panels.get(shown);
  history.replaceState(null, "", `#${shown}${state.size ? `?${state}` : ""}`);
}

function open() {
  if (!keyBar.isAsking() || shown === "status") panels.get(shown).open();
}

/** Asks for the key where the service requires one. It is given to api.js and stays in memory. */
function makeKeyBar() {
  const input = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false" });
  const wrong = h("p", { class: "error-title", role: "alert" });
  const use = (event) => {
    event.preventDefault();
    if (!input.value.trim()) return input.focus();
    setKey(input.value.trim());
    input.value = "";
    element.hidden = true;
    content.focus();
    return open();
  };
  const element = h("form", { class: "key", label: "key.title", hidden: true, on: { submit: use } }, h("div", {},
    h("h2", { t: "key.title" }), h("p", { class: "muted", t: "key.help" }), wrong),
  h("div", { class: "fields" }, h("div", { class: "field" }, h("label", { for: "key", t: "key.field" }), input),
    h("button", { class: "primary", t: "key.use" })));
  return {
    element,
    isAsking: () => !element.hidden,
    ask({ isWrong = true } = {}) {
      wrong.replaceChildren(isWrong ? h("span", { t: "key.wrong" }) : "");
      element.hidden = false;
      input.focus();
    },
  };
}

start();
