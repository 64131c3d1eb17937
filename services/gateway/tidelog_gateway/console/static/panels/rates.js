/** Throughput and latency of this gateway, from its metrics page. */

import { h } from "../page/dom.js";
import { duration, short } from "../page/format.js";
import { parse, quantile, rate, total } from "../cluster/measures.js";
import { legend, plot, Series } from "../page/plot.js";
import { facts } from "../page/table.js";

const EVERY_MS = 2000;
const LATENCIES = [
  ["tidelog_gateway_produce_latency_seconds", "From a batch's arrival to its ack"],
  ["tidelog_gateway_end_to_end_latency_seconds", "From a batch's first timestamp to its delivery"],
];
const PARTS = [["median", 0.5], ["95 %", 0.95], ["99 %", 0.99]];

export class RatesPanel {
  #before = null;
  #turn = null;
  #off = false;
  #records = [new Series("produced"), new Series("delivered")];
  #bytes = [new Series("produced"), new Series("delivered")];
  #latencies = LATENCIES.map(() => PARTS.map(([name]) => new Series(name)));

  /** Measure, until `close`. What was measured before stays. */
  open(app) {
    this.close();
    this.#before = null;
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
  }

  async #look(app) {
    if (document.hidden) return;
    const reply = await fetch("/metrics", { headers: { accept: "text/plain" } }).catch(() => null);
    this.#off = reply?.status === 404;
    if (!reply?.ok) {
      this.#before = null;
    } else {
      const values = parse(await reply.text());
      this.#measure({ at: Date.now(), values });
    }
    app.draw();
  }

  #measure(after) {
    const before = this.#before;
    this.#before = after;
    if (!before) return;
    const seconds = (after.at - before.at) / 1000;
    const add = (series, value) => value === undefined || series.add(after.at, value);
    const go = (series, name) => add(series, rate(before.values, after.values, `tidelog_gateway_${name}_total`, seconds));
    go(this.#records[0], "produced_records");
    go(this.#records[1], "delivered_records");
    go(this.#bytes[0], "produced_bytes");
    go(this.#bytes[1], "delivered_bytes");
    LATENCIES.forEach(([metric], i) => PARTS.forEach(([, part], j) => add(this.#latencies[i][j], quantile(before.values, after.values, metric, part))));
  }

  view(app) {
    if (this.#off) return [h("h1", {}, "Rates"), h("p", { class: "quiet" }, "This gateway shows no metrics (metrics = false).")];
    const values = this.#before?.values;
    const counts = values
      ? [
          ["Clients", values.get("tidelog_gateway_connections")],
          ["Subscriptions", values.get("tidelog_gateway_subscriptions")],
          ["Batches in flight", values.get("tidelog_gateway_in_flight_batches")],
          ["Produce errors", total(values, "tidelog_gateway_produce_errors_total")],
          ["Retries", total(values, "tidelog_gateway_produce_retries_total")],
        ]
      : [];
    return [
      h("h1", {}, "Rates"),
      h("p", { class: "quiet" }, `What goes through the gateway ${app.log?.gateway?.node ?? ""}, now; other gateways have a page of their own.`),
      values && total(values, "tidelog_gateway_produced_records_total") + total(values, "tidelog_gateway_delivered_records_total") === 0
        ? h("p", { class: "quiet" }, "No record has gone through it yet: send one under Topics, or with ", h("code", {}, "tidelog produce TOPIC"), ".")
        : null,
      facts(counts.map(([name, value]) => [name, short(value ?? 0)])),
      h(
        "div",
        { class: "plots" },
        figure("Records per second", this.#records, (value) => short(value)),
        figure("Bytes per second", this.#bytes, (value) => short(value, "B")),
        LATENCIES.map(([, words], i) => figure(words, this.#latencies[i], duration)),
      ),
    ];
  }
}

/** A plot with its heading and legend. */
export function figure(words, series, format) {
  return h("section", { key: words }, h("h2", {}, words), plot(series, { words, format }), legend(series, format));
}
