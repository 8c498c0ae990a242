/** Reads Prometheus' text format, and what a picture needs of it. */

/** @typedef {{labels: Record<string, string>, value: number}} Sample */
/** @typedef {Map<string, Sample[]>} Samples by name */
/** @typedef {{bounds: number[], counts: number[], count: number, sum: number}} Histogram counts are not cumulative */

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:\\.|[^"\\])*)"/g;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** @param {string} text @returns {Samples} */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (!found) continue;
    const [, name, stated, value] = found;
    const labels = {};
    for (const [, label, content] of (stated ?? "").matchAll(LABEL)) {
      labels[label] = content.replace(/\\[n"\\]/g, (escape) => ESCAPES[escape]);
    }
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: toNumber(value) });
  }
  return samples;
}

function toNumber(text) {
  return { "+Inf": Infinity, "-Inf": -Infinity }[text] ?? Number(text);
}

/** The sum over all series of a name; 0 where there is none. @param {Samples} samples @param {string} name */
export function total(samples, name) {
  return (samples.get(name) ?? []).reduce((sum, one) => sum + one.value, 0);
}

/**
 * The histograms of a name by the value of one label.
 * @param {Samples} samples @param {string} name @param {string} label
 * @returns {Map<string, Histogram>}
 */
export function histograms(samples, name, label) {
  const found = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const key = labels[label];
    if (!found.has(key)) found.set(key, { bounds: [], counts: [], count: 0, sum: 0 });
    const histogram = found.get(key);
    histogram.bounds.push(toNumber(labels.le));
    histogram.counts.push(value - histogram.count);
    histogram.count = value;
  }
  for (const { labels, value } of samples.get(`${name}_sum`) ?? []) {
    if (found.has(labels[label])) found.get(labels[label]).sum = value;
  }
  return found;
}

/**
 * The value below which a share of the observations lie, by linear interpolation within its bucket, as Prometheus'
 * histogram_quantile does; the highest finite bound where it lies above it.
 * @param {Histogram} histogram @param {number} share
 */
export function quantile({ bounds, counts, count }, share) {
  let below = 0;
  for (let i = 0; i < bounds.length; i += 1) {
    if (below + counts[i] >= share * count && counts[i] > 0) {
      if (bounds[i] === Infinity) return bounds[i - 1];
      const low = i ? bounds[i - 1] : 0;
      return low + (bounds[i] - low) * ((share * count - below) / counts[i]);
    }
    below += counts[i];
  }
  return NaN;
}
