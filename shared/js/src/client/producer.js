/** A producer as an application sees it: it adds records to the core and sends what the core says. */

import { Timer, deferred, now, turn, wallMs } from "../clock.js";
import { BrokerError, Closed, ConfigError, DeliveryFailed, TidelogError } from "../errors.js";
import { recordSize } from "../core/batch.js";
import { Partitioner } from "../core/partitioner.js";
import { ProducerCore } from "../core/producer.js";
import { headersOf, bytesOf } from "../wire/records.js";
import * as messages from "../wire/messages.js";

/** Records that `submit` takes before it lets others have their turn. */
const TURN_EVERY = 256;
/** Errors of a partition that takes no records at present. */
const CLOSED = new Set(["TOPIC_READ_ONLY", "TOPIC_PAUSED"]);
/** Seconds between two requests for the metadata, to see whether such partitions take records again. */
const LOOK_S = 5;
/** Failed batches whose records nobody asked about, kept one by one until the producer ends. */
const REMEMBERED_FAILURES = 1000;

/** A record that was accepted and is not acknowledged yet, perhaps. */
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

  /** Where the record goes. */
  get partition() {
    return this.#batch.partition;
  }

  /** `result` will not throw because it is too early. */
  get isSettled() {
    return this.#batch.settled;
  }

  /** Wait for the acknowledgement. Rejects with what `result` throws. */
  async wait() {
    const batch = this.#batch;
    if (!batch.settled) {
      batch.waiter ??= deferred();
      await batch.waiter.promise;
    }
    return this.result();
  }

  /**
   * The acknowledgement. Throws the error that the record failed with: `unknownOutcome` says whether it may be in the
   * log all the same.
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

/** Sends records to one topic. Made by `Log.producer`. */
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
    });
    connection.attach(this);
  }

  // --- for applications ---

  /** Send a record and wait for its acknowledgement. Rejects with `BrokerError` when it failed (see `Pending`). */
  async send(value, options) {
    const pending = await this.submit(value, options);
    return pending.wait();
  }

  /**
   * Accept a record; waits only while `bufferBytes` are unacknowledged (and lets others have their turn now and then).
   * Records are accepted in the order of the calls. Rejects with `BATCH_TOO_LARGE` for what no batch can hold, `CLOSED`;
   * `TypeError` and `RangeError` for wrong arguments.
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

  /** Nothing lingers; wait until everything accepted so far, and by others meanwhile, is settled. */
  async flush() {
    while (!this.#core.isIdle) {
      this.#core.sealAll();
      this.#wake();
      this.#quiet ??= deferred();
      await this.#quiet.promise;
    }
  }

  /**
   * Take no more, and wait until everything is acknowledged or given up. Rejects with `DeliveryFailed` if records failed
   * that nobody waited for. A record is never silently lost.
   */
  close() {
    this.#ended ??= this.#close();
    return this.#ended;
  }

  /** Give up at once: everything that is not acknowledged fails. */
  abandon() {
    this.#closed = true;
    this.#refuseWaiting();
    this.#timer.clear();
    this.#connection.detach(this);
    this.#note(this.#core.failAll(new Closed("the producer was closed before the acknowledgement came")));
    for (const producerId of this.#core.producerIds) this.#connection.releaseProducer(producerId);
  }

  /** What has failed so far without anyone having been told; null: nothing. */
  failure() {
    const untold = this.#failed.filter((batch) => batch.reported < batch.count);
    const count = this.#forgotten + untold.reduce((sum, batch) => sum + batch.count - batch.reported, 0);
    const first = this.#firstError ?? untold[0]?.error;
    return first ? new DeliveryFailed(count, first) : null;
  }

  /** How many acknowledgements asked this producer to pause because a partition's leader is slow. */
  get throttledAcks() {
    return this.#core.throttledAcks;
  }

  /** For how long this producer was asked to pause so far, in seconds, all partitions added up. */
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

  /** Send what is due, after whoever runs now has added all it wants. */
  #wake() {
    if (this.#woken) return;
    this.#woken = true;
    queueMicrotask(() => {
      this.#woken = false;
      this.#pump();
    });
  }

  /** Send what is due. */
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
    this.#timer.set(deadline);
  }

  /** See in the metadata which partitions take records now. */
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

  /** Acks arrived (called by the connection). */
  onAcks(acks) {
    this.#note(this.#core.onProduced(acks, now()));
    this.#pump();
  }

  /** A gateway is there (called by the connection). */
  onLinkUp() {
    this.#core.onLinkUp();
    this.#wake();
  }

  /** The gateway is gone (called by the connection). */
  onLinkDown() {
    this.#note(this.#core.onLinkDown(now()));
    this.#wake();
  }

  /** Wake who waits for these batches, for room, or for quiet. */
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
    }
  }

  #refuseWaiting() {
    for (const { room } of this.#waiting.splice(0)) {
      room.reject(new Closed(`the producer of ${this.topic} is closed`));
    }
  }
}

/** The partitions of a topic that take no records at present. */
function closedOf(topic) {
  return topic.partitions.filter((one) => one.readOnly || one.paused).map((one) => one.partition);
}
