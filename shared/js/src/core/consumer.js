/**
 * Core of a consumer: where it reads on, what it skips, how far ahead the gateway may send. Without I/O and clock.
 * The rules are those of the Python client (`tidelog/client/core/consumer.py`).
 *
 * Each partition has a *cursor* with two positions (leader epoch, offset). *Received* is the end of what has arrived; a
 * new subscription begins there. *Taken* is the end of what the application has taken. Both only move forward, batch
 * by batch, so the order within a partition is the order of the log. A lost link loses and repeats nothing: batches
 * that have arrived stay, and the next subscription continues behind them. The first batch of a delivery may begin
 * before the position; the records below the position are skipped. Each subscription has a number, and deliveries of
 * a former subscription are ignored.
 *
 * Credit bounds memory: the bytes of a partition that are in flight or wait here never exceed its credit by more than one
 * delivery. It is never larger than the gateway announces (`credit_bytes` in `limits`), which drops what is beyond. No
 * batch of a *paused* partition is handed out; what has arrived stays, and once the credit is used up nothing more is
 * sent.
 *
 * A gap between batches, or a leader epoch that goes back, is an error: no record is ever passed over in silence. So
 * are OFFSET_OUT_OF_RANGE and LOG_TRUNCATED (KIP-320), after which the application decides where to go on (`seek`).
 * Until it does, the cursor has *failed*. The other cursors go on; when they are done the error is thrown again instead
 * of the end of the stream. A batch that cannot be decoded is handled the same way unless it is skipped: the cursor
 * stands before that batch (`fail`).
 *
 * Methods return effects, to be performed in order: `{open: sub, partition, position, credit}` (subscribe), `{grant:
 * sub, bytes}` (return credit), `{stop: sub}` (unsubscribe).
 */

import { decodeBatch, hasRightCrc, split } from "../wire/batch.js";
import { BrokerError, CorruptBatch, ProtocolError, TidelogError, UnreadableBatch, fromInfo } from "../errors.js";

/** The credit that a gateway of an earlier release keeps, which announces no limit. */
const UNANNOUNCED_CREDIT_BYTES = 8 << 20;

/** One batch for the application: its records with offsets from `first` up to `end` (exclusive). */
export class Fetched {
  constructor(partition, header, data, first, end) {
    this.partition = partition;
    this.header = header;
    this.data = data;
    this.first = first;
    this.end = end;
  }

  /**
   * Decode the batch and return its records in the range. A compacted or a control batch covers offsets that have no
   * record. Throws `UnreadableBatch`.
   */
  records(topic, codecs) {
    const records = this.#decoded(topic, codecs);
    if (this.first <= this.header.baseOffset && this.end >= this.header.endOffset) return records;
    return records.filter((record) => this.first <= record.offset && record.offset < this.end);
  }

  #decoded(topic, codecs) {
    const { partition, header, data } = this;
    try {
      return decodeBatch(data, { topic, partition, codecs });
    } catch (error) {
      if (!(error instanceof CorruptBatch)) throw error;
      throw new UnreadableBatch({ topic, partition, header, isDamaged: !hasRightCrc(data), why: error.message, cause: error });
    }
  }
}

class PartitionCursor {
  sub = null;
  notBefore = 0;
  paused = false;
  /** Entries that have arrived and wait for the end of a pause. */
  held = [];
  /** The error that ended the cursor, once it was thrown to the application; null before. */
  failed = null;
  /** Bytes that were received and not yet taken. */
  waiting = 0;
  /** Bytes that were taken and whose credit was not yet returned. */
  owed = 0;

  constructor(partition, start, end) {
    this.partition = partition;
    this.received = start;
    this.taken = start;
    /** The value of `taken` before the last batch was taken. */
    this.before = start;
    this.end = end;
    /** Whether nothing more is to be received: the end is reached, or an error is at the end of the queue. */
    this.done = end !== undefined && start.offset >= end;
  }
}

/**
 * The cursors of one consumer. `starts`: Map of partition to `{leaderEpoch, offset}`; `ends`: Map of partition to the
 * offset to stop before, if any. `nextSub` returns subscription numbers that are unique on the link.
 */
export class ConsumerCore {
  #cursors = new Map();
  #subs = new Map();
  #queue = [];
  #up = false;
  #wantedCredit;
  #mostCredit = UNANNOUNCED_CREDIT_BYTES;

  constructor({ topic, starts, ends, credit, backoffS, nextSub }) {
    this.topic = topic;
    this.#wantedCredit = credit;
    this.backoffS = backoffS;
    this.nextSub = nextSub;
    for (const partition of [...starts.keys()].sort((a, b) => a - b)) {
      this.#cursors.set(partition, new PartitionCursor(partition, starts.get(partition), ends.get(partition)));
    }
  }

  /** Whether every partition has reached its end without an error and every batch was taken. */
  get isFinished() {
    return this.#isIdle && [...this.#cursors.values()].every((cursor) => !cursor.failed);
  }

  get #isIdle() {
    return !this.#queue.length && [...this.#cursors.values()].every((cursor) => cursor.done && !cursor.held.length);
  }

  /** The partitions that are read. */
  get partitions() {
    return [...this.#cursors.keys()];
  }

  /** The partitions of which no batch is returned until `resume`. */
  get paused() {
    return this.partitions.filter((partition) => this.#cursors.get(partition).paused);
  }

  /** Bytes that were received and that the application has not taken, over all partitions. */
  get waiting() {
    return [...this.#cursors.values()].reduce((sum, cursor) => sum + cursor.waiting, 0);
  }

  /** Map of partition to the position after the last batch that the application has taken. */
  get positions() {
    return new Map([...this.#cursors].map(([partition, cursor]) => [partition, cursor.taken]));
  }

  /**
   * Mark the link as open, to a gateway that has announced these limits, and return the effects that subscribe every
   * partition from the end of what it has received.
   */
  onLinkUp(limits, now) {
    this.#up = true;
    this.#mostCredit = limits.credit_bytes ?? UNANNOUNCED_CREDIT_BYTES;
    return this.onTick(now);
  }

  /** Forget all subscriptions, because their link was lost. Batches that have arrived stay. */
  onLinkDown() {
    this.#up = false;
    this.#subs.clear();
    for (const cursor of this.#cursors.values()) cursor.sub = null;
  }

  /**
   * Return the effects that subscribe every partition that has no subscription, is not done, and whose back-off is
   * over.
   */
  onTick(now) {
    const effects = [];
    if (!this.#up) return effects;
    for (const cursor of this.#cursors.values()) {
      if (cursor.sub !== null || cursor.done || now < cursor.notBefore) continue;
      const sub = (cursor.sub = this.nextSub());
      this.#subs.set(sub, cursor);
      cursor.owed = 0;
      const credit = Math.max(0, this.#credit - cursor.waiting);
      effects.push({ open: sub, partition: cursor.partition, position: cursor.received, credit });
    }
    return effects;
  }

  /** Return the time at which `onTick` will subscribe the next partition; Infinity if none waits for that. */
  deadline() {
    if (!this.#up) return Infinity;
    const waiting = [...this.#cursors.values()].filter((cursor) => cursor.sub === null && !cursor.done);
    return Math.min(...waiting.map((cursor) => cursor.notBefore));
  }

  /**
   * Handle the refusal of a subscription: subscribe again later, or queue the error for the application if it is not
   * retriable.
   */
  onRefused(sub, error, now) {
    const cursor = this.#subs.get(sub);
    if (cursor) this.#end(cursor, error, now);
  }

  /**
   * Queue the batches of a delivery for the application, or handle the error that ended the subscription. Returns the
   * effects that return credit or stop the subscription. A delivery of an unknown subscription is ignored.
   */
  onDelivery(delivery, now) {
    const cursor = this.#subs.get(delivery.sub);
    if (!cursor) return [];
    if (delivery.error) {
      this.#end(cursor, fromInfo(delivery.error), now);
      return [];
    }
    try {
      for (const [header, data] of split(delivery.payload)) this.#receive(cursor, header, data);
    } catch (error) {
      if (!(error instanceof TidelogError)) throw error;
      this.#put(cursor, this.#located(cursor, error));
      cursor.done = true;
    }
    return cursor.done ? this.#stop(cursor) : this.#giveBack(cursor);
  }

  #receive(cursor, header, data) {
    const position = cursor.received;
    if (cursor.done || header.endOffset <= position.offset) {
      cursor.owed += data.length;
      return;
    }
    if (header.baseOffset > position.offset) {
      throw new ProtocolError(`the gateway passed over offsets ${position.offset} to ${header.baseOffset - 1}`);
    }
    if (header.leaderEpoch < position.leaderEpoch) {
      throw new ProtocolError(`leader epoch ${header.leaderEpoch} follows ${position.leaderEpoch}`);
    }
    const end = cursor.end === undefined ? header.endOffset : Math.min(header.endOffset, cursor.end);
    this.#put(cursor, new Fetched(cursor.partition, header, data, position.offset, end));
    cursor.waiting += data.length;
    cursor.received = { leaderEpoch: header.leaderEpoch, offset: end };
    cursor.done = end === cursor.end;
  }

  #put(cursor, item) {
    if (cursor.paused) cursor.held.push(item);
    else this.#queue.push([cursor, item]);
  }

  /**
   * Remove and return the next batch of the queue, in order within its partition; null if no batch is ready. Throws
   * the error that ended a partition after everything before it was taken, and again when all other partitions are
   * done.
   */
  take() {
    if (!this.#queue.length) {
      const failed = this.#isIdle && [...this.#cursors.values()].find((cursor) => cursor.failed);
      if (failed) throw failed.failed;
      return null;
    }
    const [cursor, item] = this.#queue.shift();
    if (item instanceof TidelogError) {
      cursor.failed = item;
      throw item;
    }
    cursor.waiting -= item.data.length;
    cursor.owed += item.data.length;
    cursor.before = cursor.taken;
    cursor.taken = { leaderEpoch: item.header.leaderEpoch, offset: item.end };
    return item;
  }

  /** Return the effects that give credit back to the gateway for batches that `take` returned. */
  onTaken(partition) {
    return this.#giveBack(this.#cursors.get(partition));
  }

  /**
   * Put the part at or above `position` of the batch that was taken last from its partition back to the front of the
   * queue.
   */
  putBack(fetched, position) {
    const cursor = this.#cursors.get(fetched.partition);
    cursor.taken = position;
    if (position.offset >= fetched.end) return;
    cursor.waiting += fetched.data.length;
    cursor.owed -= fetched.data.length;
    const { partition, header, data, first, end } = fetched;
    const rest = new Fetched(partition, header, data, Math.max(first, position.offset), end);
    if (cursor.paused) cursor.held.unshift(rest);
    else this.#queue.unshift([cursor, rest]);
  }

  /**
   * Stop a partition before the batch that was taken last from it, because the application cannot use that batch and
   * has seen the error. The partition is read again after `seek`. Returns the effects that end its subscription.
   */
  fail(fetched, error) {
    const cursor = this.#cursors.get(fetched.partition);
    const effects = this.#forget(cursor);
    cursor.received = cursor.taken = cursor.before;
    cursor.failed = error;
    cursor.done = true;
    return effects;
  }

  // --- what the application changes ---

  /** Hold back the batches of these partitions until `resume`. */
  pause(partitions) {
    for (const partition of partitions) {
      const cursor = this.#cursors.get(partition);
      if (cursor.paused) continue;
      cursor.paused = true;
      cursor.held = this.#drop(cursor);
    }
  }

  /** Put the held-back batches of these partitions into the queue, and no longer hold back new ones. */
  resume(partitions) {
    for (const partition of partitions) {
      const cursor = this.#cursors.get(partition);
      if (!cursor.paused) continue;
      cursor.paused = false;
      for (const item of cursor.held.splice(0)) this.#queue.push([cursor, item]);
    }
  }

  /**
   * Set a partition to this position, also if it has ended or failed, and drop its batches that wait. Returns the
   * effects that end its subscription and begin a new one.
   */
  seek(partition, position, now) {
    const cursor = this.#cursors.get(partition);
    const effects = this.#forget(cursor);
    cursor.received = cursor.taken = position;
    cursor.notBefore = now;
    cursor.failed = null;
    cursor.done = cursor.end !== undefined && position.offset >= cursor.end;
    return [...effects, ...this.onTick(now)];
  }

  #forget(cursor) {
    this.#drop(cursor);
    cursor.held = [];
    cursor.waiting = cursor.owed = 0;
    return this.#stop(cursor);
  }

  /** Remove the cursor's entries from the queue, and return them. */
  #drop(cursor) {
    const dropped = this.#queue.filter(([owner]) => owner === cursor).map(([, item]) => item);
    this.#queue = this.#queue.filter(([owner]) => owner !== cursor);
    return dropped;
  }

  // --- credit and ends ---

  /** The credit of each partition in bytes, as far as the gateway keeps it. */
  get #credit() {
    return Math.min(this.#wantedCredit, this.#mostCredit);
  }

  /**
   * Return the effect that grants the owed credit, if it is at least a quarter of the cursor's credit: few messages are
   * needed, and the gateway never runs out.
   */
  #giveBack(cursor) {
    if (cursor.sub === null || cursor.owed * 4 < this.#credit) return [];
    const bytes = cursor.owed;
    cursor.owed = 0;
    return [{ grant: cursor.sub, bytes }];
  }

  /**
   * End the subscription after an error: subscribe again later, or queue the error for the application if it is not
   * retriable.
   */
  #end(cursor, error, now) {
    this.#subs.delete(cursor.sub);
    cursor.sub = null;
    if (error.retriable) {
      cursor.notBefore = now + Math.max(this.backoffS, error.pauseS);
    } else {
      cursor.done = true;
      this.#put(cursor, this.#located(cursor, error));
    }
  }

  #stop(cursor) {
    if (cursor.sub === null) return [];
    const sub = cursor.sub;
    cursor.sub = null;
    this.#subs.delete(sub);
    return [{ stop: sub }];
  }

  /** End every partition and drop all batches that wait. Returns the effects that end the subscriptions. */
  close() {
    return [...this.#cursors.values()].flatMap((cursor) => {
      cursor.done = true;
      cursor.failed = null;
      return this.#forget(cursor);
    });
  }

  #located(cursor, error) {
    return located(error, this.topic, cursor.partition, cursor.received.offset);
  }
}

/** Return an error like this one whose text and details name topic, partition and offset. */
export function located(error, topic, partition, offset) {
  const { code, unknownOutcome } = error;
  const detail = { ...error.detail, topic, partition, offset };
  const message = `${topic}/${partition} at offset ${offset}: ${error.message}`;
  return new BrokerError(message, { code, unknownOutcome, detail, cause: error });
}
