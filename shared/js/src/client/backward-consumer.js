/** A consumer that reads backwards, as an application sees it: an asynchronous iterable, newest records first. */

import { BackwardCore } from "../core/backward-consumer.js";
import { freshness } from "./consumer.js";
import { Closed, TidelogError } from "../errors.js";
import { creditOf } from "./options.js";
import { RecordStream } from "./record-stream.js";
import * as messages from "../wire/messages.js";
import { unless } from "../wire/shapes.js";

/**
 * An asynchronous iterable over records, the newest first in each partition. The iteration ends at its bound and
 * never waits for new records. Made by `Log.consume(topic, {reverse: true})`.
 *
 * All partitions are read at the same time, each time at most `partitionBytes` of each, or one batch.
 */
export class BackwardConsumer extends RecordStream {
  #connection;
  #options;
  #plan;
  #core = null;
  #opening = null;
  #closed = false;

  constructor(connection, topic, options, codecs, plan) {
    super(topic, codecs, options.onUnreadable);
    this.#connection = connection;
    this.#options = options;
    this.#plan = plan;
  }

  /** Look up the positions to begin at, once. Rejects with `UNKNOWN_TOPIC`. */
  open() {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  /** Resolve with the records of the next batch, the newest first; an empty array at the end. */
  async nextRecords() {
    return (await super.nextRecords()).reverse();
  }

  /**
   * Map of partition to position: the offset of the last record that was returned. A later backward read continues
   * below it.
   */
  get positions() {
    const positions = this.#core?.positions ?? new Map();
    if (this.last) positions.set(this.last.partition, { leaderEpoch: -1, offset: this.last.offset });
    return positions;
  }

  /** Stop reading for good. */
  async close() {
    this.#closed = true;
  }

  /** Stop reading the partition of the batch that was returned last, because it cannot be decoded. */
  stopBefore(fetched, error) {
    this.#core.fail(fetched, error);
  }

  /**
   * Resolve with the next batch, not decoded: its records from `first` to `end` (exclusive), oldest first; null at
   * the end.
   */
  async nextBatch() {
    if (this.#closed) throw new Closed(`the consumer of ${this.topic} is closed`);
    await this.open();
    for (;;) {
      const fetched = this.#core.take();
      if (fetched) return fetched;
      if (this.#core.isFinished) return null;
      await this.#look();
    }
  }

  async #open() {
    const { topicId, starts, ends, locate } = await this.#plan();
    this.topicId = topicId;
    const exact = ends.size > 0;
    const found = exact ? [] : await locate("earliest", [...starts.keys()]);
    const bounds = exact ? ends : new Map([...found].map(([partition, { offset }]) => [partition, offset]));
    const windowBytes = creditOf(this.#options, starts.size);
    this.#core = new BackwardCore({ topic: this.topic, starts, bounds, exact, windowBytes });
  }

  /**
   * Read all windows that are wanted, at the same time. Rejects with a retriable error that has lasted for the
   * request timeout; the call may then be repeated.
   */
  async #look() {
    const errors = [];
    await Promise.all(
      this.#core.looks().map(async (look) => {
        const request = {
          op: "read",
          topic_id: this.topicId,
          partition: look.partition,
          offset: look.offset,
          last_epoch: unless(-1, look.lastEpoch),
          max_bytes: unless(1 << 20, look.maxBytes),
          any_replica: unless(false, this.#options.readFrom === "any"),
          ...freshness(this.#options),
        };
        try {
          this.#core.onBatches(look, (await this.#connection.call(request, messages.readAnswer)).payload);
        } catch (error) {
          if (!(error instanceof TidelogError) || error.retriable || error instanceof Closed) errors.push(error);
          else this.#core.onError(look, error);
        }
      }),
    );
    if (errors.length) throw errors[0];
  }
}
