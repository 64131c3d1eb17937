/** One partition: what each replica has, how far it is durable and committed, of which leader epochs; and why it is so. */

import { h } from "../page/dom.js";
import { reason } from "../page/failures.js";
import { whole } from "../page/format.js";
import { roleOf, ROLES } from "./map.js";
import { PartitionAdministration } from "./partition-administration.js";
import { PlaceChoice } from "./place.js";
import { legend, plot, Series } from "../page/plot.js";
import { facts } from "../page/table.js";
import { entry } from "./timeline.js";
import { epochsOf, windowOf } from "../cluster/tracks.js";

const EVERY_MS = 400;
const SPANS = [["100", "last 100 records"], ["1000", "last 1,000 records"], ["100000", "last 100,000 records"], ["", "whole log"]];
const EVENTS = 50;

export class PartitionPanel {
  #place = null;
  #span = "1000";
  #answers = new Map();
  #lags = new Map();
  #turn = null;
  #choice = new PlaceChoice();
  #administration = new PartitionAdministration();

  /** Look at a partition, from now on, until `close`. */
  open(app, [topic, partition = "0"]) {
    this.close();
    this.#place = topic === undefined ? null : { topic, partition: Number(partition) };
    this.#answers = new Map();
    this.#lags = new Map();
    this.#administration.clear();
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
  }

  #find(app) {
    const topics = app.cluster.topics;
    const { topic: name, partition } = this.#place ?? { topic: topics[0]?.name, partition: 0 };
    const topic = topics.find((one) => one.name === name);
    return [name, partition, topic, topic?.partitions.find((one) => one.partition === partition)];
  }

  #look(app) {
    if (document.hidden || !app.live || !app.cluster || !app.log?.gateway) return;
    const [, , topic, one] = this.#find(app);
    for (const node of one ? [...one.replicas, ...one.learners] : []) this.#ask(app, topic, one, node);
  }

  /** One question to each replica at a time: one that does not answer keeps nobody waiting. */
  async #ask(app, topic, one, node) {
    const known = this.#answers.get(node) ?? {};
    if (known.asked) return;
    this.#answers.set(node, { ...known, asked: true });
    const answers = this.#answers;
    try {
      answers.set(node, { log: await app.log.digest(topic.topicId, one.partition, node), at: Date.now() });
      this.#measure(one, node);
    } catch (error) {
      answers.set(node, { ...known, asked: false, error });
    }
    app.draw();
  }

  #measure(one, node) {
    const leader = this.#answers.get(one.leader)?.log;
    if (!leader || node === one.leader) return;
    if (!this.#lags.has(node)) this.#lags.set(node, new Series(node));
    this.#lags.get(node).add(Date.now(), Math.max(0, leader.logEnd - this.#answers.get(node).log.logEnd));
  }

  view(app) {
    const [name, partition, topic, one] = this.#find(app);
    return [
      h("div", { class: "row" }, h("h1", {}, name === undefined ? "Partition" : `${name}/${partition}`), this.#choice.view(app, name, partition, topic)),
      one ? this.#facts(one) : h("p", { class: "quiet" }, missing(name, topic)),
      one && app.live ? this.#administration.view(app, topic, one, this.#logsOf(one)) : null,
      one && app.live ? this.#logs(app, one) : null,
      one && !app.live ? h("p", { class: "quiet" }, "Offsets are not kept in the timeline: they are shown live only. Press Now at the bottom.") : null,
      one ? history(app, topic, partition) : null,
    ];
  }

  /** The bounds of the logs of replicas and learners that answered. */
  #logsOf(one) {
    const nodes = [...one.replicas, ...one.learners];
    return new Map(nodes.map((node) => [node, this.#answers.get(node)?.log]).filter(([, log]) => log));
  }

  #facts(one) {
    return facts([
      ["Leader", one.leader || "nobody"],
      ["Leader epoch", one.leaderEpoch],
      ["ISR (in-sync replicas)", one.isr.join(", ") || "nobody"],
      ["Replicas", one.replicas.join(", ")],
      ...(one.elr.length ? [["ELR (eligible leader replicas)", one.elr.join(", ")]] : []),
      ...(one.learners.length ? [["Learners", one.learners.join(", ")]] : []),
      ...(one.target.length ? [["Moves to", one.target.join(", ")]] : []),
      ...(one.successor ? [["Hands over to", one.successor]] : []),
      ["Partition epoch", one.epoch],
    ]);
  }

  #logs(app, one) {
    const nodes = [...one.replicas, ...one.learners];
    const logs = this.#logsOf(one);
    const window = windowOf([...logs.values()], this.#span ? Number(this.#span) : Infinity);
    const onChange = ({ target }) => {
      this.#span = target.value;
      app.draw();
    };
    const epochs = new Set([...logs.values()].flatMap((log) => epochsOf(log, window).map(({ epoch }) => epoch)));
    return h(
      "section",
      { "aria-labelledby": "logs" },
      h(
        "div",
        { class: "row" },
        h("h2", { id: "logs" }, "Each replica's log"),
        h("label", { class: "small" }, "Shown ", h("select", { onChange }, SPANS.map(([value, words]) => h("option", { value, selected: value === this.#span }, words)))),
      ),
      h("ul", { class: "logs" }, nodes.map((node) => this.#log(one, node, window))),
      h("p", { class: "scale small quiet", "aria-hidden": "true" }, h("span", {}, whole(window.from)), h("span", {}, whole(window.to))),
      h(
        "p",
        { class: "legend small quiet" },
        [...epochs].sort((a, b) => a - b).map((epoch) => h("span", {}, h("span", { class: `swatch epoch-${epoch % 8}` }), ` epoch ${epoch}`)),
        h("span", {}, h("span", { class: "swatch unflushed" }), " not durable yet"),
        h("span", {}, h("span", { class: "swatch watermark" }), " high watermark: committed up to here"),
      ),
      this.#lags.size ? [h("h2", {}, "Records behind the leader"), plot([...this.#lags.values()], { words: "Records behind the leader" }), legend([...this.#lags.values()], whole)] : null,
    );
  }

  #log(one, node, window) {
    const { log, error } = this.#answers.get(node) ?? {};
    const role = roleOf(one, node);
    const end = this.#answers.get(one.leader)?.log?.logEnd;
    const lag = log && end !== undefined && node !== one.leader ? Math.max(0, end - log.logEnd) : 0;
    return h(
      "li",
      { key: node, class: error ? "silent" : "" },
      h("div", { class: "who" }, h("span", { class: `replica ${role}` }, node), h("span", { class: "small quiet" }, ROLES[role])),
      log ? track(log, window, node) : h("div", { class: "track" }),
      h(
        "div",
        { class: "numbers small" },
        error ? h("span", { class: "bad" }, `no answer: ${reason(error)}`) : null,
        log && !error
          ? [number("log end offset", log.logEnd), number("durable", log.durable), number("high watermark", log.highWatermark), number("log start offset", log.logStart), lag ? number("lag", lag) : null]
          : null,
      ),
    );
  }
}

function number(what, value) {
  return h("span", {}, h("span", { class: "quiet" }, `${what} `), h("b", {}, whole(value)));
}

/** A log as a bar: `window` is the part of it that is shown. */
function track(log, window, node) {
  const at = (offset) => `${(100 * (Math.min(Math.max(offset, window.from), window.to) - window.from)) / (window.to - window.from || 1)}%`;
  const wide = (from, to) => `calc(${at(to)} - ${at(from)})`;
  const words = `${node}: records ${whole(log.logStart)} to ${whole(log.logEnd)}, durable to ${whole(log.durable)}, high watermark ${whole(log.highWatermark)}`;
  return h(
    "div",
    { class: "track", role: "img", "aria-label": words },
    epochsOf(log, window).map(({ epoch, from, to }) =>
      h("span", { key: epoch, class: `epoch epoch-${epoch % 8}`, title: `leader epoch ${epoch}`, style: { left: at(from), width: wide(from, to) } }),
    ),
    log.durable >= 0 && log.durable < log.logEnd ? h("span", { key: "unflushed", class: "unflushed", style: { left: at(log.durable), width: wide(log.durable, log.logEnd) } }) : null,
    h("span", { key: "watermark", class: "watermark", style: { left: at(log.highWatermark) } }),
  );
}

/** Why no partition is shown, and what to do. */
function missing(name, topic) {
  if (name === undefined) return ["There are no topics yet: create one under ", h("a", { href: "#/topics" }, "Topics"), "."];
  if (topic) return `${name} has partitions 0 to ${topic.partitions.length - 1} at this moment: choose one of these.`;
  return "There is no topic of that name at this moment, or these rights do not reach it: choose another one.";
}

function history(app, topic, partition) {
  const found = app.history.events
    .map((event, i) => ({ event, i }))
    .filter(({ event: { record } }) => record.topic_id === topic.topicId && record.partition === partition);
  return h(
    "section",
    { "aria-labelledby": "why" },
    h("h2", { id: "why" }, "Why it is so"),
    found.length ? null : h("p", { class: "quiet" }, `The timeline tells nothing of it: it has not changed since the oldest event that was read. tidelog why ${topic.name}/${partition} asks the controllers.`),
    h("ol", { class: "events", reversed: true }, found.slice(-EVENTS).reverse().map(({ event, i }) => entry(app, event.record, i))),
  );
}
