/** What every kind of consumer is for the application: an asynchronous iterable over records. */

import { now, turn } from "./clock.js";

/** After so long without a wait others have their turn. */
const BUSY_S = 0.01;

/**
 * Iterate over it for records, in order per partition; `nextRecords` gives a whole batch at a time. Who leaves the loop
 * (`break`, an exception) has closed it.
 */
export class RecordStream {
  /** Which topic of that name it is; known when the consumer is open. */
  topicId = "";
  /** The batch that was opened last. */
  current = null;
  /** The record of it that was handed out last, where they are handed out one by one. */
  last = null;
  #codecs;
  #records = [];
  #busySince = now();

  constructor(topic, codecs) {
    this.topic = topic;
    this.#codecs = codecs;
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
      if (now() > this.#busySince + BUSY_S) {
        await turn();
        this.#busySince = now();
      }
      this.beginBatch();
      const fetched = await this.nextBatch();
      if (!fetched) return [];
      const records = fetched.records(this.topic, this.#codecs);
      if (!records.length) continue;
      this.current = fetched;
      return records;
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
