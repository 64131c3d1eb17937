/** Records of a topic as somebody asks for them: the newest, from a place on, or as they come; all, or those that match. */

import { partitionOf } from "../client/tidelog.js";
import { matcher } from "./filters.js";
import { bytesOf, offsetOf, timeOf } from "../page/typed.js";

/** Where records can be asked for from. */
export const WAYS = [
  { way: "newest", words: "the newest" },
  { way: "earliest", words: "from the beginning" },
  { way: "offset", words: "from offset" },
  { way: "follow", words: "as they come" },
];
/** A consumer returns the newest of each partition. Of so many partitions the newest of all of them come first. */
const MERGED = 64;
/** Instead of a partition: the one that the key of the filter belongs to. */
export const OF_KEY = "key";

/**
 * Return the consumer's options for what is asked: `{way, offset, partition, filters}`; `partition` null: all. What the
 * times of the filters leave out is not even read. Throws `RangeError`.
 */
export function optionsOf({ way, offset, partition, filters }, partitions) {
  const only = partition === null ? {} : { partitions: [partition === OF_KEY ? partitionOfKey(filters.key, partitions) : partition] };
  const since = timeOf(filters.since);
  const until = timeOf(filters.until);
  switch (way) {
    case "newest":
      return { ...only, start: until ?? "latest", end: since ?? null, reverse: true };
    case "earliest":
      return { ...only, start: since ?? "earliest", end: until ?? "latest" };
    case "offset":
      return { ...only, start: offsetOf(offset), end: "latest" };
    default:
      return { ...only, start: "latest" };
  }
}

function partitionOfKey(key, partitions) {
  if (!key) throw new RangeError("type the key whose partition is meant into the filter");
  return partitionOf(bytesOf(key), partitions);
}

/** What `want` asks for, some at a time. Records are looked at until as many are found as were asked for, or all were. */
export class Search {
  /** Records found, in the order of their times: newest first, unless they were asked for from a place on. */
  found = [];
  looked = 0;
  /** `running`, `paused` (there may be more), `done`, or `failed`. */
  phase = "running";
  error = null;
  #consumers;
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
    this.#matches = matcher(want.filters);
    this.#order = options.reverse || this.follows ? -1 : 1;
    this.#most = most;
    this.#onChange = onChange;
    const chosen = options.partitions ?? [...topic.partitions.keys()];
    const shares = options.reverse && chosen.length <= MERGED ? chosen.map((partition) => ({ ...options, partitions: [partition] })) : [options];
    this.#consumers = shares.map((share) => log.consume(topic.name, share));
    this.#iterator = newestFirst(this.#consumers.map((consumer) => consumer[Symbol.asyncIterator]()));
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
    await Promise.all(this.#consumers.map((consumer) => consumer.close()));
    this.#onChange();
  }
}

/** Yield the records of several iterators that have the newest first, the newest of all of them first. */
async function* newestFirst(iterators) {
  if (iterators.length === 1) {
    for (let next; !(next = await iterators[0].next()).done; ) yield next.value;
    return;
  }
  const heads = await Promise.all(iterators.map((one) => one.next()));
  for (;;) {
    let first = -1;
    heads.forEach(({ done, value }, i) => {
      if (!done && (first < 0 || compare(value, heads[first].value) > 0)) first = i;
    });
    if (first < 0) return;
    yield heads[first].value;
    heads[first] = await iterators[first].next();
  }
}

function compare(a, b) {
  return a.timestampMs - b.timestampMs || a.partition - b.partition || a.offset - b.offset;
}
