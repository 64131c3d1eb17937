/** A producer, as an application sees it: it adds records to the core and sends the batches that the core closes. */

import { Timer, deferred, now, turn, wallMs } from "../clock.js";
import { BrokerError, Closed, ConfigError, DeliveryFailed, TidelogError } from "../errors.js";
import { recordSize } from "../core/batch.js";
import { Partitioner } from "../core/partitioner.js";
import { ProducerCore } from "../core/producer.js";
import { headersOf, bytesOf } from "../wire/records.js";
import { CONDITIONAL_APPEND, refuseWithout } from "../net/capabilities.js";
import * as messages from "../wire/messages.js";

/** Number of records after which `submit` lets other tasks run. */
const TURN_EVERY = 256;
/** Error codes of a partition that takes no records at present. */
const CLOSED = new Set(["TOPIC_READ_ONLY", "TOPIC_PAUSED"]);
/** Seconds between two requests for the metadata while some partition takes no records. */
const LOOK_S = 5;
/** Most failed batches that are kept one by one until the producer ends, unless their failures were reported. */
const REMEMBERED_FAILURES = 1000;

/** A record that a producer has accepted, with its acknowledgement or its failure once that is known. */
export class Pending {
  #batch;
  #index;
  #timestampMs;
  #told = false;

  constructor(batch, index, timestampMs) {
    this.#batch = batch;
    this.#index = index;
    this.#timestampMs = timestampMs;
  }

  /** The partition that the record goes to. */
  get partition() {
    return this.#batch.partition;
  }

  /** Whether `result` returns or throws the outcome, rather than an error because it is not known yet. */
  get isSettled() {
    return this.#batch.settled;
  }

  /**
   * Wait until the record is acknowledged or has failed, and resolve with the acknowledgement. Rejects with what
   * `result` throws.
   */
  async wait() {
    const batch = this.#batch;
    if (!batch.settled) {
      batch.waiter ??= deferred();
      await batch.waiter.promise;
    }
    return this.result();
  }

  /**
   * Return the acknowledgement. Throws the error that the record failed with; its `unknownOutcome` says whether the
   * record may be in the log all the same.
   */
  result() {
    const { settled, error, offset, leaderEpoch, durability, partition } = this.#batch;
    if (!settled) throw new Error("not settled yet: await wait()");
    if (error) {
      this.#batch.reported += this.#told ? 0 : 1;
      this.#told = true;
      const { code, unknownOutcome, detail } = error;
      throw new BrokerError(error.message, { code, unknownOutcome, detail, cause: error });
    }
    const own = offset >= 0 ? offset + this.#index : -1;
    return { partition, offset: own, leaderEpoch, durability, timestampMs: this.#timestampMs };
  }
}

/** A producer that sends records to one topic. Made by `Log.producer`. */
export class Producer {
  #connection;
  #core;
  #partitioner;
  #timer = new Timer(() => this.#pump());
  #woken = false;
  #waiting = [];
  #quiet = null;
  #closed = false;
  #ended = null;
  #asking = false;
  #askAfter = 0;
  #count = 0;
  #failed = [];
  #forgotten = 0;
  #firstError = null;
  /** Whether the outcome of a record that was forgotten is unknown. */
  #forgotUnknown = false;
  #looking = false;
  #lookAt = now() + LOOK_S;

  constructor(connection, topic, options, codecs) {
    const partitions = topic.partitions.length;
    if (!partitions) throw new ConfigError(`${topic.name} has no partitions`);
    if (options.compression !== "none" && !codecs[options.compression]?.compress) {
      throw new ConfigError(`compression ${options.compression} needs connect's option codecs: {${options.compression}: {compress}}`);
    }
    this.topic = topic.name;
    this.options = options;
    this.#connection = connection;
    this.#partitioner = new Partitioner(partitions, wallMs());
    this.#partitioner.close(closedOf(topic));
    this.#core = new ProducerCore({
      topicId: topic.topicId,
      partitions,
      options,
      nextId: () => connection.nextId(this),
      maxBatchBytes: Number(topic.config.max_batch_bytes ?? 1 << 20),
      codecs,
      window: connection.window,
    });
    connection.attach(this);
  }

  // --- for applications ---

  /** Send a record and resolve with its acknowledgement. Rejects with `BrokerError` if it failed (see `Pending`). */
  async send(value, options) {
    const pending = await this.submit(value, options);
    return pending.wait();
  }

  /**
   * Put a record into the open batch of its partition, and resolve with its `Pending`; waits only while `bufferBytes`
   * are unacknowledged, and now and then to let other tasks run. Records are accepted in the order of the calls.
   * Rejects with `BATCH_TOO_LARGE` if no batch can hold the record, `CLOSED`; `TypeError` and `RangeError` for wrong
   * arguments.
   */
  async submit(value, { key = null, headers = [], partition = null, timestampMs = null, expectedOffset = null } = {}) {
    if (timestampMs !== null && !(Number.isSafeInteger(timestampMs) && timestampMs >= 0)) {
      throw new RangeError("timestampMs is milliseconds since 1970, an integer and not negative");
    }
    const count = this.#partitioner.partitions;
    if (partition !== null && !(Number.isInteger(partition) && partition >= 0 && partition < count)) {
      throw new RangeError(`${this.topic} has partitions 0 to ${count - 1}, not ${partition}`);
    }
    if (expectedOffset !== null) this.#checkCondition(expectedOffset, key, partition);
    const record = { value: bytesOf(value), key: bytesOf(key), timestampMs, headers: headersOf(headers) };
    if (this.#closed) throw new Closed(`the producer of ${this.topic} is closed`);
    if (this.#core.buffered >= this.options.bufferBytes) {
      const room = deferred();
      this.#waiting.push({ record, partition, expectedOffset, room });
      return room.promise;
    }
    const pending = this.#accept(record, partition, expectedOffset);
    if (++this.#count % TURN_EVERY === 0) await turn();
    return pending;
  }

  /**
   * Send all records without lingering, and wait until every record is settled, also those that are submitted
   * meanwhile.
   */
  async flush() {
    while (!this.#core.isIdle) {
      this.#core.closeOpenBatches();
      this.#wake();
      this.#quiet ??= deferred();
      await this.#quiet.promise;
    }
  }

  /**
   * Accept no more records, and wait until every record is acknowledged or has failed. Rejects with `DeliveryFailed`
   * if records failed and no caller got the error.
   */
  close() {
    this.#ended ??= this.#close();
    return this.#ended;
  }

  /** End the producer at once: every record that is not acknowledged fails. */
  abandon() {
    this.#closed = true;
    this.#refuseWaiting();
    this.#timer.clear();
    this.#connection.detach(this);
    this.#note(this.#core.failAll(new Closed("the producer was closed before the acknowledgement came")));
    for (const producerId of this.#core.producerIds) this.#connection.releaseProducer(producerId);
  }

  /** Return the error for all failures that no `Pending` has reported to a caller; null if there are none. */
  failure() {
    const untold = this.#failed.filter((batch) => batch.reported < batch.count);
    const count = this.#forgotten + untold.reduce((sum, batch) => sum + batch.count - batch.reported, 0);
    const first = this.#firstError ?? untold[0]?.error;
    const isUnknown = this.#forgotUnknown || untold.some((batch) => batch.error.unknownOutcome);
    return first ? new DeliveryFailed(count, first, isUnknown) : null;
  }

  /** Number of acknowledgements that asked this producer to pause because a partition's leader is slow. */
  get throttledAcks() {
    return this.#core.throttledAcks;
  }

  /** Total time in seconds that this producer was asked to pause, summed over all partitions. */
  get throttledS() {
    return this.#core.throttledS;
  }

  // --- the work ---

  async #close() {
    this.#closed = true;
    this.#refuseWaiting();
    await this.flush();
    await turn(); // who waits for a record is told first
    this.abandon();
    const failure = this.failure();
    if (failure) throw failure;
  }

  #checkCondition(expectedOffset, key, partition) {
    if (!Number.isSafeInteger(expectedOffset) || expectedOffset < 0) {
      throw new RangeError(`expectedOffset is an integer and not negative: ${expectedOffset}`);
    }
    if (key === null && partition === null && this.#partitioner.partitions > 1) {
      throw new RangeError("expectedOffset is of one partition: name it, or a key");
    }
    if (this.options.acks === "none") {
      throw new RangeError("with acks none nobody would know whether expectedOffset was right");
    }
    const refusal = this.#refuseCondition();
    if (refusal) throw refusal;
  }

  /** Return `UNSUPPORTED` if a link is open to a gateway that may ignore `expectedOffset`; else null. */
  #refuseCondition() {
    const { link } = this.#connection;
    return link && refuseWithout(CONDITIONAL_APPEND, "expected_offset", link.peer);
  }

  #accept(record, wanted, expectedOffset) {
    const core = this.#core;
    const partitioner = this.#partitioner;
    const size = recordSize(record);
    record.timestampMs ??= wallMs();
    const sticky = wanted === null && record.key === null;
    let partition = wanted ?? (sticky ? partitioner.sticky : partitioner.ofKey(record.key));
    let batch = expectedOffset === null ? core.append(partition, record, size) : null;
    if (!batch && sticky && expectedOffset === null) {
      partitioner.moveOn();
      partition = partitioner.sticky;
      batch = core.append(partition, record, size);
    }
    if (!batch) {
      batch = core.open(partition, record, size, now(), expectedOffset ?? -1);
      this.#wake();
    }
    return new Pending(batch, batch.records.length - 1, record.timestampMs);
  }

  /** Send what is due in a later turn, when the present one has added all its records. */
  #wake() {
    if (this.#woken) return;
    this.#woken = true;
    queueMicrotask(() => {
      this.#woken = false;
      this.#pump();
    });
  }

  /** Send the batches that are due, and request a producer id or metadata when they are needed. */
  #pump() {
    const core = this.#core;
    const { link } = this.#connection;
    const time = now();
    this.#note(core.onTick(time));
    if (link) this.#send(link, time);
    let deadline = core.deadline();
    if (core.wantsProducerId && link && !this.#asking) {
      if (time >= this.#askAfter) this.#askForId(link);
      else deadline = Math.min(deadline, this.#askAfter);
    }
    if (this.#partitioner.closed.size && link && !this.#looking) {
      if (time >= this.#lookAt) this.#lookForOpen(link);
      else deadline = Math.min(deadline, this.#lookAt);
    }
    if (core.isBlocked) this.#connection.window.wait(() => this.#wake());
    this.#timer.set(deadline);
  }

  /** Request the metadata, to learn which partitions take records now. */
  #lookForOpen(link) {
    this.#looking = true;
    link
      .call({ op: "metadata", topics: [this.topic] }, messages.metadataAnswer, this.options.requestTimeoutS)
      .then(
        ({ topics: [topic] }) => {
          const count = this.#partitioner.partitions;
          if (topic) this.#partitioner.close(closedOf(topic).filter((partition) => partition < count));
        },
        () => null,
      )
      .then(() => {
        this.#looking = false;
        this.#lookAt = now() + LOOK_S;
        this.#wake();
      });
  }

  #send(link, time) {
    try {
      for (let message = this.#core.take(time); message; message = this.#core.take(time)) {
        link.post({ op: "produce", parts: message.parts }, message.payload);
      }
    } catch (error) {
      const why = error instanceof TidelogError ? error : new ConfigError(`a batch cannot be encoded: ${error.message}`);
      this.#note(this.#core.failAll(why));
    }
  }

  #askForId(link) {
    this.#asking = true;
    link
      .call({ op: "init_producer" }, messages.producerId, this.options.requestTimeoutS)
      .then(
        ({ producerId, ticket, window }) => {
          if (this.#closed && this.#core.isIdle) return; // nothing will be sent any more
          for (const gone of this.#core.onProducerId(producerId, window)) this.#connection.releaseProducer(gone);
          this.#connection.useProducer(producerId, ticket);
        },
        (error) => {
          this.#askAfter = now() + this.options.backoffS;
          if (!error.retriable) this.#note(this.#core.failAll(error));
        },
      )
      .then(() => {
        this.#asking = false;
        this.#wake();
      });
  }

  /** Settle the batches that these acks name (called by the connection). */
  onAcks(acks) {
    this.#note(this.#core.onProduced(acks, now()));
    this.#pump();
  }

  /**
   * Send on the new link, unacknowledged batches first (called by the connection). Batches with an expected offset fail
   * if the gateway may ignore it.
   */
  onLinkUp() {
    const refusal = this.#refuseCondition();
    if (refusal) this.#note(this.#core.failConditional(refusal));
    this.#core.onLinkUp();
    this.#wake();
  }

  /** Mark the batches in flight as unanswered (called by the connection). */
  onLinkDown() {
    this.#note(this.#core.onLinkDown(now()));
    this.#wake();
  }

  /**
   * Wake the callers that wait for these settled batches, for space in the buffer, or for `flush`; remember failures
   * for the end.
   */
  #note(settled) {
    for (const batch of settled) {
      batch.waiter?.resolve();
      if (batch.error) this.#remember(batch);
      if (CLOSED.has(batch.error?.code)) this.#partitioner.close([...this.#partitioner.closed, batch.partition]);
    }
    while (this.#waiting.length && this.#core.buffered < this.options.bufferBytes) {
      const { record, partition, expectedOffset, room } = this.#waiting.shift();
      try {
        room.resolve(this.#accept(record, partition, expectedOffset));
      } catch (error) {
        room.reject(error);
      }
    }
    if (this.#core.isIdle && this.#quiet) {
      this.#quiet.resolve();
      this.#quiet = null;
    }
  }

  #remember(batch) {
    this.#failed = this.#failed.filter((failed) => failed.reported < failed.count);
    this.#failed.push(batch);
    if (this.#failed.length > REMEMBERED_FAILURES) {
      const oldest = this.#failed.shift();
      this.#forgotten += oldest.count - oldest.reported;
      this.#firstError ??= oldest.error;
      this.#forgotUnknown ||= oldest.error.unknownOutcome;
    }
  }

  #refuseWaiting() {
    for (const { room } of this.#waiting.splice(0)) {
      room.reject(new Closed(`the producer of ${this.topic} is closed`));
    }
  }
}

/** Return the partitions of a topic that take no records at present. */
function closedOf(topic) {
  return topic.partitions.filter((one) => one.readOnly || one.paused).map((one) => one.partition);
}
