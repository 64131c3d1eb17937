/** A consumer, as an application sees it: an asynchronous iterable over the records of a topic. */

import { deferred, now } from "../clock.js";
import { ConsumerCore } from "../core/consumer.js";
import { BrokerError, Closed } from "../errors.js";
import { creditOf } from "./options.js";
import { namedBy } from "./positions.js";
import { RecordStream } from "./record-stream.js";
import * as messages from "../wire/messages.js";
import { unless } from "../wire/shapes.js";

/**
 * An asynchronous iterable over records, in order per partition. Made by `Log.consume`. The start positions are
 * looked up by `open`, or at the first record.
 *
 * It reads ahead within its credit. When the gateway is lost it goes on at the next one, without loss or repetition;
 * after `requestTimeoutS` without a gateway it throws `Unreachable`. An offset that is no longer in the log is an
 * error, never a silent jump.
 */
export class Consumer extends RecordStream {
  #connection;
  #options;
  #plan;
  #locate;
  #core = null;
  #opening = null;
  #news = deferred();
  #closed = false;

  constructor(connection, topic, options, codecs, plan) {
    super(topic, codecs, options.onUnreadable);
    this.#connection = connection;
    this.#options = options;
    this.#plan = plan;
  }

  // --- for applications ---

  /** Look up the start positions, once, and begin to read. Rejects with `UNKNOWN_TOPIC`. */
  open() {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  /**
   * Map of partition to position: the leader epoch of the last record that was returned, and the offset after it. A
   * later `consume(topic, {start: positions})` goes on from there.
   */
  get positions() {
    const positions = this.#core?.positions ?? new Map();
    if (this.last) positions.set(this.last.partition, this.reached);
    return positions;
  }

  /** Bytes that have arrived and were not returned to the application. */
  get bufferedBytes() {
    return this.#core?.waiting ?? 0;
  }

  /** The partitions of which no records are returned until `resume`. */
  get paused() {
    return this.#core?.paused ?? [];
  }

  /**
   * Return no records of these partitions (none named: of any) until `resume`. The others go on; what has arrived
   * stays, within the credit. Rejects with `UNKNOWN_TOPIC` for a partition that is not read.
   */
  async pause(...partitions) {
    await this.open();
    const chosen = this.#chosen(partitions);
    this.#core.pause(chosen);
    const { current, reached } = this;
    if (current && reached && chosen.includes(current.partition)) {
      this.#core.putBack(current, reached);
      this.beginBatch();
    }
  }

  /** Return records of these partitions again; none named: of all. */
  async resume(...partitions) {
    await this.open();
    this.#core.resume(this.#chosen(partitions));
    this.#wake();
  }

  /**
   * Read on from this place in these partitions; none named: in those that `where` names, or in all. Records that
   * were read ahead are dropped; the ends stay. Use it also to go on after `OFFSET_OUT_OF_RANGE`, `LOG_TRUNCATED` and
   * `UnreadableBatch` (with its `nextOffset`).
   */
  async seek(where, ...partitions) {
    await this.open();
    const found = await this.#locate(where, this.#chosen(partitions.length ? partitions : namedBy(where)));
    for (const [partition, position] of found) {
      if (this.last?.partition === partition) this.beginBatch();
      this.#perform(this.#core.seek(partition, position, now()));
    }
    this.#wake();
  }

  /** Unsubscribe and stop reading for good. A call that waits for records rejects with `CLOSED`. */
  async close() {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#core) this.#perform(this.#core.close());
    this.#connection.detach(this);
    this.#wake();
  }

  // --- the work ---

  async #open() {
    this.#refuseClosed();
    const { topicId, starts, ends, locate } = await this.#plan();
    this.#refuseClosed();
    this.topicId = topicId;
    this.#locate = locate;
    this.#core = new ConsumerCore({
      topic: this.topic,
      starts,
      ends,
      credit: creditOf(this.#options, starts.size),
      backoffS: this.#options.backoffS,
      nextSub: () => this.#connection.addSub(this),
    });
    this.#connection.attach(this);
  }

  /** Resolve with the next batch, not decoded (control batches too); null at the end. */
  async nextBatch() {
    if (!this.#core) await this.open();
    for (;;) {
      this.#refuseClosed();
      const fetched = this.#core.take();
      if (fetched) {
        this.#perform(this.#core.onTaken(fetched.partition));
        return fetched;
      }
      if (this.#core.isFinished) return null;
      await this.#wait();
    }
  }

  /**
   * Stop reading the partition before the batch that was returned last, because it cannot be decoded, until `seek`.
   */
  stopBefore(fetched, error) {
    this.#perform(this.#core.fail(fetched, error));
  }

  #chosen(partitions) {
    const strange = partitions.find((partition) => !this.#core.partitions.includes(partition));
    if (strange !== undefined) {
      const why = `this consumer of ${this.topic} does not read partition ${strange}`;
      throw new BrokerError(why, { code: "UNKNOWN_TOPIC" });
    }
    return partitions.length ? partitions : this.#core.partitions;
  }

  /** Wait until something has arrived or has changed, or a partition is to be subscribed again. */
  async #wait() {
    const connection = this.#connection;
    const patience = () => (connection.link ? Infinity : connection.downSince + connection.requestTimeoutS);
    const due = Math.min(connection.link ? this.#core.deadline() : patience(), now() + 1e6);
    const timer = setTimeout(() => this.#wake(), Math.max(0, (due - now()) * 1000));
    await this.#news.promise;
    clearTimeout(timer);
    if (this.#closed) return;
    if (now() >= patience()) throw connection.unreachable();
    this.#perform(this.#core.onTick(now()));
  }

  #wake() {
    this.#news.resolve();
    this.#news = deferred();
  }

  #refuseClosed() {
    if (this.#connection.closed) throw new Closed("the client was closed");
    if (this.#closed) throw new Closed(`the consumer of ${this.topic} is closed`);
  }

  /** Subscribe every partition on the new link (called by the connection). */
  onLinkUp() {
    this.#perform(this.#core.onLinkUp(this.#connection.link.peer.limits, now()));
    this.#wake();
  }

  /** Forget the subscriptions of the link that was lost (called by the connection). */
  onLinkDown() {
    this.#core.onLinkDown();
    this.#wake();
  }

  /** Pass the delivered batches to the core, and wake the task that waits (called by the connection). */
  onDelivery(delivery) {
    this.#perform(this.#core.onDelivery(delivery, now()));
    this.#wake();
  }

  #perform(effects) {
    for (const effect of effects) {
      if (effect.open !== undefined) this.#subscribe(effect);
      else if (effect.grant !== undefined) this.#grant(effect);
      else this.#connection.stopSub(effect.stop);
    }
  }

  #subscribe({ open: sub, partition, position, credit }) {
    const { link, requestTimeoutS } = this.#connection;
    if (!link) return;
    const request = {
      op: "subscribe",
      sub,
      topic_id: this.topicId,
      partition,
      offset: position.offset,
      credit,
      last_epoch: unless(-1, position.leaderEpoch),
      read_from: unless("leader", this.#options.readFrom),
      ...freshness(this.#options),
    };
    link.call(request, messages.done, requestTimeoutS).catch((error) => {
      this.#core.onRefused(sub, error, now());
      this.#wake();
    });
  }

  #grant({ grant: sub, bytes }) {
    this.#connection.link?.post({ op: "credit", sub, bytes });
  }
}

/** Return how fresh reads must be, as fields of a request. */
export function freshness({ consistency, maxStalenessS }) {
  return {
    consistency: unless("eventual", consistency),
    max_staleness_ms: maxStalenessS === null ? undefined : Math.floor(maxStalenessS * 1000),
  };
}
