/** A consumer that reads backwards, as an application sees it. */

import { BackwardCore } from "../core/backward-consumer.js";
import { freshness } from "./consumer.js";
import { Closed, TidelogError } from "../errors.js";
import { creditOf } from "./options.js";
import { RecordStream } from "./record-stream.js";
import * as messages from "../wire/messages.js";
import { unless } from "../wire/shapes.js";

/**
 * Iterate over it for records, the newest first per partition. It ends at its bound, and never waits for new records.
 * Made by `Log.consume(topic, {reverse: true})`.
 *
 * It looks at all partitions at a time, each time at no more than `partitionBytes` of each, or one batch.
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

  /** Look up where to begin. Rejects with `UNKNOWN_TOPIC`. */
  open() {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  /** The records of the next batch, the newest first; empty at the end. */
  async nextRecords() {
    return (await super.nextRecords()).reverse();
  }

  /** Map of partition to position: the offset of the last record that was handed out, where a later one goes on below. */
  get positions() {
    const positions = this.#core?.positions ?? new Map();
    if (this.last) positions.set(this.last.partition, { leaderEpoch: -1, offset: this.last.offset });
    return positions;
  }

  /** Stop reading. */
  async close() {
    this.#closed = true;
  }

  /** The batch that was given last cannot be used: read no further there. */
  stopBefore(fetched, error) {
    this.#core.fail(fetched, error);
  }

  /** The next batch, not decoded: its records from `first` to `end`, oldest first; null at the end. */
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
   * Ask for all windows that are wanted, at once. Rejects with what may pass and did not, within the request timeout:
   * the same may be asked for again.
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
