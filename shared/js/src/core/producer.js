/**
 * What a producer decides: batching, order, retries and sequences, for one topic. Without I/O and clock: `now` is given,
 * in seconds. The same rules as in the Python client (`tidelog/client/core/producer.py`).
 *
 * Each partition is a *lane*: an open batch, a queue of sealed ones, and those in flight, in that order of age.
 *
 * - Batching. A batch is sealed when it is full. An open batch is due at once while nothing of its lane is in flight,
 *   else when it has lingered: a lone record pays no linger, a flood fills its batches (Nagle's idea). A full batch that
 *   could not be sent, since `maxInFlight` are before it, stays open, grows, and takes the places of several then.
 * - Idempotence (KIP-98). A batch gets (producer id, base sequence) when it is first sent and keeps them through every
 *   retry, on this link or the next, so that the leader can tell a copy. The leader accepts a sequence only without a
 *   gap. So whatever follows a batch that is not in the log cannot be in the log either, under the same id.
 * - Errors. After an error the lane *drains*: it sends nothing until each batch in flight has its answer. Then what
 *   remains goes again, in order, with the same sequences. So nothing overtakes, with any number in flight.
 * - Giving up a batch *spoils* the lane's producer id: the gap would refuse everything behind it. What is in flight is
 *   drained; when the oldest remaining batch comes back OUT_OF_ORDER_SEQUENCE and everything before it is settled,
 *   neither it nor what follows is in the log: those are numbered anew under a fresh producer id. Not where a try was
 *   lost with its link: such batches end with their delivery timeout. In a topic that may lose records (`lossy`) they are
 *   numbered anew too, but a batch whose fate was in doubt stays so.
 * - Throttling. An ack may ask for a pause (`throttle_ms`), since the partition's leader is slow. The lane sends nothing
 *   new until the pause is over.
 * - Tickets. A batch that is refused since its producer id was not presented with a valid ticket was not written by that
 *   try. What no try can have written is numbered anew under a fresh producer id; the rest is given up.
 * - A conditional append (`expectedOffset`) is a batch of one record. Refused with UNEXPECTED_OFFSET it is given up like
 *   any other; a retry of one that was written is a copy, and never refused for what it wrote itself.
 * - Without idempotence nothing is tried twice here: it might write twice or change the order.
 *
 * A lane is looked at when something happened to it (`#due`), or its time has come (`#timers`): there may be thousands.
 */

import { MAX_RECORDS } from "../wire/batch.js";
import { BrokerError, TimedOut, Unreachable, fromInfo, pauseS } from "../errors.js";
import { Lane } from "./producer-lane.js";
import { ACKS, mostInFlight } from "../client/options.js";
import { BATCH_OVERHEAD, Batch } from "./batch.js";

/** A produce message is closed when it has this much, */
const MESSAGE_BYTES = 1 << 20;
const MESSAGE_PARTS = 128; // or so many batches
const MAX_SEQUENCE = 2 ** 32 - 1;
const NO_TICKET = "INVALID_TICKET"; // a batch is refused so whose producer id was not presented with a valid ticket
const SPOILED_TIMEOUT_S = 1; // how long a gateway may try what is probably behind a gap

/**
 * All lanes of one producer. `nextId` gives the numbers by which acks name batches, unique on the link. Methods that
 * return batches return those that were settled by the call, in order.
 */
export class ProducerCore {
  /** Bytes of records that are not settled. */
  buffered = 0;
  /** The shell should ask for a producer id and bring it to `onProducerId`. */
  wantsProducerId = false;
  /** Acks that asked for a pause, since the partition's leader is slow. */
  throttledAcks = 0;
  /** Sum of these pauses in seconds over all partitions, each moment of a partition counted once. */
  throttledS = 0;
  #active = new Map();
  /** Lanes that `take` is to look at. */
  #due = new Set();
  /** Times at which lanes are due, in order; only a lane's `lookAt` is true. */
  #timers = [];
  /** By delivery timeout: all have the same. */
  #unsettled = new Set();
  #sent = new Map();
  #producerId = 0;
  /** Those that were given for this producer, and that batches may be sent under. */
  producerIds = new Set();
  #up = false;

  constructor({ topicId, partitions, options, nextId, maxBatchBytes = 1 << 20, codecs = {} }) {
    this.topicId = topicId;
    this.options = options;
    this.nextId = nextId;
    this.maxBatchBytes = maxBatchBytes;
    this.batchBytes = Math.min(options.batchBytes, maxBatchBytes);
    this.#setWindow(0);
    this.codecs = codecs;
    this.lanes = Array.from({ length: partitions }, (_, partition) => new Lane(partition));
  }

  #setWindow(window) {
    this.maxInFlight = mostInFlight(this.options, window);
    this.mostBytes = Math.min(this.batchBytes * Math.max(1, Math.floor(this.maxInFlight / 2)), this.maxBatchBytes);
  }

  /** Everything is settled. */
  get isIdle() {
    return !this.#active.size;
  }

  // --- records come in ---

  /** Add a record of `recordSize` to its partition's open batch; null when there is none with room. */
  append(partition, record, size) {
    const lane = this.lanes[partition];
    const batch = lane.open;
    if (!batch || batch.records.length === MAX_RECORDS) return null;
    const total = batch.size + size;
    if (total > this.batchBytes) {
      if (total > this.mostBytes || lane.sealedPlaces < this.maxInFlight) return null;
      batch.places = Math.ceil(total / this.batchBytes);
    }
    batch.records.push(record);
    batch.size = total;
    this.buffered += size;
    return batch;
  }

  /**
   * Seal the partition's open batch and begin another with this record; with `expectedOffset` it stays alone in it. Throws
   * `BATCH_TOO_LARGE`.
   */
  open(partition, record, size, now, expectedOffset = -1) {
    if (BATCH_OVERHEAD + size > this.maxBatchBytes) {
      const limit = `a batch of max_batch_bytes ${this.maxBatchBytes}`;
      throw new BrokerError(`a record of ${size} bytes does not fit into ${limit}`, { code: "BATCH_TOO_LARGE" });
    }
    const lane = this.lanes[partition];
    lane.seal();
    const batch = (lane.open = new Batch(partition, now, now + this.options.deliveryTimeoutS, expectedOffset));
    batch.records.push(record);
    batch.size += size;
    this.buffered += batch.size;
    this.#active.set(partition, lane);
    this.#unsettled.add(batch);
    this.#look(lane);
    if (expectedOffset >= 0) lane.seal();
    return batch;
  }

  /** Nothing lingers any more: every open batch is due (flush). */
  sealAll() {
    for (const lane of this.#active.values()) lane.seal();
    this.#lookAtAll();
  }

  // --- batches go out ---

  /** The next message to send, `{parts, payload}`, if anything is due and may be sent. Call until it returns
   * null. Throws what a batch cannot be encoded with: nothing of it was sent, `failAll` is the only way on. */
  take(now) {
    if (!this.#up) return null;
    const parts = [];
    const payload = [];
    let size = 0;
    while (this.#timers.length && this.#timers[0].at <= now) {
      const { at, lane } = this.#timers.shift();
      if (lane.lookAt === at) this.#look(lane);
    }
    while (this.#due.size && size < MESSAGE_BYTES && parts.length < MESSAGE_PARTS) {
      const [lane] = this.#due;
      const batch = this.#nextOf(lane, now);
      if (!batch) {
        this.#due.delete(lane);
        this.#wait(lane, now);
        continue;
      }
      const { data } = batch;
      parts.push(this.#part(lane, batch, data.length, now));
      payload.push(data);
      size += data.length;
    }
    return parts.length ? { parts, payload } : null;
  }

  /** What is on its way leaves the next batch no place. The window begins with the oldest that is not settled. */
  #isFull(lane) {
    const following = lane.queue[0] ?? lane.open;
    const isNew = (following?.baseSequence ?? null) === null;
    if (isNew && lane.numbered - (lane.inFlight[0]?.ordinal ?? lane.numbered) >= this.maxInFlight) return true;
    const places = lane.inFlight.reduce((sum, batch) => sum + batch.places, following?.places ?? 1);
    return lane.inFlight.length > 0 && places > this.maxInFlight;
  }

  /** When its open batch is to be sent: at once when it is alone or full. */
  #dueAt(lane, batch) {
    if (!lane.inFlight.length || batch.size > this.batchBytes) return batch.openedAt;
    return batch.openedAt + this.options.lingerS;
  }

  /** Take the lane's next batch if it may be sent, and number it. */
  #nextOf(lane, now) {
    if (lane.draining || now < lane.notBefore || this.#isFull(lane)) return null;
    if (!lane.queue.length) {
      if (!lane.open || now < this.#dueAt(lane, lane.open)) return null;
      lane.seal();
    }
    const batch = lane.queue[0];
    if (this.options.idempotent && batch.baseSequence === null) {
      if (!this.#hasId(lane, batch.count)) return null;
      batch.number(lane.producerId, lane.nextSequence);
      lane.nextSequence += batch.count;
      batch.ordinal = lane.numbered++;
    }
    batch.encode(this.options.compression, this.codecs, lane.producerId);
    return lane.queue.shift();
  }

  /** Something happened to the lane: the next `take` looks at it. */
  #look(lane) {
    lane.lookAt = null;
    this.#due.add(lane);
  }

  #lookAtAll() {
    for (const lane of this.#active.values()) this.#look(lane);
  }

  /** Nothing of the lane may be sent now. What time alone changes is looked at again in time. */
  #wait(lane, now) {
    if (lane.draining || this.#isFull(lane)) return;
    let at = lane.queue.length || lane.open ? lane.notBefore : now;
    if (!lane.queue.length && lane.open) at = Math.max(at, this.#dueAt(lane, lane.open));
    if (at <= now) return;
    lane.lookAt = at;
    let place = this.#timers.length; // nearly always the last
    while (place && later(this.#timers[place - 1], at, lane)) place -= 1;
    this.#timers.splice(place, 0, { at, lane });
  }

  /** Give the lane a producer id if it needs one and may change it now. */
  #hasId(lane, count) {
    if (lane.nextSequence + count > MAX_SEQUENCE) lane.spoiled = true;
    if (lane.producerId && !lane.spoiled) return true;
    if (lane.inFlight.length) return false;
    if (!this.#producerId || this.#producerId === lane.producerId) {
      this.wantsProducerId = true;
      return false;
    }
    lane.producerId = this.#producerId;
    lane.nextSequence = 0;
    lane.spoiled = false;
    return true;
  }

  #part(lane, batch, size, now) {
    const id = this.nextId();
    this.#sent.set(id, batch);
    batch.answer = null;
    lane.inFlight.push(batch);
    const limit = lane.spoiled ? SPOILED_TIMEOUT_S : this.options.requestTimeoutS;
    const part = {
      id,
      topic_id: this.topicId,
      partition: lane.partition,
      acks: ACKS[this.options.acks],
      timeout_ms: Math.max(1, Math.round(1000 * Math.min(limit, batch.deadline - now))),
      size,
    };
    return batch.expectedOffset >= 0 ? { ...part, expected_offset: batch.expectedOffset } : part;
  }

  // --- answers come back ---

  /** Acks arrived; those for batches that are settled already, or unknown, are ignored. */
  onProduced(acks, now) {
    const settled = [];
    for (const ack of acks) {
      const batch = this.#sent.get(ack.id);
      this.#sent.delete(ack.id);
      if (!batch || batch.settled) continue;
      const lane = this.lanes[batch.partition];
      const error = ack.error && fromInfo(ack.error);
      this.#look(lane);
      batch.uncertain ||= Boolean(error?.unknownOutcome);
      if (!error) {
        batch.offset = ack.offset;
        batch.leaderEpoch = ack.leaderEpoch;
        batch.durability = ack.durability;
        if (ack.throttleMs) this.#throttle(lane, pauseS(ack.throttleMs), now);
        remove(lane.inFlight, batch);
        settled.push(this.#settle(lane, batch, null));
      } else {
        batch.answer = error;
        if (this.options.idempotent && mayPass(batch, error) && now < batch.deadline) lane.draining = true;
        else settled.push(this.#giveUp(lane, batch, error));
      }
      this.#endDrain(lane, now);
    }
    return settled;
  }

  /** The gateway asks to send nothing for the partition for so long. */
  #throttle(lane, pause, now) {
    this.throttledAcks += 1;
    this.throttledS += Math.max(0, now + pause - Math.max(lane.notBefore, now));
    lane.notBefore = Math.max(lane.notBefore, now + pause);
  }

  /** Every batch in flight has its answer: put what remains back to the front of the queue. */
  #endDrain(lane, now) {
    if (!lane.draining || lane.inFlight.some((batch) => batch.answer === null)) return;
    lane.draining = false;
    if (!lane.inFlight.length) return;
    const head = lane.inFlight[0].answer;
    lane.notBefore = now + Math.max(this.options.backoffS, head.pauseS);
    lane.queue.unshift(...lane.inFlight);
    lane.inFlight = [];
    const lossy = "lossy" in head.detail;
    const gap = head.code === "OUT_OF_ORDER_SEQUENCE" && (lossy || !head.unknownOutcome);
    if (gap && !lane.queue.some((batch) => batch.astray)) {
      for (const batch of lane.queue) {
        batch.number(0, null);
        batch.uncertain &&= lossy;
      }
      lane.spoiled = true;
    }
    if (head.code === NO_TICKET) {
      for (const batch of lane.queue) if (!batch.uncertain) batch.number(0, null);
      lane.spoiled = true;
    }
  }

  /** The batch has failed for good; the error says whether it may be in the log all the same. */
  #giveUp(lane, batch, error) {
    if (remove(lane.inFlight, batch)) batch.uncertain ||= batch.answer === null;
    else if (!remove(lane.queue, batch)) lane.open = null;
    if (batch.baseSequence !== null) {
      lane.spoiled = true;
      lane.draining = lane.inFlight.length > 0;
    }
    error.unknownOutcome = batch.uncertain;
    return this.#settle(lane, batch, error);
  }

  #settle(lane, batch, error) {
    if (batch.count) lane.sealedPlaces -= batch.places;
    batch.settle(error);
    this.buffered -= batch.size;
    this.#unsettled.delete(batch);
    if (!lane.oldest()) this.#active.delete(lane.partition);
    return batch;
  }

  // --- link, ids, time ---

  /** There is a link to a gateway: what was unacknowledged on the last one goes again, in order. */
  onLinkUp() {
    this.#up = true;
    this.#lookAtAll();
  }

  /** The link is gone and its answers with it. Batches that are not idempotent fail: outcome unknown. */
  onLinkDown() {
    this.#up = false;
    this.#sent.clear();
    const settled = [];
    for (const lane of [...this.#active.values()]) {
      lane.draining = false;
      for (const batch of lane.inFlight) {
        batch.astray ||= batch.answer === null;
        batch.uncertain ||= batch.astray;
      }
      if (this.options.idempotent) {
        lane.queue.unshift(...lane.inFlight);
        lane.inFlight = [];
      }
      for (const batch of [...lane.inFlight]) {
        const error = new Unreachable("the connection broke before the acknowledgement came");
        settled.push(this.#giveUp(lane, batch, error));
      }
    }
    return settled;
  }

  /**
   * A producer id that nobody has used, and how many batches may be in flight under it on one partition. Returns those
   * that no batch will be sent under any more.
   */
  onProducerId(producerId, window = 0) {
    this.#setWindow(window);
    this.#producerId = producerId;
    this.wantsProducerId = false;
    this.#lookAtAll();
    const used = new Set(this.lanes.map((lane) => lane.producerId));
    const gone = [...this.producerIds].filter((known) => !used.has(known)).sort((a, b) => a - b);
    for (const known of gone) this.producerIds.delete(known);
    this.producerIds.add(producerId);
    return gone;
  }

  /** Give up what is past its delivery timeout. */
  onTick(now) {
    const settled = [];
    for (const batch of this.#unsettled) {
      if (now < batch.deadline) break;
      const lane = this.lanes[batch.partition];
      settled.push(this.#giveUp(lane, batch, this.#timedOut(batch)));
      this.#endDrain(lane, now);
      this.#look(lane);
    }
    return settled;
  }

  #timedOut(batch) {
    const why = batch.answer ? `; last answer: ${batch.answer}` : "";
    const where = this.#up ? "no acknowledgement" : "no connection to a gateway";
    return new TimedOut(`${where} within deliveryTimeoutS ${this.options.deliveryTimeoutS}${why}`);
  }

  /** The producer ends now: everything unsettled fails. */
  failAll(error) {
    const settled = [];
    for (const lane of [...this.#active.values()]) {
      for (let batch = lane.oldest(); batch; batch = lane.oldest()) {
        settled.push(this.#giveUp(lane, batch, new BrokerError(error.message, { code: error.code })));
      }
    }
    return settled;
  }

  /** When `onTick` and `take` should be called next; Infinity: nothing is waited for. */
  deadline() {
    while (this.#timers.length && this.#timers[0].lane.lookAt !== this.#timers[0].at) this.#timers.shift();
    const [oldest] = this.#unsettled;
    let time = oldest ? oldest.deadline : Infinity;
    if (this.#up && this.#due.size) time = 0;
    if (this.#up && this.#timers.length) time = Math.min(time, this.#timers[0].at);
    return time;
  }
}

/**
 * Whether it is worth sending the batch again. A batch that was not written for lack of a ticket can be sent under
 * another producer id, unless an earlier try may have been written.
 */
function mayPass(batch, error) {
  return error.code === NO_TICKET ? !batch.uncertain : error.retriable;
}

function later(timer, at, lane) {
  return timer.at > at || (timer.at === at && timer.lane.partition > lane.partition);
}

function remove(list, item) {
  const at = list.indexOf(item);
  if (at >= 0) list.splice(at, 1);
  return at >= 0;
}
