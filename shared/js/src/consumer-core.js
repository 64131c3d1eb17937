/**
 * What a consumer decides: where it reads on, what it skips, how far ahead it is sent. Without I/O and clock. The same
 * rules as in the Python client (`tidelog/client/core/consumer.py`).
 *
 * Each partition is a *lane* with two positions (leader epoch, offset): *received* up to there, which is where a new
 * subscription begins, and *taken* by the application. Both only move forward, batch by batch, so order per partition is
 * the order of the log, and a lost link loses and repeats nothing: batches that wait here stay, the next subscription
 * continues behind them. The first batch of a delivery may begin before the position; what is below is skipped. A
 * subscription is known by its number: what arrives for a former one is ignored.
 *
 * Credit bounds memory: a lane's bytes under way and waiting never exceed its credit by more than one delivery. A gap
 * between batches, or a leader epoch that goes back, is an error: nothing is ever passed over in silence. So are
 * OFFSET_OUT_OF_RANGE and LOG_TRUNCATED (KIP-320): the application decides where to go on.
 *
 * What is to be done comes back as effects, in that order: `{open: sub, partition, position, credit}`,
 * `{grant: sub, bytes}`, `{stop: sub}`.
 */

import { decodeBatch, split } from "./batch.js";
import { BrokerError, ProtocolError, TidelogError, fromInfo } from "./errors.js";

/** One batch for the application: its records from `first` up to `end` (offsets). */
export class Fetched {
  constructor(partition, header, data, first, end) {
    this.partition = partition;
    this.header = header;
    this.data = data;
    this.first = first;
    this.end = end;
  }

  /** Decode it. A compacted or a control batch covers offsets that have no record. Throws `CorruptBatch`. */
  records(topic, codecs) {
    const records = decodeBatch(this.data, { topic, partition: this.partition, codecs });
    if (this.first <= this.header.baseOffset && this.end >= this.header.endOffset) return records;
    return records.filter((record) => this.first <= record.offset && record.offset < this.end);
  }
}

class Lane {
  sub = null;
  notBefore = 0;
  /** Bytes received and not taken. */
  waiting = 0;
  /** Bytes taken whose credit was not given back yet. */
  owed = 0;

  constructor(partition, start, end) {
    this.partition = partition;
    this.received = start;
    this.taken = start;
    this.end = end;
    /** Nothing more is wanted: the end is reached, or an error stands at the end of the queue. */
    this.done = end !== undefined && start.offset >= end;
  }
}

/**
 * All lanes of one consumer. `starts`: Map of partition to `{leaderEpoch, offset}`; `ends`: Map of partition to the
 * offset where to stop, if anywhere. `nextSub` gives subscription numbers, unique on the link.
 */
export class ConsumerCore {
  #lanes = new Map();
  #subs = new Map();
  #queue = [];
  #up = false;

  constructor({ topic, starts, ends, credit, backoffS, nextSub }) {
    this.topic = topic;
    this.credit = credit;
    this.backoffS = backoffS;
    this.nextSub = nextSub;
    for (const partition of [...starts.keys()].sort((a, b) => a - b)) {
      this.#lanes.set(partition, new Lane(partition, starts.get(partition), ends.get(partition)));
    }
  }

  /** Every partition has reached its end and everything was taken. */
  get isFinished() {
    return !this.#queue.length && [...this.#lanes.values()].every((lane) => lane.done);
  }

  /** Per partition: what the application has taken ends here. */
  get positions() {
    return new Map([...this.#lanes].map(([partition, lane]) => [partition, lane.taken]));
  }

  /** There is a link to a gateway: subscribe where the last one ended. */
  onLinkUp(now) {
    this.#up = true;
    return this.onTick(now);
  }

  /** The link and its subscriptions are gone. */
  onLinkDown() {
    this.#up = false;
    this.#subs.clear();
    for (const lane of this.#lanes.values()) lane.sub = null;
  }

  /** Subscribe what should be and is not. */
  onTick(now) {
    const effects = [];
    if (!this.#up) return effects;
    for (const lane of this.#lanes.values()) {
      if (lane.sub !== null || lane.done || now < lane.notBefore) continue;
      const sub = (lane.sub = this.nextSub());
      this.#subs.set(sub, lane);
      lane.owed = 0;
      const credit = Math.max(0, this.credit - lane.waiting);
      effects.push({ open: sub, partition: lane.partition, position: lane.received, credit });
    }
    return effects;
  }

  /** When `onTick` should be called next; Infinity: nothing is waited for. */
  deadline() {
    if (!this.#up) return Infinity;
    const waiting = [...this.#lanes.values()].filter((lane) => lane.sub === null && !lane.done);
    return Math.min(...waiting.map((lane) => lane.notBefore));
  }

  /** A subscribe was refused. */
  onRefused(sub, error, now) {
    const lane = this.#subs.get(sub);
    if (lane) this.#end(lane, error, now);
  }

  /** Batches, or the end, of a subscription. */
  onDelivery(delivery, now) {
    const lane = this.#subs.get(delivery.sub);
    if (!lane) return [];
    if (delivery.error) {
      this.#end(lane, fromInfo(delivery.error), now);
      return [];
    }
    try {
      for (const [header, data] of split(delivery.payload)) this.#receive(lane, header, data);
    } catch (error) {
      if (!(error instanceof TidelogError)) throw error;
      this.#queue.push(this.#located(lane, error));
      lane.done = true;
    }
    return lane.done ? this.#stop(lane) : this.#giveBack(lane);
  }

  #receive(lane, header, data) {
    const position = lane.received;
    if (lane.done || header.endOffset <= position.offset) {
      lane.owed += data.length;
      return;
    }
    if (header.baseOffset > position.offset) {
      throw new ProtocolError(`the gateway passed over offsets ${position.offset} to ${header.baseOffset - 1}`);
    }
    if (header.leaderEpoch < position.leaderEpoch) {
      throw new ProtocolError(`leader epoch ${header.leaderEpoch} follows ${position.leaderEpoch}`);
    }
    const end = lane.end === undefined ? header.endOffset : Math.min(header.endOffset, lane.end);
    this.#queue.push(new Fetched(lane.partition, header, data, position.offset, end));
    lane.waiting += data.length;
    lane.received = { leaderEpoch: header.leaderEpoch, offset: end };
    lane.done = end === lane.end;
  }

  /**
   * The next batch, in order per partition; null when nothing waits. Throws the error that ended a partition when
   * everything before it was taken.
   */
  take() {
    const item = this.#queue.shift();
    if (item === undefined) return null;
    if (item instanceof TidelogError) throw item;
    const lane = this.#lanes.get(item.partition);
    lane.waiting -= item.data.length;
    lane.owed += item.data.length;
    lane.taken = { leaderEpoch: item.header.leaderEpoch, offset: item.end };
    return item;
  }

  /** What `take` gave of this partition was used: room for more. */
  onTaken(partition) {
    return this.#giveBack(this.#lanes.get(partition));
  }

  /** Credit goes back in quarters: few messages, and the gateway never runs dry. */
  #giveBack(lane) {
    if (lane.sub === null || lane.owed * 4 < this.credit) return [];
    const bytes = lane.owed;
    lane.owed = 0;
    return [{ grant: lane.sub, bytes }];
  }

  /** The subscription is over: try again, or tell the application. */
  #end(lane, error, now) {
    this.#subs.delete(lane.sub);
    lane.sub = null;
    if (error.retriable) {
      lane.notBefore = now + this.backoffS;
    } else {
      lane.done = true;
      this.#queue.push(this.#located(lane, error));
    }
  }

  #stop(lane) {
    if (lane.sub === null) return [];
    const sub = lane.sub;
    lane.sub = null;
    this.#subs.delete(sub);
    return [{ stop: sub }];
  }

  /** The application wants no more. */
  close() {
    this.#queue = [];
    return [...this.#lanes.values()].flatMap((lane) => {
      lane.done = true;
      return this.#stop(lane);
    });
  }

  /** The error with the place where it happened. */
  #located(lane, error) {
    const { offset } = lane.received;
    const detail = { ...error.detail, topic: this.topic, partition: lane.partition, offset };
    const { code, unknownOutcome } = error;
    const message = `${this.topic}/${lane.partition} at offset ${offset}: ${error.message}`;
    return new BrokerError(message, { code, unknownOutcome, detail, cause: error });
  }
}
