/** The part that every kind of consumer shares: an asynchronous iterable over records. */

import { now, turn } from "../clock.js";
import { TidelogError, UnreadableBatch } from "../errors.js";

/** Seconds without a wait after which other tasks run. */
const BUSY_S = 0.01;

/**
 * An asynchronous iterable over records, in order per partition; `nextRecords` returns a whole batch at a time.
 * Leaving the loop (`break`, an exception) closes the consumer.
 *
 * A batch that cannot be decoded is an `UnreadableBatch` error, and its partition stops before the batch. With
 * `onUnreadable: "skip"` it is skipped, counted and reported by `console.warn`.
 */
export class RecordStream {
  /** Id of the topic that is read; "" until the consumer is open. */
  topicId = "";
  /** The batch whose records are being returned; null before the first one. */
  current = null;
  /** The record of `current` that the iteration returned last; null if the batch was returned as a whole. */
  last = null;
  /** Number of batches, and of offsets in them, that were skipped because they cannot be decoded. */
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

  /** Yield the records, until the end if one was requested. */
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

  /**
   * Resolve with the records of the next batch; an empty array at the end. Do not mix with iteration in the middle of
   * a batch.
   */
  async nextRecords() {
    for (;;) {
      const opened = await this.nextOpened();
      if (!opened) return [];
      if (opened.records.length) return opened.records;
    }
  }

  /**
   * Resolve with the next batch, decoded: `{records, end, skippedOffsets}`, `end` being the position behind it; null
   * at the end. A control batch and a skipped batch have no records.
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

  /**
   * The position after the record that the iteration returned last; null if the current batch was returned as a
   * whole.
   */
  get reached() {
    return this.last && { leaderEpoch: this.last.leaderEpoch, offset: this.last.offset + 1 };
  }

  /** Drop the present batch, because the application asks for the next one. */
  beginBatch() {
    this.current = this.last = null;
    this.#records = [];
  }
}
