/** Pictures of numbers. Each has its numbers as text too, beside it or as its label. */

import { h, svg } from "./dom.js";
import { duration } from "./texts.js";

/**
 * Shares of a whole, side by side, with a legend.
 * @param {{kind: string, key: any, value: number}[]} parts `kind` chooses the colour
 * @param {(value: number) => string} write
 */
export function stackedBar(parts, write) {
  const whole = parts.reduce((sum, one) => sum + one.value, 0) || 1;
  const pieces = parts.map(({ kind, value }) =>
    h("span", { class: `piece ${kind}`, style: { "--share": value / whole } }));
  const legend = parts.map(({ kind, key, value }) =>
    h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), h("span", { t: key }),
      h("span", { class: "figure" }, write(value))));
  return h("div", { class: "stacked" }, h("div", { class: "stacked-bar", "aria-hidden": "true" }, ...pieces),
    h("ul", { class: "legend" }, ...legend));
}

/** A bar whose length is a share of its track. @param {number} share 0 to 1 */
export function bar(share, kind = "") {
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("span", { style: { "--share": share } }));
}

const WIDTH = 240;
const HEIGHT = 56;

/**
 * The last values of a series, the newest at the right.
 * @param {number[]} values @param {{slots: number, most: number, kind?: string}} options `slots`: values in the whole
 * width; `most`: the value at the top
 */
export function sparkline(values, { slots, most, kind = "" }) {
  const step = WIDTH / (slots - 1);
  const top = most || 1;
  const points = values.map((value, i) => [
    WIDTH - (values.length - 1 - i) * step, HEIGHT - 2 - (HEIGHT - 6) * Math.min(1, value / top)]);
  const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  const first = points[0] ?? [WIDTH, HEIGHT];
  return svg("svg", { class: `sparkline ${kind}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
    "aria-hidden": "true" },
  svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
  svg("polygon", { class: "area", points: `${first[0]},${HEIGHT - 1} ${line} ${WIDTH},${HEIGHT - 1}` }),
  svg("polyline", { class: "line", points: line }));
}

/**
 * The buckets of a histogram from `first` to `last`, equally wide: their bounds grow about logarithmically.
 * @param {import("./prometheus.js").Histogram} histogram
 */
export function bucketBars({ bounds, counts }, first, last) {
  const shown = counts.slice(first, last + 1);
  const most = Math.max(...shown, 1);
  const bars = shown.map((count, i) => {
    const [low, high] = [first + i ? bounds[first + i - 1] : 0, bounds[first + i]];
    const title = `${duration(low)} – ${high === Infinity ? "∞" : duration(high)}: ${count}`;
    return h("span", { title, style: { "--share": count / most }, class: count ? "some" : "" });
  });
  return h("span", { class: "buckets", "aria-hidden": "true" }, ...bars);
}

const MAP = { width: 620, height: 340, margin: 30 };

/**
 * Points on a plane, on one scale in both directions.
 * @param {{x: number, y: number, name: string, text: string, kind: string}[]} points @param {any} label
 */
export function scatter(points, label) {
  const { width, height, margin } = MAP;
  const [xs, ys] = [points.map(({ x }) => x), points.map(({ y }) => y)];
  const span = (values) => Math.max(...values) - Math.min(...values) || 1e-9;
  const scale = Math.min((width - 2 * margin) / span(xs), (height - 2 * margin) / span(ys));
  const middle = (values) => (Math.max(...values) + Math.min(...values)) / 2;
  const place = ({ x, y }) => [width / 2 + scale * (x - middle(xs)), height / 2 - scale * (y - middle(ys))];
  const places = points.map(place);
  const shown = spread(places);
  const marks = points.map((point, i) => svg("g", { class: `mark ${point.kind}`, "data-name": point.name, "data-text": point.text,
    transform: `translate(${shown[i].join(" ")})` }, svg("title", {}, point.text), svg("circle", { r: 10 }),
  svg("text", { dy: "0.36em" }, point.name)));
  const moved = places.flatMap(([x, y], i) => (Math.hypot(x - shown[i][0], y - shown[i][1]) < 3 ? [] : [
    svg("line", { class: "tie", x1: x, y1: y, x2: shown[i][0], y2: shown[i][1] }), svg("circle", { class: "point", cx: x, cy: y, r: 2 })]));
  const origin = place({ x: 0, y: 0 });
  return svg("svg", { class: "map", viewBox: `0 0 ${width} ${height}`, role: "img", label },
    svg("line", { class: "base", x1: 0, x2: width, y1: origin[1], y2: origin[1] }),
    svg("line", { class: "base", x1: origin[0], x2: origin[0], y1: 0, y2: height }), ...moved, ...marks);
}

const APART = 27; // pixels between the middles of two labels

/** Places near the given ones, far enough apart that labels there do not overlap. @param {number[][]} places */
function spread(places) {
  const found = places.map(([x, y], i) => [x + 1e-3 * i, y]); // two at one place part too
  for (let round = 0; round < 60; round += 1) {
    for (let i = 0; i < found.length; i += 1) {
      for (let j = 0; j < i; j += 1) {
        const [dx, dy] = [found[i][0] - found[j][0], found[i][1] - found[j][1]];
        const far = Math.hypot(dx, dy);
        if (far >= APART) continue;
        const step = (APART - far) / 2 / far;
        found[i] = [found[i][0] + dx * step, found[i][1] + dy * step];
        found[j] = [found[j][0] - dx * step, found[j][1] - dy * step];
      }
    }
    for (const one of found) {
      one[0] = Math.min(MAP.width - 12, Math.max(12, one[0]));
      one[1] = Math.min(MAP.height - 12, Math.max(12, one[1]));
    }
  }
  return found;
}
