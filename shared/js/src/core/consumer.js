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
 * Credit bounds memory: a lane's bytes under way and waiting never exceed its credit by more than one delivery. Of a
 * lane that is *paused* nothing is handed out; what has arrived stays, and with the credit used up nothing more comes.
 *
 * A gap between batches, or a leader epoch that goes back, is an error: nothing is ever passed over in silence. So are
 * OFFSET_OUT_OF_RANGE and LOG_TRUNCATED (KIP-320): the application decides where to go on (`seek`). Until it does the
 * lane *failed*: the others go on, and when they are done the error is told again, not an end. The same holds for a
 * batch that cannot be decoded, unless it is skipped: the lane then stands before that batch (`fail`).
 *
 * What is to be done comes back as effects, in that order: `{open: sub, partition, position, credit}`,
 * `{grant: sub, bytes}`, `{stop: sub}`.
 */

import { decodeBatch, hasRightCrc, split } from "../wire/batch.js";
import { BrokerError, CorruptBatch, ProtocolError, TidelogError, UnreadableBatch, fromInfo } from "../errors.js";

/** One batch for the application: its records from `first` up to `end` (offsets). */
export class Fetched {
  constructor(partition, header, data, first, end) {
    this.partition = partition;
    this.header = header;
    this.data = data;
    this.first = first;
    this.end = end;
  }

  /** Decode it. A compacted or a control batch covers offsets that have no record. Throws `UnreadableBatch`. */
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

class Lane {
  sub = null;
  notBefore = 0;
  paused = false;
  /** What waits for the end of the pause. */
  held = [];
  /** The error that ended it, once the application was told. */
  failed = null;
  /** Bytes received and not taken. */
  waiting = 0;
  /** Bytes taken whose credit was not given back yet. */
  owed = 0;

  constructor(partition, start, end) {
    this.partition = partition;
    this.received = start;
    this.taken = start;
    /** `taken` as it was before the last batch was taken. */
    this.before = start;
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
    return this.#isIdle && [...this.#lanes.values()].every((lane) => !lane.failed);
  }

  get #isIdle() {
    return !this.#queue.length && [...this.#lanes.values()].every((lane) => lane.done && !lane.held.length);
  }

  /** Those that are read. */
  get partitions() {
    return [...this.#lanes.keys()];
  }

  /** Those of which nothing is handed out now. */
  get paused() {
    return this.partitions.filter((partition) => this.#lanes.get(partition).paused);
  }

  /** Bytes received that the application has not taken. */
  get waiting() {
    return [...this.#lanes.values()].reduce((sum, lane) => sum + lane.waiting, 0);
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
      this.#put(lane, this.#located(lane, error));
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
    this.#put(lane, new Fetched(lane.partition, header, data, position.offset, end));
    lane.waiting += data.length;
    lane.received = { leaderEpoch: header.leaderEpoch, offset: end };
    lane.done = end === lane.end;
  }

  #put(lane, item) {
    if (lane.paused) lane.held.push(item);
    else this.#queue.push([lane, item]);
  }

  /**
   * The next batch, in order per partition; null when nothing waits. Throws the error that ended a partition when
   * everything before it was taken, and again when there is nothing else left.
   */
  take() {
    if (!this.#queue.length) {
      const failed = this.#isIdle && [...this.#lanes.values()].find((lane) => lane.failed);
      if (failed) throw failed.failed;
      return null;
    }
    const [lane, item] = this.#queue.shift();
    if (item instanceof TidelogError) {
      lane.failed = item;
      throw item;
    }
    lane.waiting -= item.data.length;
    lane.owed += item.data.length;
    lane.before = lane.taken;
    lane.taken = { leaderEpoch: item.header.leaderEpoch, offset: item.end };
    return item;
  }

  /** What `take` gave of this partition was used: room for more. */
  onTaken(partition) {
    return this.#giveBack(this.#lanes.get(partition));
  }

  /** Of a batch that was taken last of its partition what is below `position` was used; the rest is wanted later. */
  putBack(fetched, position) {
    const lane = this.#lanes.get(fetched.partition);
    lane.taken = position;
    if (position.offset >= fetched.end) return;
    lane.waiting += fetched.data.length;
    lane.owed -= fetched.data.length;
    const { partition, header, data, first, end } = fetched;
    const rest = new Fetched(partition, header, data, Math.max(first, position.offset), end);
    if (lane.paused) lane.held.unshift(rest);
    else this.#queue.unshift([lane, rest]);
  }

  /**
   * The application cannot use the batch that was taken last of its partition, and was told why: the partition stands
   * before that batch, and is read no further until `seek`.
   */
  fail(fetched, error) {
    const lane = this.#lanes.get(fetched.partition);
    const effects = this.#forget(lane);
    lane.received = lane.taken = lane.before;
    lane.failed = error;
    lane.done = true;
    return effects;
  }

  // --- what the application changes ---

  /** Hand nothing of these out until they are resumed. */
  pause(partitions) {
    for (const partition of partitions) {
      const lane = this.#lanes.get(partition);
      if (lane.paused) continue;
      lane.paused = true;
      lane.held = this.#drop(lane);
    }
  }

  /** Hand them out again, first what has arrived meanwhile. */
  resume(partitions) {
    for (const partition of partitions) {
      const lane = this.#lanes.get(partition);
      if (!lane.paused) continue;
      lane.paused = false;
      for (const item of lane.held.splice(0)) this.#queue.push([lane, item]);
    }
  }

  /** Go on there, also where the partition has ended or failed; what waits is dropped. */
  seek(partition, position, now) {
    const lane = this.#lanes.get(partition);
    const effects = this.#forget(lane);
    lane.received = lane.taken = position;
    lane.notBefore = now;
    lane.failed = null;
    lane.done = lane.end !== undefined && position.offset >= lane.end;
    return [...effects, ...this.onTick(now)];
  }

  #forget(lane) {
    this.#drop(lane);
    lane.held = [];
    lane.waiting = lane.owed = 0;
    return this.#stop(lane);
  }

  /** Take what waits of it out of the queue. */
  #drop(lane) {
    const dropped = this.#queue.filter(([owner]) => owner === lane).map(([, item]) => item);
    this.#queue = this.#queue.filter(([owner]) => owner !== lane);
    return dropped;
  }

  // --- credit and ends ---

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
      lane.notBefore = now + Math.max(this.backoffS, error.pauseS);
    } else {
      lane.done = true;
      this.#put(lane, this.#located(lane, error));
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
    return [...this.#lanes.values()].flatMap((lane) => {
      lane.done = true;
      lane.failed = null;
      return this.#forget(lane);
    });
  }

  #located(lane, error) {
    return located(error, this.topic, lane.partition, lane.received.offset);
  }
}

/** The error with the place where it happened. */
export function located(error, topic, partition, offset) {
  const { code, unknownOutcome } = error;
  const detail = { ...error.detail, topic, partition, offset };
  const message = `${topic}/${partition} at offset ${offset}: ${error.message}`;
  return new BrokerError(message, { code, unknownOutcome, detail, cause: error });
}
