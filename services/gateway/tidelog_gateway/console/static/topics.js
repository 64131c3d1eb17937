/** Topics: all of them, worst first; of one its records, its settings, and a form to send some. */

import { many, worstFirst } from "./cluster.js";
import { h } from "./dom.js";
import { short, whole } from "./format.js";
import { partitions, Records } from "./records.js";
import { Sizes } from "./sizes.js";
import { bytesOf, pairsOf } from "./typed.js";

const EVERY_MS = 1000;
/** Topics that are shown at first, and that come with each press of the button. */
const SHOWN = 50;

export class TopicsPanel {
  #name = null;
  #records = new Records();
  #sizes = new Sizes();
  #turn = null;
  #wanted = "";
  #internal = false;
  #shown = SHOWN;
  #said = {};
  /** `[client, promise of its producer]`. */
  #producer = [];

  /** Show all topics, or one of them, until `close`. */
  open(app, [name]) {
    this.close();
    this.#name = name || null;
    this.#said = { create: this.#said.create };
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
      h("div", { class: "doing" }, app.live ? this.#create(app) : null),
      shown.length ? this.#table(app, shown) : h("p", { class: "quiet" }, this.#wanted ? "No topic has that in its name." : "There are no topics yet: create one above, or with tidelog topics create NAME."),
      found.length > shown.length
        ? h("p", { class: "acts" }, h("button", { onClick: change(() => (this.#shown += SHOWN)) }, `Show ${Math.min(SHOWN, found.length - shown.length)} more`), h("span", { class: "small quiet" }, `${whole(shown.length)} of ${many(found.length, "topic")}, the worst first.`))
        : null,
    ];
  }

  #table(app, topics) {
    const heads = ["Topic", "Health", "Partitions", ...(app.live ? ["Records", "Bytes", "Records/s in", "Bytes/s in"] : [])];
    return h(
      "div",
      { class: "wide stacked topics", tabindex: 0, role: "region", "aria-label": "All topics" },
      h("table", {}, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, topics.map((topic) => this.#row(app, topic)))),
    );
  }

  #row(app, topic) {
    const { name, partitions: all } = topic;
    const sizes = app.live ? figures(this.#sizes.of(topic)) : [];
    return h(
      "tr",
      { key: topic.topicId },
      h("td", {}, h("a", { href: `#/topics/${encodeURIComponent(name)}` }, name)),
      h("td", {}, healthMark(topic)),
      h("td", { "data-name": "partitions" }, whole(all.length)),
      sizes.map(([what, value]) => h("td", { "data-name": what }, value)),
    );
  }

  // --- one ---

  #topic(app) {
    const [topic] = this.#one(app);
    const back = h("a", { href: "#/topics", class: "small" }, "All topics");
    if (!topic) return [h("div", { class: "row" }, h("h1", {}, this.#name), back), h("p", { class: "quiet" }, "There is no topic of that name at this moment, or these rights do not reach it (describe topic).")];
    return [
      h("div", { class: "row" }, h("h1", {}, topic.name), back, h("a", { href: `#/partition/${encodeURIComponent(topic.name)}/0`, class: "small" }, "Its partitions")),
      app.live ? null : past(),
      this.#facts(app, topic),
      h("div", { class: "doing" }, app.live && !topic.internal ? this.#produce(app, topic) : null, this.#settings(app, topic)),
      app.live ? this.#records.view(app, topic) : null,
    ];
  }

  #facts(app, topic) {
    const sizes = app.live ? figures(this.#sizes.of(topic)) : [];
    const facts = [["health", healthMark(topic)], ["partitions", whole(topic.partitions.length)], ...sizes];
    return h("dl", { class: "facts" }, facts.map(([what, value]) => h("div", {}, h("dt", {}, what), h("dd", {}, value))));
  }

  // --- what changes something ---

  /** A form; `act(fields)` does it and says what was done. */
  #form(app, name, fields, button, act) {
    const onSubmit = async (event) => {
      event.preventDefault();
      const form = event.target;
      const given = Object.fromEntries(new FormData(form));
      this.#say(app, name, "…");
      try {
        this.#say(app, name, await act(given, form));
      } catch (error) {
        this.#say(app, name, `Not done: ${error.message}${error.code ? ` (${error.code})` : ""}`);
      }
    };
    return h("form", { class: "fields", onSubmit }, fields, h("button", { class: "main" }, button), h("p", { class: "small said", role: "status" }, this.#said[name] ?? ""));
  }

  #say(app, name, words) {
    this.#said = { ...this.#said, [name]: words };
    app.draw();
  }

  #produce(app, topic) {
    const act = async ({ key, value, partition, headers, tombstone }) => {
      if (this.#producer[0] !== app.log) this.#producer = [app.log, app.log.producer(topic.name)];
      const producer = await this.#producer[1].catch((error) => {
        this.#producer = [];
        throw error;
      });
      const options = {
        ...(key === "" ? {} : { key: bytesOf(key) }),
        ...(partition === "" ? {} : { partition: Number(partition) }),
        headers: pairsOf(headers).map(([name, content]) => [name, bytesOf(content)]),
      };
      const ack = await producer.send(tombstone ? null : bytesOf(value), options);
      this.#records.refresh(app, topic);
      return `Acknowledged: partition ${ack.partition}, offset ${whole(ack.offset)}, ${ack.durability}.`;
    };
    const fields = [
      h("label", {}, "Key ", h("input", { name: "key", placeholder: "none" })),
      h("label", {}, "Partition ", partitions(topic, [["", "by the key"]])),
      h("label", {}, h("input", { type: "checkbox", name: "tombstone" }), " null instead of the value (a tombstone)"),
      h("label", { class: "whole" }, "Value ", h("textarea", { name: "value", rows: 3, placeholder: "text, or 0x and hexadecimal digits" })),
      h("label", { class: "whole" }, "Headers ", h("textarea", { name: "headers", rows: 1, placeholder: "name: value, one on a line" })),
    ];
    return h("details", { key: `produce ${topic.topicId}` }, h("summary", {}, "Send a record"), this.#form(app, "produce", fields, "Send", act));
  }

  #settings(app, topic) {
    const table = Object.entries(topic.config).sort();
    const act = async (given, form) => {
      const changed = Object.entries(given).filter(([name, value]) => name !== " partitions" && value !== topic.config[name]);
      const more = Number(given[" partitions"]);
      if (changed.length) await app.log.configureTopic(topic.name, Object.fromEntries(changed));
      if (more !== topic.partitions.length) await app.log.growTopic(topic.name, more);
      form.reset();
      return changed.length || more !== topic.partitions.length ? "Done." : "Nothing was changed.";
    };
    const off = !app.live || topic.internal;
    const fields = [
      h("label", {}, h("span", {}, "partitions"), h("input", { name: " partitions", type: "number", min: topic.partitions.length, defaultValue: topic.partitions.length, disabled: off })),
      table.map(([name, value]) => h("label", { key: name }, h("span", {}, name), h("input", { name, defaultValue: value, disabled: off }))),
    ];
    return h(
      "details",
      { key: `settings ${topic.topicId}` },
      h("summary", {}, "Settings"),
      off ? h("dl", { class: "settings" }, table.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value || "–")))) : h("div", { class: "settings" }, this.#form(app, "settings", fields, "Change", act)),
    );
  }

  #create(app) {
    const act = async ({ name, partitions: count, copies, config }) => {
      const options = { partitions: Number(count), replicationFactor: Number(copies), config: Object.fromEntries(pairsOf(config, "=")) };
      await app.log.createTopic(name, options);
      location.hash = `#/topics/${encodeURIComponent(name)}`;
      return `${name} is there.`;
    };
    const live = app.cluster.servers.filter(({ fenced }) => !fenced).length || 3;
    const fields = [
      h("label", {}, "Name ", h("input", { name: "name", required: true })),
      h("label", {}, "Partitions ", h("input", { name: "partitions", type: "number", min: 1, defaultValue: 1 })),
      h("label", {}, "Replicas ", h("input", { name: "copies", type: "number", min: 1, defaultValue: Math.min(3, live) })),
      h("label", { class: "whole" }, "Settings ", h("textarea", { name: "config", rows: 2, placeholder: "retention_ms=3600000, one on a line" })),
    ];
    return h("details", { key: "create" }, h("summary", {}, "Create a topic"), this.#form(app, "create", fields, "Create", act));
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

/** `[what, words]` of a topic's size; what is not known is a dash, and what is not known of all partitions is marked. */
function figures({ records, bytes, recordsPerS, bytesPerS, whole: complete }) {
  const least = (words) => (complete ? words : `≥ ${words}`);
  const perSecond = (value) => (value > 0 && value < 1 ? value.toPrecision(1) : short(Math.round(value)));
  return [
    ["records", records === undefined ? "–" : least(whole(records))],
    ["bytes", bytes === undefined ? "–" : least(short(bytes, "B"))],
    ["records/s in", recordsPerS === undefined ? "–" : perSecond(recordsPerS)],
    ["bytes/s in", bytesPerS === undefined ? "–" : short(Math.round(bytesPerS), "B")],
  ];
}
