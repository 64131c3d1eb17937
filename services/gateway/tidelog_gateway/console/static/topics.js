/** Topics: find their records and follow them, send some, create topics and change their settings. */

import { bytesOf, linesOf, Search, WAYS } from "./finding.js";
import { FORMATS, show } from "./decode.js";
import { h } from "./dom.js";
import { clock, whole } from "./format.js";

const COUNT = 100;
const MOST = 500;
const CLIPPED = 160;

export class TopicsPanel {
  #topic = null;
  #search = null;
  #want = { way: "newest", value: "", partition: null };
  #format = "auto";
  #said = {};
  /** `[client, promise of its producer]`. */
  #producer = [];
  #due = null;

  /** Look at a topic, until `close`. */
  open(app, [topic]) {
    this.close();
    this.#topic = topic ?? null;
    this.#said = { create: this.#said.create };
    this.#want = { ...this.#want, partition: null };
  }

  close() {
    this.#search?.stop().catch(() => null);
    this.#search = null;
    this.#producer[1]?.then((producer) => producer.close()).catch(() => null);
    this.#producer = [];
  }

  view(app) {
    const topics = app.cluster.topics;
    const topic = topics.find(({ name }) => name === this.#topic) ?? topics[0];
    return [
      h(
        "div",
        { class: "row" },
        h("h1", {}, topic?.name ?? "Topics"),
        h("label", { class: "small" }, "Topic ", h("select", { onChange: ({ target }) => (location.hash = `#/topics/${encodeURIComponent(target.value)}`) }, topics.map(({ name }) => h("option", { value: name, selected: name === topic?.name }, name)))),
      ),
      app.live ? null : h("p", { class: "quiet" }, "Records and settings can be read and changed as they are now only: go back to now."),
      h(
        "div",
        { class: "doing" },
        topic && app.live && !topic.internal ? this.#produce(app, topic) : null,
        topic ? this.#settings(app, topic) : null,
        app.live ? this.#create(app) : null,
      ),
      topic && app.live ? this.#records(app, topic) : null,
    ];
  }

  // --- records ---

  #records(app, topic) {
    const way = WAYS.find((one) => one.way === this.#want.way);
    const change = (part) => {
      this.#want = { ...this.#want, ...part };
      app.draw();
    };
    const onSubmit = (event) => {
      event.preventDefault();
      this.#start(app, topic);
    };
    const running = this.#search?.phase === "running";
    return h(
      "section",
      { "aria-labelledby": "records" },
      h("h2", { id: "records" }, "Records"),
      h(
        "form",
        { class: "fields", onSubmit },
        h("label", {}, "Show ", h("select", { name: "way", onChange: ({ target }) => change({ way: target.value, value: "" }) }, WAYS.map(({ way: value, words }) => h("option", { value, selected: value === way.way }, words)))),
        way.needs ? h("input", { key: way.way, name: "value", type: way.needs, step: "0.001", required: true, placeholder: way.hint, "aria-label": way.words, onInput: ({ target }) => change({ value: target.value }) }) : null,
        h("label", {}, "of partition ", partitions(topic, "all", ({ target }) => change({ partition: target.value === "" ? null : Number(target.value) }))),
        h("label", {}, "as ", h("select", { name: "format", onChange: ({ target }) => ((this.#format = target.value), app.draw()) }, FORMATS.map((one) => h("option", { value: one }, one)))),
        h("button", { class: "main", disabled: running && !this.#search.follows }, way.way === "follow" ? "Follow" : "Show"),
        running ? h("button", { type: "button", onClick: () => this.#search.stop() }, "Stop") : null,
      ),
      h("p", { class: "small quiet", role: "status" }, this.#progress()),
      this.#search?.found.length ? this.#table() : null,
      this.#search?.phase === "paused" ? h("button", { onClick: () => this.#search.more(COUNT) }, `Show ${COUNT} more`) : null,
    );
  }

  #start(app, topic) {
    this.#search?.stop();
    const onChange = () => {
      this.#due ??= setTimeout(() => {
        this.#due = null;
        app.draw();
      }, 100);
    };
    try {
      this.#search = new Search(app.log, topic, this.#want, { most: MOST, onChange });
      this.#search.more(COUNT);
    } catch (error) {
      this.#search = { phase: "failed", error, found: [], looked: 0, stop: async () => {} };
    }
    app.draw();
  }

  #progress() {
    if (!this.#search) return "";
    const { phase, found, looked, error, follows } = this.#search;
    if (phase === "failed") return `Not read: ${error.message}`;
    const records = `${whole(found.length)} found, ${whole(looked)} looked at`;
    if (phase === "running") return follows ? `Following: ${records}.` : `Looking: ${records}…`;
    return phase === "done" && !follows ? `That is all: ${records}.` : `${records}.`;
  }

  #table() {
    const head = ["Partition", "Offset", "Time", "Key", "Value"].map((name) => h("th", { scope: "col" }, name));
    return h(
      "div",
      { class: "wide records", tabindex: 0, role: "region", "aria-label": "What was found" },
      h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, this.#search.found.map((record) => this.#row(record)))),
    );
  }

  #row(record) {
    const value = show(record.value, this.#format);
    const headers = record.headers ?? [];
    const line = value.text.replace(/\s+/g, " ");
    const long = headers.length || line.length > CLIPPED || (value.format === "text" && value.text.includes("\n"));
    return h(
      "tr",
      { key: `${record.partition}/${record.offset}` },
      h("td", {}, String(record.partition)),
      h("td", {}, whole(record.offset)),
      h("td", {}, clock(record.timestampMs)),
      h("td", {}, record.key === null ? h("span", { class: "quiet" }, "none") : h("code", {}, show(record.key).text)),
      h(
        "td",
        {},
        record.value === null ? h("span", { class: "quiet" }, "null: a tombstone") : null,
        long
          ? h("details", {}, h("summary", {}, h("code", {}, line.slice(0, CLIPPED)), h("span", { class: "mark" }, value.format)), h("pre", {}, value.text), headers.map(([name, content]) => h("p", { class: "small" }, h("b", {}, `${name}: `), h("code", {}, show(content).text))))
          : h("code", {}, line),
      ),
    );
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
    const act = async ({ key, value, partition, headers }) => {
      if (this.#producer[0] !== app.log) this.#producer = [app.log, app.log.producer(topic.name)];
      const producer = await this.#producer[1].catch((error) => {
        this.#producer = [];
        throw error;
      });
      const options = {
        ...(key === "" ? {} : { key: bytesOf(key) }),
        ...(partition === "" ? {} : { partition: Number(partition) }),
        headers: linesOf(headers),
      };
      const ack = await producer.send(bytesOf(value), options);
      return `Acknowledged: partition ${ack.partition}, offset ${whole(ack.offset)}, ${ack.durability}.`;
    };
    const fields = [
      h("label", {}, "Key ", h("input", { name: "key", placeholder: "none" })),
      h("label", {}, "Partition ", partitions(topic, "by the key")),
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
      const options = { partitions: Number(count), replicationFactor: Number(copies), config: linesOf(config, "=") };
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

function partitions(topic, none, onChange) {
  return h(
    "select",
    { name: "partition", onChange },
    h("option", { value: "" }, none),
    topic.partitions.map(({ partition }) => h("option", { value: partition }, String(partition))),
  );
}
