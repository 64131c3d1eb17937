/** The records of a topic: the newest at once, and any that are asked for; as a table, and as a file. */

import { show, FORMATS } from "./decode.js";
import { h } from "../page/dom.js";
import { reason } from "../page/failures.js";
import { NO_FILTERS } from "./filters.js";
import { OF_KEY, Search, WAYS } from "./finding.js";
import { clock, whole } from "../page/format.js";
import { download, lineOf } from "./ndjson.js";

const COUNTS = [50, 500, 5000];
/** Most of those that are followed. */
const MOST = 500;
/** Most that are drawn; the file has all. */
const DRAWN = 500;
const CLIPPED = 160;
const FIELDS = [
  { name: "key", words: "Key is", hint: "text, or 0x and digits" },
  { name: "value", words: "Value contains", hint: "text, or 0x and digits" },
  { name: "header", words: "Header", hint: "name, or name: part of its value" },
  { name: "path", words: "JSON path", hint: "$.customer.id = 7" },
  { name: "since", words: "From the time", type: "datetime-local" },
  { name: "until", words: "Until before", type: "datetime-local" },
];
const NEWEST = { way: "newest", offset: "", partition: null, filters: NO_FILTERS };

export class Records {
  #topicId = null;
  #search = null;
  #want = NEWEST;
  #way = "newest";
  #count = COUNTS[0];
  #format = "auto";
  #due = null;
  /** By record: what is drawn of it, and in which format. */
  #rows = new WeakMap();

  /** Forget them, and look no further. */
  close() {
    this.#search?.stop().catch(() => null);
    this.#search = null;
    this.#topicId = null;
  }

  /** Ask the same again, as when a record was sent; what is being followed comes by itself. */
  refresh(app, topic) {
    if (!this.#search?.follows || this.#search.phase !== "running") this.#start(app, topic, this.#want);
  }

  view(app, topic) {
    if (topic.topicId !== this.#topicId && app.log?.gateway) {
      this.close();
      this.#topicId = topic.topicId;
      this.#way = "newest";
      this.#start(app, topic, NEWEST);
    }
    const running = this.#search?.phase === "running";
    const onSubmit = (event) => {
      event.preventDefault();
      this.#start(app, topic, wantOf(new FormData(event.target)));
    };
    return h(
      "section",
      { key: `records ${topic.topicId}`, "aria-labelledby": "records" },
      h("h2", { id: "records" }, "Records"),
      h(
        "form",
        { class: "fields", onSubmit },
        h("label", {}, "Show ", h("select", { name: "way", onChange: ({ target }) => ((this.#way = target.value), app.draw()) }, WAYS.map(({ way, words }) => h("option", { value: way, selected: way === this.#way }, words)))),
        this.#way === "offset" ? h("input", { key: "offset", name: "offset", inputmode: "numeric", required: true, placeholder: "0", "aria-label": "Offset" }) : null,
        h("label", {}, "of partition ", partitionField()),
        this.#way === "follow" ? null : h("label", { key: "count" }, "at most ", h("select", { name: "count", onChange: ({ target }) => (this.#count = Number(target.value)) }, COUNTS.map((count) => h("option", { value: count }, whole(count))))),
        h("label", { key: "format" }, "as ", h("select", { name: "format", onChange: ({ target }) => ((this.#format = target.value), app.draw()) }, FORMATS.map((one) => h("option", { value: one }, one)))),
        h("details", { class: "whole filters" }, h("summary", {}, "Filter by key, value, header, JSON path or time"), h("div", { class: "grid" }, FIELDS.map(field))),
        h("button", { class: "main" }, this.#way === "follow" ? "Follow" : "Show"),
        running ? h("button", { type: "button", onClick: () => this.#search.stop() }, "Stop") : null,
      ),
      h("p", { class: "small quiet", role: "status" }, this.#progress()),
      this.#search?.found.length ? this.#found(topic) : null,
      this.#search?.phase === "paused" ? h("button", { onClick: () => this.#search.more(this.#count) }, `Show ${whole(this.#count)} more`) : null,
    );
  }

  #start(app, topic, want) {
    this.#want = want;
    this.#search?.stop().catch(() => null);
    const onChange = () => {
      this.#due ??= setTimeout(() => {
        this.#due = null;
        app.draw();
      }, 100);
    };
    try {
      this.#search = new Search(app.log, topic, want, { most: MOST, onChange });
      this.#search.more(this.#count);
    } catch (error) {
      this.#search = { phase: "failed", error, found: [], looked: 0, stop: async () => {} };
    }
    app.draw();
  }

  #progress() {
    if (!this.#search) return "";
    const { phase, found, looked, error, follows } = this.#search;
    if (phase === "failed") return `Not read: ${reason(error)}`;
    const records = `${whole(found.length)} found, ${whole(looked)} looked at`;
    if (phase === "running") return follows ? `Following: ${records}.` : `Looking: ${records}…`;
    const filtered = Object.values(this.#want.filters).some(Boolean);
    const next = found.length ? "" : filtered ? " Loosen the filter, or choose another place." : " Send one above, or choose another place.";
    return phase === "done" && !follows ? `That is all: ${records}.${next}` : `${records}.`;
  }

  #found(topic) {
    const { found } = this.#search;
    const name = `${topic.name.replace(/[^\w.-]/g, "_")}.ndjson`;
    const head = ["Partition", "Offset", "Time", "Key", "Value"].map((one) => h("th", { scope: "col" }, one));
    return [
      h(
        "p",
        { class: "acts" },
        h("button", { onClick: () => download(name, found.map(lineOf)) }, `Download ${whole(found.length)} as NDJSON`),
        found.length > DRAWN ? h("span", { class: "small quiet" }, `The first ${whole(DRAWN)} are shown; the file has all.`) : null,
      ),
      h(
        "div",
        { class: "wide stacked records", tabindex: 0, role: "region", "aria-label": "What was found" },
        h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, found.slice(0, DRAWN).map((record) => this.#row(record)))),
      ),
    ];
  }

  #row(record) {
    let drawn = this.#rows.get(record);
    if (drawn?.format !== this.#format) {
      drawn = { format: this.#format, row: row(record, this.#format) };
      this.#rows.set(record, drawn);
    }
    return drawn.row;
  }
}

function wantOf(form) {
  const partition = form.get("partition");
  return {
    way: form.get("way"),
    offset: form.get("offset") ?? "",
    partition: partition === "" ? null : partition === OF_KEY ? OF_KEY : Number(partition),
    filters: Object.fromEntries(Object.keys(NO_FILTERS).map((name) => [name, form.get(name).trim()])),
  };
}

function field({ name, words, hint, type = "text" }) {
  return h("label", {}, h("span", {}, words), h("input", { name, type, step: type === "text" ? null : "0.001", placeholder: hint }));
}

/** All partitions, that of the key, or one by its number: a topic may have thousands. */
function partitionField() {
  return [
    h("input", { name: "partition", list: "partition-ways", placeholder: "all", size: 8, pattern: `\\d*|${OF_KEY}`, title: `a number; nothing: all; ${OF_KEY}: that of the key below`, autocomplete: "off" }),
    h("datalist", { id: "partition-ways" }, h("option", { value: OF_KEY, label: "that of the key" })),
  ];
}

function row(record, format) {
  const value = show(record.value, format);
  const headers = record.headers ?? [];
  const line = value.text.replace(/\s+/g, " ");
  const long = headers.length || line.length > CLIPPED || (value.format === "text" && value.text.includes("\n"));
  return h(
    "tr",
    { key: `${record.partition}/${record.offset}` },
    h("td", { "data-name": "partition" }, String(record.partition)),
    h("td", { "data-name": "offset" }, whole(record.offset)),
    h("td", {}, clock(record.timestampMs)),
    h("td", { "data-name": "key" }, record.key === null ? h("span", { class: "quiet" }, "none") : h("code", {}, show(record.key).text)),
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
