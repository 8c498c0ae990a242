/** Status: pictures of the queue, the speed and the latencies, from /metrics while the panel is shown. */

import { get } from "../api.js";
import { bar, bucketBars, sparkline, stackedBar } from "../charts.js";
import { h } from "../dom.js";
import { makeHeader } from "../panel.js";
import { histograms, parse, quantile, total } from "../prometheus.js";
import { duration, number, percent, short } from "../texts.js";

const SECONDS = 2; // between two readings
const SLOTS = 60; // readings in a sparkline

/** @param {any} info of the model @returns {import("../panel.js").Panel} */
export function makeStatus(info) {
  return new Status(info);
}

class Status {
  constructor(info) {
    this.info = info;
    this.before = null; // the last reading
    this.series = { waiting: [], tokens: [], requests: [], busy: [] };
    this.cards = h("div", { class: "status", "aria-busy": "true" });
    this.stale = h("p", { class: "notice", role: "status", hidden: true, t: "status.stale" });
    this.element = h("section", { class: "panel", hidden: true, id: "panel-status", "aria-labelledby": "title-status" },
      makeHeader("status"), this.stale, this.cards);
  }

  open() {
    clearInterval(this.timer);
    this.timer = setInterval(() => document.hidden || this.#read(), 1e3 * SECONDS);
    this.#read();
  }

  close() {
    clearInterval(this.timer);
  }

  async #read() {
    try {
      const { text } = await get("/metrics");
      this.#add(parse(text));
      this.stale.hidden = true;
    } catch {
      this.stale.hidden = false;
    }
    this.cards.setAttribute("aria-busy", "false");
  }

  #add(samples) {
    const now = { at: performance.now() / 1e3, tokens: total(samples, "bert_tokens_total"),
      requests: total(samples, "bert_request_seconds_count") };
    const rate = (name) => (this.before ? Math.max(0, now[name] - this.before[name]) / (now.at - this.before.at) : 0);
    const figures = { waiting: total(samples, "bert_waiting_tokens"), tokens: rate("tokens"), requests: rate("requests"),
      busy: total(samples, "bert_busy_ratio") };
    for (const [name, values] of Object.entries(this.series)) {
      values.push(figures[name]);
      if (values.length > SLOTS) values.shift();
    }
    this.before = now;
    this.#show(samples, figures, now.requests);
  }

  #show(samples, { waiting, tokens, requests, busy }, requestsInAll) {
    const most = this.info.limits.waiting_tokens;
    const limit = total(samples, "bert_tokens_per_second");
    const queued = { waiting: short(total(samples, "bert_waiting_requests")), running: short(total(samples, "bert_running_requests")) };
    this.cards.replaceChildren(
      this.#card("queue", "waiting", Math.max(...this.series.waiting, 1),
        ["status.queue.now", { tokens: short(waiting), most: short(most) }], bar(Math.min(1, waiting / most), "queue"),
        h("p", { class: "muted small", t: ["status.queue.requests", queued] })),
      this.#card("speed", "tokens", Math.max(...this.series.tokens, 1),
        ["status.speed.now", { now: short(tokens), most: short(limit) }], bar(Math.min(1, tokens / (limit || 1)), "speed")),
      this.#card("rate", "requests", Math.max(...this.series.requests, 1),
        ["status.rate.now", { now: short(requests), total: short(requestsInAll) }]),
      this.#card("busy", "busy", 1, ["status.busy.now", { share: percent(busy) }], bar(Math.min(1, busy), "busy")),
      ...(requestsInAll ? [showLatencies(samples), showStages(samples)] : [h("p", { class: "empty whole", t: "status.latency.none" })]),
      ...showErrors(samples));
  }

  #card(name, series, most, sentence, ...more) {
    return h("div", { class: "card tile" }, h("h2", { t: `status.${name}` }),
      sparkline(this.series[series], { slots: SLOTS, most, kind: name }), h("p", { class: "small", t: sentence }), ...more);
  }
}

/** A row of buckets for each task with requests, all on one scale. */
function showLatencies(samples) {
  const used = [...histograms(samples, "bert_request_seconds", "task")].filter(([, { count }]) => count > 0);
  const card = h("div", { class: "card whole" }, h("h2", { t: "status.latency" }), h("p", { class: "muted", t: "status.latency.help" }));
  const filled = used.flatMap(([, { counts }]) => counts.flatMap((count, i) => (count ? [i] : [])));
  const bounds = used[0][1].bounds;
  const [first, last] = [Math.max(0, Math.min(...filled) - 1), Math.min(bounds.length - 1, Math.max(...filled) + 1)];
  const rows = used.sort((a, b) => b[1].count - a[1].count).map(([task, histogram]) => {
    const values = { count: number(histogram.count), median: duration(quantile(histogram, 0.5)),
      high: duration(quantile(histogram, 0.95)) };
    return h("li", { class: "latency" }, h("span", { class: "latency-name" }, h("code", {}, routeOf(task)),
      h("span", { class: "muted small" }, ` ${short(histogram.count)}`)), bucketBars(histogram, first, last),
    h("span", { class: "figure", tip: ["status.latency.row", values], t: ["status.latency.figures", values] }));
  });
  const end = bounds[last] === Infinity ? bounds[last - 1] : bounds[last];
  const ends = [first ? bounds[first - 1] : 0, bounds[Math.floor((first + last) / 2)], end];
  card.append(h("ol", { class: "latencies" }, ...rows, h("li", { class: "latency scale", "aria-hidden": "true" }, h("span"),
    h("span", { class: "ends" }, ...ends.map((one) => h("span", {}, duration(one)))),
    h("span", { class: "figure", t: "status.latency.legend" }))));
  return card;
}

/** The mean request, by stage. */
function showStages(samples) {
  const stages = [...histograms(samples, "bert_stage_seconds", "stage")];
  const count = Math.max(1, ...stages.map(([, one]) => one.count));
  return h("div", { class: "card whole" }, h("h2", { t: "status.stages" }),
    stackedBar(stages.map(([name, { sum }]) => ({ kind: name, key: `stage.${name}`, value: sum / count })), duration));
}

/** The route of a task's name in the metrics. */
function routeOf(task) {
  return task === "fill_mask" ? "/fill-mask" : `/${task}`;
}

/** The card of errors, where there are some. */
function showErrors(samples) {
  const found = (samples.get("bert_errors_total") ?? []).filter(({ value }) => value > 0).sort((a, b) => b.value - a.value);
  const most = found[0]?.value ?? 1;
  const rows = found.map(({ labels, value }) => h("li", { class: "share" }, h("code", {}, labels.reason),
    bar(value / most, "no"), h("span", { class: "figure" }, short(value))));
  return rows.length ? [h("div", { class: "card whole" }, h("h2", { t: "status.errors" }), h("ol", { class: "bars" }, ...rows))] : [];
}
