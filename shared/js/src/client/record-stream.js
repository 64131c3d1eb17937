/** What every kind of consumer is for the application: an asynchronous iterable over records. */

import { now, turn } from "../clock.js";
import { TidelogError, UnreadableBatch } from "../errors.js";

/** After so long without a wait others have their turn. */
const BUSY_S = 0.01;

/**
 * Iterate over it for records, in order per partition; `nextRecords` gives a whole batch at a time. Who leaves the loop
 * (`break`, an exception) has closed it.
 *
 * A batch that cannot be decoded is an `UnreadableBatch` error, and the partition stands before it. With `onUnreadable:
 * "skip"` it is passed over, counted and reported by `console.warn`.
 */
export class RecordStream {
  /** Which topic of that name it is; known when the consumer is open. */
  topicId = "";
  /** The batch that was opened last. */
  current = null;
  /** The record of it that was handed out last, where they are handed out one by one. */
  last = null;
  /** Batches that were passed over since they cannot be decoded, and the offsets of them that were to be read. */
  skippedBatches = 0;
  skippedOffsets = 0;
  #codecs;
  #onUnreadable;
  #records = [];
  #busySince = now();

  constructor(topic, codecs, onUnreadable) {
    this.topic = topic;
    this.#codecs = codecs;
    this.#onUnreadable = onUnreadable;
  }

  /** The records, until the end if one was asked for. */
  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        if (!this.#records.length) this.#records = (await this.nextRecords()).reverse();
        if (!this.#records.length) return;
        this.last = this.#records.pop();
        yield this.last;
      }
    } finally {
      await this.close();
    }
  }

  /** The records of the next batch; empty at the end. Not to be mixed with iteration in the middle of a batch. */
  async nextRecords() {
    for (;;) {
      const opened = await this.nextOpened();
      if (!opened) return [];
      if (opened.records.length) return opened.records;
    }
  }

  /**
   * The next batch, decoded: `{records, end, skippedOffsets}`, `end` being the position behind it; null at the end. There
   * are no records in a control batch, and of one that was skipped.
   */
  async nextOpened() {
    if (now() > this.#busySince + BUSY_S) {
      await turn();
      this.#busySince = now();
    }
    this.beginBatch();
    const fetched = await this.nextBatch();
    if (!fetched) return null;
    const end = { leaderEpoch: fetched.header.leaderEpoch, offset: fetched.end };
    try {
      const records = fetched.records(this.topic, this.#codecs);
      if (records.length) this.current = fetched;
      return { records, end, skippedOffsets: 0 };
    } catch (error) {
      if (!(error instanceof TidelogError)) throw error;
      if (this.#onUnreadable === "raise" || !(error instanceof UnreadableBatch) || error.isDamaged) {
        this.stopBefore(fetched, error);
        throw error;
      }
      const skippedOffsets = fetched.end - fetched.first;
      this.skippedBatches += 1;
      this.skippedOffsets += skippedOffsets;
      console.warn(`tidelog: skipped: ${error.place}: ${error.why}`);
      return { records: [], end, skippedOffsets };
    }
  }

  /** The end of what was handed out of the current batch, if that was not all of it at once. */
  get reached() {
    return this.last && { leaderEpoch: this.last.leaderEpoch, offset: this.last.offset + 1 };
  }

  /** The application is done with the batch before. */
  beginBatch() {
    this.current = this.last = null;
    this.#records = [];
  }
}
