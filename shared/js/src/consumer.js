/** A consumer as an application sees it: an asynchronous iterable over the records of a topic. */

import { deferred, now, turn } from "./clock.js";
import { ConsumerCore } from "./consumer-core.js";
import { Closed } from "./errors.js";
import { creditOf } from "./options.js";
import * as words from "./words.js";

/** After so long without a wait others have their turn. */
const BUSY_S = 0.01;

/**
 * Iterate over it for records, in order per partition; `nextRecords` gives a whole batch at a time. Made by
 * `Log.consume`. The places to start are looked up by `open`, or at the first record.
 *
 * It reads ahead within its credit. When the gateway is lost it goes on at the next, without loss or repetition; after
 * `requestTimeoutS` without one it throws `Unreachable`. An offset that is not in the log any more is an error, never a
 * silent jump. Who leaves the loop (`break`, an exception) has closed the consumer.
 */
export class Consumer {
  /** Known when the consumer is open. */
  topicId = "";
  #connection;
  #options;
  #codecs;
  #plan;
  #core = null;
  #opening = null;
  #news = deferred();
  #last = null;
  #closed = false;
  #busySince = now();

  constructor(connection, topic, options, codecs, plan) {
    this.topic = topic;
    this.#connection = connection;
    this.#options = options;
    this.#codecs = codecs;
    this.#plan = plan;
  }

  // --- for applications ---

  /** The records, until the end if one was asked for. */
  async *[Symbol.asyncIterator]() {
    try {
      for (let records = await this.nextRecords(); records.length; records = await this.nextRecords()) {
        for (const record of records) {
          this.#last = record;
          yield record;
        }
      }
    } finally {
      await this.close();
    }
  }

  /** Look up where to begin, and begin. Rejects with `UNKNOWN_TOPIC`. */
  open() {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  /** The records of the next batch; empty at the end. Not to be mixed with iteration in the middle of a batch. */
  async nextRecords() {
    for (;;) {
      const fetched = await this.#nextBatch();
      if (!fetched) return [];
      const records = fetched.records(this.topic, this.#codecs);
      if (records.length) return records;
    }
  }

  /**
   * Map of partition to position: the leader epoch of the last record that was handed out, and the offset after it. What
   * a later `consume(topic, {start: positions})` goes on from.
   */
  get positions() {
    const positions = this.#core?.positions ?? new Map();
    if (this.#last) {
      const { partition, leaderEpoch, offset } = this.#last;
      positions.set(partition, { leaderEpoch, offset: offset + 1 });
    }
    return positions;
  }

  /** Stop reading. Who waits for records gets `CLOSED`. */
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
    const { topicId, starts, ends } = await this.#plan();
    this.#refuseClosed();
    this.topicId = topicId;
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

  async #nextBatch() {
    if (!this.#core) await this.open();
    if (now() > this.#busySince + BUSY_S) {
      await turn();
      this.#busySince = now();
    }
    for (;;) {
      this.#refuseClosed();
      const fetched = this.#core.take();
      if (fetched) {
        this.#last = null;
        this.#perform(this.#core.onTaken(fetched.partition));
        return fetched;
      }
      if (this.#core.isFinished) return null;
      await this.#wait();
      this.#busySince = now();
    }
  }

  /** Until there is news, or it is time to subscribe again. */
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

  /** A gateway is there (called by the connection). */
  onLinkUp() {
    this.#perform(this.#core.onLinkUp(now()));
    this.#wake();
  }

  /** The gateway is gone (called by the connection). */
  onLinkDown() {
    this.#core.onLinkDown();
    this.#wake();
  }

  /** Batches arrived (called by the connection). */
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
    const { readFrom, consistency, maxStalenessS } = this.#options;
    const request = {
      op: "subscribe",
      sub,
      topic_id: this.topicId,
      partition,
      offset: position.offset,
      credit,
      last_epoch: words.unless(-1, position.leaderEpoch),
      read_from: words.unless("leader", readFrom),
      consistency: words.unless("eventual", consistency),
      max_staleness_ms: maxStalenessS === null ? undefined : Math.floor(maxStalenessS * 1000),
    };
    link.call(request, words.done, requestTimeoutS).catch((error) => {
      this.#core.onRefused(sub, error, now());
      this.#wake();
    });
  }

  #grant({ grant: sub, bytes }) {
    this.#connection.link?.post({ op: "credit", sub, bytes });
  }
}
