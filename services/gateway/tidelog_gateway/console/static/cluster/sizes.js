/** How much is in topics and how fast they grow, whichever gateway it comes through: as the leaders of partitions say. */

/** Topics are measured again after 20 times as long as it took, within these bounds: a leader that is gone takes long. */
const LEAST_MS = 5000;
const MOST_MS = 15_000;
const SPARING = 20;
const AT_ONCE = 4;

export class Sizes {
  /** By topic id the last two looks: `{at, partitions}`, the latter a Map by number; `before` undefined after the first. */
  #looks = new Map();
  #due = 0;
  #asking = false;

  /**
   * Ask for these topics, unless that was done a moment ago or is being done. `onChange()` is called when all have
   * answered, and after each answer while some were never measured. Topics that are not among them are forgotten. A topic
   * that cannot be described keeps what was known.
   */
  async look(log, topics, onChange) {
    const known = topics.every(({ topicId }) => this.#looks.has(topicId));
    if (this.#asking || (known && performance.now() < this.#due)) return;
    this.#asking = true;
    const began = performance.now();
    const wanted = new Set(topics.map(({ topicId }) => topicId));
    for (const topicId of this.#looks.keys()) if (!wanted.has(topicId)) this.#looks.delete(topicId);
    const waiting = [...topics];
    const ask = async () => {
      for (let topic; (topic = waiting.shift()); ) {
        const found = await log.describe(topic.name, { offsets: true }).catch(() => null);
        if (found) this.take(topic.topicId, performance.now(), found.partitions);
        else this.#looks.set(topic.topicId, this.#looks.get(topic.topicId) ?? {});
        if (!known) onChange();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, ask));
    this.#due = performance.now() + Math.min(MOST_MS, Math.max(LEAST_MS, SPARING * (performance.now() - began)));
    this.#asking = false;
    onChange();
  }

  /** A look at a topic, at that time in ms: its partitions with `logStart`, `highWatermark` and `bytes`, -1: not known. */
  take(topicId, at, partitions) {
    const known = partitions.filter(({ highWatermark }) => highWatermark >= 0);
    const after = { at, partitions: new Map(known.map((one) => [one.partition, one])) };
    this.#looks.set(topicId, { before: this.#looks.get(topicId)?.after, after });
  }

  /**
   * Return `{records, bytes, recordsPerS, bytesPerS, whole}`: undefined where it is not known, `whole` false where some
   * partition did not answer. Records that compaction or transactions left out are counted: it is a count of offsets.
   */
  of(topic) {
    const { before, after } = this.#looks.get(topic.topicId) ?? {};
    const found = [...(after?.partitions.values() ?? [])];
    if (!found.length) return { whole: false };
    const seconds = before ? (after.at - before.at) / 1000 : 0;
    const pairs = found.map((one) => [before?.partitions.get(one.partition), one]).filter(([old]) => old);
    const kept = pairs.filter(([old, one]) => old.logStart === one.logStart);
    const perSecond = (these, name) => (these.length && seconds > 0 ? sum(these, ([old, one]) => Math.max(0, one[name] - old[name])) / seconds : undefined);
    return {
      records: sum(found, ({ logStart, highWatermark }) => highWatermark - logStart),
      bytes: sum(found, ({ bytes }) => Math.max(0, bytes)),
      recordsPerS: perSecond(pairs, "highWatermark"),
      bytesPerS: perSecond(kept, "bytes"),
      whole: found.length === topic.partitions.length,
    };
  }
}

function sum(items, of) {
  return items.reduce((total, item) => total + of(item), 0);
}
