/** Records of a topic as somebody asks for them: the newest, from a place on, of a key, or as they come. */

import { partitionOf } from "./client/tidelog.js";

/** What can be asked for, and what it needs. */
export const WAYS = [
  { way: "newest", words: "the newest" },
  { way: "earliest", words: "from the beginning" },
  { way: "offset", words: "from offset", needs: "text", hint: "0" },
  { way: "time", words: "from a time", needs: "datetime-local" },
  { way: "key", words: "with the key", needs: "text", hint: "as text, or 0x and digits" },
  { way: "follow", words: "as they come" },
];

/** The consumer's options for what is asked: `{way, value, partition}`, `partition` null: all. Throws `RangeError`. */
export function optionsOf({ way, value, partition }, partitions) {
  const only = partition === null ? {} : { partitions: [partition] };
  switch (way) {
    case "newest":
      return { ...only, start: "latest", reverse: true };
    case "earliest":
      return { ...only, start: "earliest", end: "latest" };
    case "offset":
      return { ...only, start: offsetOf(value), end: "latest" };
    case "time":
      return { ...only, start: timeOf(value), end: "latest" };
    case "key":
      return { partitions: [partition ?? partitionOf(bytesOf(value), partitions)], start: "latest", reverse: true };
    default:
      return { ...only, start: "latest" };
  }
}

/** Whether a record is one of those that are asked for. */
export function isWanted({ way, value }) {
  if (way !== "key") return () => true;
  const key = bytesOf(value);
  return (record) => record.key?.length === key.length && record.key.every((byte, i) => byte === key[i]);
}

/** A text's UTF-8; what begins with 0x is hexadecimal. Throws `RangeError`. */
export function bytesOf(text) {
  if (!/^0x/i.test(text)) return new TextEncoder().encode(text);
  const digits = text.slice(2).replace(/\s/g, "");
  if (digits.length % 2 || /[^0-9a-f]/i.test(digits)) throw new RangeError("after 0x come pairs of hexadecimal digits");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

function offsetOf(text) {
  const offset = Number(text);
  if (!text.trim() || !Number.isSafeInteger(offset) || offset < 0) throw new RangeError("an offset is a whole number from 0 on");
  return offset;
}

function timeOf(text) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) throw new RangeError("no time is given");
  return time;
}

/** `name: value` lines as an object. Throws `RangeError`. */
export function linesOf(text, mark = ":") {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf(mark);
      if (at < 1) throw new RangeError(`"${line}" has no ${mark} between name and value`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

/** What `want` asks for, some at a time. Records are looked at until as many are found as were asked for, or all were. */
export class Search {
  /** Records found, in the order of their times: newest first, unless they were asked for from a place on. */
  found = [];
  looked = 0;
  /** `running`, `paused` (there may be more), `done`, or `failed`. */
  phase = "running";
  error = null;
  #consumer;
  #iterator;
  #matches;
  #wanted = 0;
  #order;
  #most;
  #onChange;

  /** `most`: of those that come more than so many are forgotten, the oldest first. */
  constructor(log, topic, want, { most, onChange }) {
    const options = optionsOf(want, topic.partitions.length);
    this.follows = want.way === "follow";
    this.#matches = isWanted(want);
    this.#order = options.reverse || this.follows ? -1 : 1;
    this.#most = most;
    this.#onChange = onChange;
    this.#consumer = log.consume(topic.name, options);
    this.#iterator = this.#consumer[Symbol.asyncIterator]();
  }

  /** Find so many more. */
  async more(count) {
    this.#wanted = this.found.length + count;
    this.phase = "running";
    try {
      while (this.phase === "running" && (this.follows || this.found.length < this.#wanted)) {
        const { done, value } = await this.#iterator.next();
        if (done) this.phase = "done";
        else this.#take(value);
      }
      if (this.phase === "running") this.phase = "paused";
    } catch (error) {
      if (this.phase === "running") {
        this.phase = "failed";
        this.error = error;
      }
    }
    this.#onChange();
  }

  #take(record) {
    this.looked += 1;
    if (this.#matches(record)) {
      const { found } = this;
      let at = found.length;
      while (at > 0 && this.#order * compare(found[at - 1], record) > 0) at -= 1;
      found.splice(at, 0, record);
      if (this.follows && found.length > this.#most) found.pop();
    }
    if (this.looked % 100 === 0 || this.follows) this.#onChange();
  }

  /** Look no further. */
  async stop() {
    if (this.phase === "running" || this.phase === "paused") this.phase = "done";
    await this.#consumer.close();
    this.#onChange();
  }
}

function compare(a, b) {
  return a.timestampMs - b.timestampMs || a.partition - b.partition || a.offset - b.offset;
}
