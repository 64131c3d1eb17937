/**
 * Core of a producer for one topic: batching, order, retries and sequences. Without I/O and clock: `now` is given, in
 * seconds. The rules are those of the Python client (`tidelog/client/core/producer.py`).
 *
 * Each partition has a *queue*: an open batch, the closed batches, and the batches in flight.
 *
 * - Batching. A batch is closed when it is full. If no batch of its queue is in flight, an open batch is due at once;
 *   otherwise it is due when it has lingered. A lone record pays no linger, and a flood fills its batches (Nagle's
 *   idea). A full batch that cannot be sent because `maxInFlight` batches precede it stays open, grows, and takes the
 *   places of several.
 * - Idempotence (KIP-98). A batch gets (producer id, base sequence) when it is first sent, and keeps both through
 *   every retry, on this link or the next, so that the leader recognises a copy. The leader accepts sequences without
 *   a gap only. If a batch is not in the log, no later batch of the same id is.
 * - Errors. After an error the queue *drains*: it sends nothing until every batch in flight has its answer. Then the
 *   remaining batches are sent again, in order, with the same sequences. The order holds with any number in flight.
 * - Giving up a batch *spoils* the queue's producer id: because of the gap the leader would refuse every later batch.
 *   The batches in flight are drained. If the oldest remaining batch is refused with OUT_OF_ORDER_SEQUENCE and
 *   everything before it is settled, then it and its successors are not in the log, and they are numbered anew under
 *   a fresh producer id. This does not hold if a try was lost with its link: such batches end with their delivery
 *   timeout. In a topic that may lose records (`lossy`) batches are numbered anew too, but a batch of unknown outcome
 *   stays so.
 * - Throttling. An ack may ask for a pause (`throttle_ms`) because the partition's leader is slow. Nothing is sent to
 *   the partition until the pause is over.
 * - Tickets. A batch that is refused because its producer id was not presented with a valid ticket was not written by
 *   that try. A batch that no try can have written is numbered anew under a fresh producer id; the others are given
 *   up.
 * - The window of the connection (`produce-window.js`) bounds what all its producers have in flight. If it has no room
 *   for the next batch the producer sends nothing, until an ack makes room.
 * - A conditional append (`expectedOffset`) is a batch of one record. If it is refused with UNEXPECTED_OFFSET it is
 *   given up like any other. A retry of a record that was written is a copy, and is not refused.
 * - Without idempotence no batch is sent twice, since a retry might write it twice or change the order.
 *
 * A queue is visited when an event concerns it (`#due`), or when its time has come (`#timers`): there may be
 * thousands.
 */

import { MAX_RECORDS } from "../wire/batch.js";
import { BrokerError, TimedOut, Unreachable, fromInfo, pauseS } from "../errors.js";
import { PartitionQueue } from "./partition-queue.js";
import { ACKS, mostInFlight } from "../client/options.js";
import { BATCH_OVERHEAD, Batch } from "./batch.js";
import { ProduceWindow } from "./produce-window.js";

/** A produce message is complete when it has this many bytes, or `MESSAGE_PARTS` batches. */
const MESSAGE_BYTES = 1 << 20;
const MESSAGE_PARTS = 128;
const MAX_SEQUENCE = 2 ** 32 - 1;
const NO_TICKET = "INVALID_TICKET"; // error of a batch whose producer id was not presented with a valid ticket
const SPOILED_TIMEOUT_S = 1; // seconds that a gateway may try a batch that is probably behind a gap

/**
 * The queues of one producer. `nextId` returns the numbers by which acks name batches, unique on the link. A method
 * that returns batches returns those that the call settled, in order.
 */
export class ProducerCore {
  /** Bytes of the records that are not settled. */
  buffered = 0;
  /** Whether the shell should request a producer id and pass it to `onProducerId`. */
  wantsProducerId = false;
  /** Number of acks that asked for a pause because the partition's leader is slow. */
  throttledAcks = 0;
  /**
   * Sum of the pauses that acks asked for, over all partitions, in seconds. Pauses of one partition that overlap
   * count once.
   */
  throttledS = 0;
  #active = new Map();
  /** Lanes that the next `take` visits. */
  #due = new Set();
  /** Times at which queues are due, in order; an entry counts only if it equals the queue's `visitAt`. */
  #timers = [];
  /** The unsettled batches in the order of their delivery timeouts. */
  #unsettled = new Set();
  #sent = new Map();
  #producerId = 0;
  /** Producer ids that were given to this producer and under which batches may still be sent. */
  producerIds = new Set();
  #up = false;
  /** Whether the last `take` has left batches that are due, because the window had no room. */
  isBlocked = false;
  #window;

  constructor({ topicId, partitions, options, nextId, maxBatchBytes = 1 << 20, codecs = {}, window = new ProduceWindow() }) {
    this.#window = window;
    this.topicId = topicId;
    this.options = options;
    this.nextId = nextId;
    this.maxBatchBytes = maxBatchBytes;
    this.batchBytes = Math.min(options.batchBytes, maxBatchBytes);
    this.#setWindow(0);
    this.codecs = codecs;
    this.queues = Array.from({ length: partitions }, (_, partition) => new PartitionQueue(partition));
  }

  #setWindow(window) {
    this.maxInFlight = mostInFlight(this.options, window);
    this.mostBytes = Math.min(this.batchBytes * Math.max(1, Math.floor(this.maxInFlight / 2)), this.maxBatchBytes);
  }

  /** Whether every batch is settled. */
  get isIdle() {
    return !this.#active.size;
  }

  // --- records come in ---

  /**
   * Add a record of `recordSize` bytes to the open batch of its partition, and return the batch; null if no open
   * batch has space for it.
   */
  append(partition, record, size) {
    const queue = this.queues[partition];
    const batch = queue.open;
    if (!batch || batch.records.length === MAX_RECORDS) return null;
    const total = batch.size + size;
    if (total > this.batchBytes) {
      if (total > this.mostBytes || queue.closedPlaces < this.maxInFlight) return null;
      batch.places = Math.ceil(total / this.batchBytes);
    }
    batch.records.push(record);
    batch.size = total;
    this.buffered += size;
    return batch;
  }

  /**
   * Close the partition's open batch and open another one with this record, which stays alone in it if it has an
   * `expectedOffset`. Throws `BATCH_TOO_LARGE` if no batch can hold the record.
   */
  open(partition, record, size, now, expectedOffset = -1) {
    if (BATCH_OVERHEAD + size > this.maxBatchBytes) {
      const limit = `a batch of max_batch_bytes ${this.maxBatchBytes}`;
      throw new BrokerError(`a record of ${size} bytes does not fit into ${limit}`, { code: "BATCH_TOO_LARGE" });
    }
    const queue = this.queues[partition];
    queue.closeOpen();
    const batch = (queue.open = new Batch(partition, now, now + this.options.deliveryTimeoutS, expectedOffset));
    batch.records.push(record);
    batch.size += size;
    this.buffered += batch.size;
    this.#active.set(partition, queue);
    this.#unsettled.add(batch);
    this.#look(queue);
    if (expectedOffset >= 0) queue.closeOpen();
    return batch;
  }

  /** Close every open batch, so that all can be sent without lingering (flush). */
  closeOpenBatches() {
    for (const queue of this.#active.values()) queue.closeOpen();
    this.#lookAtAll();
  }

  // --- batches go out ---

  /**
   * Return the next message to send, `{parts, payload}`, with as many due batches as fit; null if nothing is due or
   * may be sent. Call until it returns null. Throws the error with which a batch cannot be encoded: nothing of the
   * message was sent, and `failAll` is the only way on.
   */
  take(now) {
    if (!this.#up) return null;
    const parts = [];
    const payload = [];
    let size = 0;
    this.isBlocked = false;
    while (this.#timers.length && this.#timers[0].at <= now) {
      const { at, queue } = this.#timers.shift();
      if (queue.visitAt === at) this.#look(queue);
    }
    while (this.#due.size && size < MESSAGE_BYTES && parts.length < MESSAGE_PARTS) {
      const [queue] = this.#due;
      const batch = this.#nextOf(queue, now);
      if (this.isBlocked) break;
      if (!batch) {
        this.#due.delete(queue);
        this.#wait(queue, now);
        continue;
      }
      const { data } = batch;
      parts.push(this.#part(queue, batch, data.length, now));
      payload.push(data);
      size += data.length;
    }
    return parts.length ? { parts, payload } : null;
  }

  /**
   * Return whether the batches in flight leave the queue's next one no place. The window begins with the oldest
   * unsettled batch.
   */
  #isFull(queue) {
    const following = queue.closed[0] ?? queue.open;
    const isNew = (following?.baseSequence ?? null) === null;
    if (isNew && queue.numbered - (queue.inFlight[0]?.ordinal ?? queue.numbered) >= this.maxInFlight) return true;
    const places = queue.inFlight.reduce((sum, batch) => sum + batch.places, following?.places ?? 1);
    return queue.inFlight.length > 0 && places > this.maxInFlight;
  }

  /**
   * Return when the queue's open batch is due: at once if no batch is in flight or it is full, else after its linger.
   */
  #dueAt(queue, batch) {
    if (!queue.inFlight.length || batch.size > this.batchBytes) return batch.openedAt;
    return batch.openedAt + this.options.lingerS;
  }

  /**
   * Remove the next batch from the queue, number it if needed, and return it; null if nothing may be sent now, be it
   * because the connection's window has no room (`isBlocked`).
   */
  #nextOf(queue, now) {
    if (queue.draining || now < queue.notBefore || this.#isFull(queue)) return null;
    const following = queue.closed[0] ?? queue.open;
    if (!following || (!queue.closed.length && now < this.#dueAt(queue, following))) return null;
    if (!this.#window.hasRoom(following.size)) {
      this.isBlocked = true;
      return null;
    }
    if (!queue.closed.length) queue.closeOpen();
    const batch = queue.closed[0];
    if (this.options.idempotent && batch.baseSequence === null) {
      if (!this.#hasId(queue, batch.count)) return null;
      batch.number(queue.producerId, queue.nextSequence);
      queue.nextSequence += batch.count;
      batch.ordinal = queue.numbered++;
    }
    batch.encode(this.options.compression, this.codecs, queue.producerId);
    return queue.closed.shift();
  }

  /** Let the next `take` visit the queue, because an event concerns it. */
  #look(queue) {
    queue.visitAt = null;
    this.#due.add(queue);
  }

  #lookAtAll() {
    for (const queue of this.#active.values()) this.#look(queue);
  }

  /** Set a timer for the next visit of a queue that may send nothing now, if time alone will change that. */
  #wait(queue, now) {
    if (queue.draining || this.#isFull(queue)) return;
    let at = queue.closed.length || queue.open ? queue.notBefore : now;
    if (!queue.closed.length && queue.open) at = Math.max(at, this.#dueAt(queue, queue.open));
    if (at <= now) return;
    queue.visitAt = at;
    let place = this.#timers.length; // nearly always the last
    while (place && later(this.#timers[place - 1], at, queue)) place -= 1;
    this.#timers.splice(place, 0, { at, queue });
  }

  /** Return whether the queue has a valid producer id, after giving it one if it needs one and may change it now. */
  #hasId(queue, count) {
    if (queue.nextSequence + count > MAX_SEQUENCE) queue.spoiled = true;
    if (queue.producerId && !queue.spoiled) return true;
    if (queue.inFlight.length) return false;
    if (!this.#producerId || this.#producerId === queue.producerId) {
      this.wantsProducerId = true;
      return false;
    }
    queue.producerId = this.#producerId;
    queue.nextSequence = 0;
    queue.spoiled = false;
    return true;
  }

  #part(queue, batch, size, now) {
    const id = this.nextId();
    this.#sent.set(id, batch);
    this.#window.add(id, size);
    batch.answer = null;
    queue.inFlight.push(batch);
    const limit = queue.spoiled ? SPOILED_TIMEOUT_S : this.options.requestTimeoutS;
    const part = {
      id,
      topic_id: this.topicId,
      partition: queue.partition,
      acks: ACKS[this.options.acks],
      timeout_ms: Math.max(1, Math.round(1000 * Math.min(limit, batch.deadline - now))),
      size,
    };
    return batch.expectedOffset >= 0 ? { ...part, expected_offset: batch.expectedOffset } : part;
  }

  // --- answers come back ---

  /**
   * Settle the batches that these acks name; after a retriable error the queue drains, and its batches are sent again.
   * Acks of batches that are settled or unknown are ignored.
   */
  onProduced(acks, now) {
    const settled = [];
    for (const ack of acks) {
      const batch = this.#sent.get(ack.id);
      this.#sent.delete(ack.id);
      if (!batch || batch.settled) continue;
      const queue = this.queues[batch.partition];
      const error = ack.error && fromInfo(ack.error);
      this.#look(queue);
      batch.uncertain ||= Boolean(error?.unknownOutcome);
      if (!error) {
        batch.offset = ack.offset;
        batch.leaderEpoch = ack.leaderEpoch;
        batch.durability = ack.durability;
        if (ack.throttleMs) this.#throttle(queue, pauseS(ack.throttleMs), now);
        remove(queue.inFlight, batch);
        settled.push(this.#settle(queue, batch, null));
      } else {
        batch.answer = error;
        if (this.options.idempotent && mayPass(batch, error) && now < batch.deadline) queue.draining = true;
        else settled.push(this.#giveUp(queue, batch, error));
      }
      this.#endDrain(queue, now);
    }
    return settled;
  }

  /** Send nothing to the partition for the pause that an ack asked for, and count the pause. */
  #throttle(queue, pause, now) {
    this.throttledAcks += 1;
    this.throttledS += Math.max(0, now + pause - Math.max(queue.notBefore, now));
    queue.notBefore = Math.max(queue.notBefore, now + pause);
  }

  /**
   * End the draining if every batch in flight has its answer: put the remaining ones back to the front of the queue,
   * to be sent after a pause.
   */
  #endDrain(queue, now) {
    if (!queue.draining || queue.inFlight.some((batch) => batch.answer === null)) return;
    queue.draining = false;
    if (!queue.inFlight.length) return;
    const head = queue.inFlight[0].answer;
    queue.notBefore = now + Math.max(this.options.backoffS, head.pauseS);
    queue.closed.unshift(...queue.inFlight);
    queue.inFlight = [];
    const lossy = "lossy" in head.detail;
    const gap = head.code === "OUT_OF_ORDER_SEQUENCE" && (lossy || !head.unknownOutcome);
    if (gap && !queue.closed.some((batch) => batch.astray)) {
      for (const batch of queue.closed) {
        batch.number(0, null);
        batch.uncertain &&= lossy;
      }
      queue.spoiled = true;
    }
    if (head.code === NO_TICKET) {
      for (const batch of queue.closed) if (!batch.uncertain) batch.number(0, null);
      queue.spoiled = true;
    }
  }

  /** Fail a batch for good; the error says whether it may be in the log all the same. */
  #giveUp(queue, batch, error) {
    if (remove(queue.inFlight, batch)) batch.uncertain ||= batch.answer === null;
    else if (!remove(queue.closed, batch)) queue.open = null;
    if (batch.baseSequence !== null) {
      queue.spoiled = true;
      queue.draining = queue.inFlight.length > 0;
    }
    error.unknownOutcome = batch.uncertain;
    return this.#settle(queue, batch, error);
  }

  #settle(queue, batch, error) {
    if (batch.count) queue.closedPlaces -= batch.places;
    batch.settle(error);
    this.buffered -= batch.size;
    this.#unsettled.delete(batch);
    if (!queue.oldest()) this.#active.delete(queue.partition);
    return batch;
  }

  // --- link, ids, time ---

  /** Allow sending on a new link. The batches that the last link left unanswered are sent again, in order. */
  onLinkUp() {
    this.#up = true;
    this.#lookAtAll();
  }

  /**
   * Stop sending until the next link. Batches in flight are queued again; without idempotence they fail with unknown
   * outcome.
   */
  onLinkDown() {
    this.#up = false;
    this.#sent.clear();
    const settled = [];
    for (const queue of [...this.#active.values()]) {
      queue.draining = false;
      for (const batch of queue.inFlight) {
        batch.astray ||= batch.answer === null;
        batch.uncertain ||= batch.astray;
      }
      if (this.options.idempotent) {
        queue.closed.unshift(...queue.inFlight);
        queue.inFlight = [];
      }
      for (const batch of [...queue.inFlight]) {
        const error = new Unreachable("the connection broke before the acknowledgement came");
        settled.push(this.#giveUp(queue, batch, error));
      }
    }
    return settled;
  }

  /**
   * Use a fresh producer id, with at most `window` batches of a partition in flight. Returns the ids under which no
   * batch will be sent any more.
   */
  onProducerId(producerId, window = 0) {
    this.#setWindow(window);
    this.#producerId = producerId;
    this.wantsProducerId = false;
    this.#lookAtAll();
    const used = new Set(this.queues.map((queue) => queue.producerId));
    const gone = [...this.producerIds].filter((known) => !used.has(known)).sort((a, b) => a - b);
    for (const known of gone) this.producerIds.delete(known);
    this.producerIds.add(producerId);
    return gone;
  }

  /** Fail the batches whose delivery timeout is over, and return them. */
  onTick(now) {
    const settled = [];
    for (const batch of this.#unsettled) {
      if (now < batch.deadline) break;
      const queue = this.queues[batch.partition];
      settled.push(this.#giveUp(queue, batch, this.#timedOut(batch)));
      this.#endDrain(queue, now);
      this.#look(queue);
    }
    return settled;
  }

  #timedOut(batch) {
    const why = batch.answer ? `; last answer: ${batch.answer}` : "";
    const where = this.#up ? "no acknowledgement" : "no connection to a gateway";
    return new TimedOut(`${where} within deliveryTimeoutS ${this.options.deliveryTimeoutS}${why}`);
  }

  /** Fail every unsettled batch because the producer ends, and return them. */
  failAll(error) {
    const settled = [];
    for (const queue of [...this.#active.values()]) {
      for (let batch = queue.oldest(); batch; batch = queue.oldest()) {
        settled.push(this.#giveUp(queue, batch, new BrokerError(error.message, { code: error.code })));
      }
    }
    return settled;
  }

  /**
   * Fail every unsettled batch with an expected offset, and return them. Called with no link, before one is used whose
   * gateway may ignore the expected offset.
   */
  failConditional(error) {
    return [...this.#unsettled]
      .filter((batch) => batch.expectedOffset >= 0)
      .map((batch) => this.#giveUp(this.queues[batch.partition], batch, new BrokerError(error.message, { code: error.code })));
  }

  /**
   * Return the time at which `onTick` and `take` are to be called next; Infinity if only an event can change
   * something.
   */
  deadline() {
    while (this.#timers.length && this.#timers[0].queue.visitAt !== this.#timers[0].at) this.#timers.shift();
    const [oldest] = this.#unsettled;
    let time = oldest ? oldest.deadline : Infinity;
    if (this.#up && this.#due.size && !this.isBlocked) time = 0;
    if (this.#up && this.#timers.length) time = Math.min(time, this.#timers[0].at);
    return time;
  }
}

/**
 * Return whether the batch may be sent again after this error. A batch that was not written for lack of a ticket can
 * be sent under another producer id, unless an earlier try may have written it.
 */
function mayPass(batch, error) {
  return error.code === NO_TICKET ? !batch.uncertain : error.retriable;
}

function later(timer, at, queue) {
  return timer.at > at || (timer.at === at && timer.queue.partition > queue.partition);
}

function remove(list, item) {
  const at = list.indexOf(item);
  if (at >= 0) list.splice(at, 1);
  return at >= 0;
}
