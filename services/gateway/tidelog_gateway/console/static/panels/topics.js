/** Topics: all of them, worst first; of one its records, a form to send some, and the forms that change it. */

import { many, worstFirst } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { Forms } from "../page/forms.js";
import { short, whole } from "../page/format.js";
import { facts, fold, table } from "../page/table.js";
import { Records } from "../records/records.js";
import { Sizes } from "../cluster/sizes.js";
import { TopicAdministration } from "./topic-administration.js";
import { bytesOf, pairsOf, partitionOf } from "../page/typed.js";

const EVERY_MS = 1000;
/** Topics that are shown at first, and that come with each press of the button. */
const SHOWN = 50;
/** What `figures` returns. */
const SIZES = ["Records", "Bytes", "Records/s in", "Bytes/s in"];

export class TopicsPanel {
  #name = null;
  #records = new Records();
  #sizes = new Sizes();
  #turn = null;
  #wanted = "";
  #internal = false;
  #shown = SHOWN;
  #forms = new Forms();
  #administration = new TopicAdministration();
  /** `[client, promise of its producer]`. */
  #producer = [];

  /** Show all topics, or one of them, until `close`. */
  open(app, [name]) {
    this.close();
    this.#name = name || null;
    this.#forms.clear();
    this.#administration.clear();
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
  }

  close() {
    clearInterval(this.#turn);
    this.#records.close();
    this.#producer[1]?.then((producer) => producer.close()).catch(() => null);
    this.#producer = [];
  }

  view(app) {
    this.#look(app);
    return this.#name === null ? this.#list(app) : this.#topic(app);
  }

  /** Measure what is shown. */
  #look(app) {
    if (document.hidden || !app.live || !app.cluster || !app.log?.gateway) return;
    this.#sizes.look(app.log, this.#name === null ? this.#found(app).slice(0, this.#shown) : this.#one(app), () => app.draw());
  }

  #one(app) {
    return app.cluster.topics.filter(({ name }) => name === this.#name);
  }

  // --- all ---

  /** Worst first; of the cluster's own those with damage only, unless all are wanted. */
  #found(app) {
    return worstFirst(app.cluster.topics.filter(({ name, internal, damage }) => name.includes(this.#wanted) && (!internal || damage || this.#internal)));
  }

  #list(app) {
    const found = this.#found(app);
    const shown = found.slice(0, this.#shown);
    const change = (act) => (event) => {
      act(event.target);
      app.draw();
    };
    return [
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Topics"),
        h("label", { class: "small" }, "Name contains ", h("input", { type: "search", onInput: change(({ value }) => (this.#wanted = value)) })),
        h("label", { class: "small" }, h("input", { type: "checkbox", onChange: change(({ checked }) => (this.#internal = checked)) }), " with the cluster's own"),
      ),
      app.live ? null : past(),
      h("div", { class: "doing" }, app.live ? this.#administration.create(app) : null),
      shown.length ? this.#table(app, shown) : h("p", { class: "quiet" }, this.#wanted ? "No topic has that in its name: type less of it, or empty the field." : "There are no topics yet: create one above, or with tidelog topics create NAME."),
      fold(shown.length, found.length, SHOWN, `${whole(shown.length)} of ${many(found.length, "topic")}, the worst first.`, change(() => (this.#shown += SHOWN))),
    ];
  }

  #table(app, topics) {
    const heads = [["Topic"], ["Health"], ["Partitions", "number"], ...(app.live ? SIZES.map((title) => [title, "number"]) : [])];
    return table("All topics", heads, topics.map((topic) => [topic.topicId, this.#cells(app, topic)]));
  }

  #cells(app, topic) {
    const { name, partitions: all } = topic;
    const sizes = app.live ? figures(this.#sizes.of(topic)) : [];
    return [h("a", { href: `#/topics/${encodeURIComponent(name)}` }, name), healthMark(topic), whole(all.length), ...sizes];
  }

  // --- one ---

  #topic(app) {
    const [topic] = this.#one(app);
    const back = h("a", { href: "#/topics", class: "small" }, "All topics");
    if (!topic) return [h("div", { class: "row" }, h("h1", {}, this.#name), back), h("p", { class: "quiet" }, `There is no topic of that name at this moment, or these rights do not reach it (describe topic:${this.#name}): look among all topics, or create it there.`)];
    const worst = topic.partitions.find(({ state }) => state === topic.damage) ?? topic.partitions[0];
    return [
      h("div", { class: "row" }, h("h1", {}, topic.name), back, h("a", { href: `#/partition/${encodeURIComponent(topic.name)}/${worst.partition}`, class: "small" }, "Its partitions")),
      app.live ? null : past(),
      this.#facts(app, topic),
      h(
        "div",
        { class: "doing" },
        app.live && !topic.internal ? this.#produce(app, topic) : null,
        this.#administration.settings(app, topic),
        app.live ? this.#administration.others(app, topic) : null,
      ),
      app.live ? this.#records.view(app, topic) : null,
    ];
  }

  #facts(app, topic) {
    const sizes = app.live ? figures(this.#sizes.of(topic)) : [];
    return facts([["Health", healthMark(topic)], ["Partitions", whole(topic.partitions.length)], ...sizes.map((words, i) => [SIZES[i], words])]);
  }

  // --- what changes something ---

  #produce(app, topic) {
    const act = async ({ key, value, partition, headers, tombstone }) => {
      if (this.#producer[0] !== app.log) this.#producer = [app.log, app.log.producer(topic.name)];
      const producer = await this.#producer[1].catch((error) => {
        this.#producer = [];
        throw error;
      });
      const options = {
        ...(key === "" ? {} : { key: bytesOf(key) }),
        ...(partition === "" ? {} : { partition: partitionOf(topic, partition) }),
        headers: pairsOf(headers).map(([name, content]) => [name, bytesOf(content)]),
      };
      const ack = await producer.send(tombstone ? null : bytesOf(value), options);
      this.#records.refresh(app, topic);
      return `Acknowledged: partition ${ack.partition}, offset ${whole(ack.offset)}, ${ack.durability}.`;
    };
    const fields = [
      h("label", {}, "Key ", h("input", { name: "key", placeholder: "none" })),
      h("label", {}, "Partition ", h("input", { name: "partition", inputmode: "numeric", placeholder: "by the key", size: 10, autocomplete: "off" })),
      h("label", {}, h("input", { type: "checkbox", name: "tombstone" }), " null instead of the value (a tombstone)"),
      h("label", { class: "whole" }, "Value ", h("textarea", { name: "value", rows: 3, placeholder: "text, or 0x and hexadecimal digits" })),
      h("label", { class: "whole" }, "Headers ", h("textarea", { name: "headers", rows: 1, placeholder: "name: value, one on a line" })),
    ];
    return h("details", { key: `produce ${topic.topicId}` }, h("summary", {}, "Send a record"), this.#forms.form(app, "produce", fields, "Send", act));
  }
}

function past() {
  return h("p", { class: "quiet" }, "Records, sizes and rates are shown, and topics changed, as they are now only: press Now at the bottom.");
}

/** How a topic is, in words. */
function healthMark({ damage, partitions: all }) {
  if (!damage) return h("span", { class: "mark good" }, "all in sync");
  const count = all.filter(({ state }) => state === damage).length;
  const words = { offline: "without a leader", behind: "under-replicated", paused: "paused" }[damage];
  return h("span", { class: `mark ${damage === "offline" ? "bad" : "warning"}` }, `${whole(count)} of ${whole(all.length)} ${words}`);
}

/** A topic's sizes in words, by `SIZES`; what is not known is a dash, and what is not known of all partitions is marked. */
function figures({ records, bytes, recordsPerS, bytesPerS, whole: complete }) {
  const least = (words) => (complete ? words : `≥ ${words}`);
  const perSecond = (value) => (value > 0 && value < 1 ? value.toPrecision(1) : short(Math.round(value)));
  return [
    records === undefined ? "–" : least(whole(records)),
    bytes === undefined ? "–" : least(short(bytes, "B")),
    recordsPerS === undefined ? "–" : perSecond(recordsPerS),
    bytesPerS === undefined ? "–" : short(Math.round(bytesPerS), "B"),
  ];
}
