/**
 * Errors: what a program asks is `code`, `retriable` and `unknownOutcome`, never a text. The codes and their meanings
 * are those of docs/errors.md (`wire/error-codes.js` is written from the same table by `make pages`).
 */

import { CODES } from "./wire/error-codes.js";

/** No server makes anyone wait longer. */
const MAX_PAUSE_MS = 60_000;

/** The pause that a server asks for, in seconds, bounded; 0 if it is no number. */
export function pauseS(pauseMs) {
  return typeof pauseMs === "number" ? Math.min(pauseMs, MAX_PAUSE_MS) / 1000 : 0;
}

/**
 * Base of all. `code` is a key of `CODES`; `detail` holds the numbers and texts that its meaning needs (`leader`,
 * `log_start`, `end_offset`, `leader_epoch` ...); with `unknownOutcome` what was asked may have been done all the same.
 */
export class TidelogError extends Error {
  constructor(message, { code = "MALFORMED", unknownOutcome = false, detail = {}, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.unknownOutcome = unknownOutcome || (CODES[code]?.unknownOutcome ?? false);
    this.detail = detail;
  }

  /** The same request may succeed later, unchanged. */
  get retriable() {
    return CODES[this.code]?.retriable ?? false;
  }

  /** The sender's picture of the cluster is out of date. */
  get refreshMetadata() {
    return CODES[this.code]?.refreshMetadata ?? false;
  }

  /** How long to wait before the next try, in seconds, where the server says so (`QUOTA_EXCEEDED`). */
  get pauseS() {
    return pauseS(this.detail.pause_ms);
  }

  toString() {
    return `[${this.code}] ${this.message}`;
  }
}

/** A server answered with an error. */
export class BrokerError extends TidelogError {}

/** The other side sent what the protocol does not allow; the connection ends. */
export class ProtocolError extends TidelogError {}

/** A batch fails one of its checks; the message says which. */
export class CorruptBatch extends TidelogError {
  constructor(message) {
    super(message, { code: "CORRUPT_BATCH" });
  }
}

/**
 * A batch of the log that a reader cannot decode; `detail` has its place, too. Usually its producer wrote it so, and it
 * stays unreadable. `isDamaged` is the other case: its CRC is wrong, another read may get a sound copy, and it is never
 * skipped.
 */
export class UnreadableBatch extends CorruptBatch {
  constructor({ topic, partition, header, isDamaged, why, cause }) {
    const { baseOffset, endOffset, producerId } = header;
    const where = `${topic}/${partition}: the batch at offsets ${baseOffset} to ${endOffset - 1}, of producer id ${producerId}`;
    const how = isDamaged
      ? `Its bytes were damaged on the way: read again from offset ${baseOffset}`
      : `Go on at offset ${endOffset}, or have such batches skipped (onUnreadable)`;
    super(`${where}, cannot be read: ${why}. ${how}`);
    this.cause = cause;
    /** Topic, partition, offsets and producer id, in words; and the check that failed. */
    this.place = where;
    this.why = why;
    this.topic = topic;
    this.partition = partition;
    this.baseOffset = baseOffset;
    this.lastOffset = endOffset - 1;
    /** Where reading goes on behind the batch. */
    this.nextOffset = endOffset;
    /** 0: its producer was not idempotent. A BigInt above 2^53. */
    this.producerId = producerId;
    this.isDamaged = isDamaged;
    this.detail = { topic, partition, offset: baseOffset, last_offset: endOffset - 1, producer_id: producerId };
  }
}

/** No connection to the server, or it broke before the answer came. */
export class Unreachable extends TidelogError {
  constructor(message, { unknownOutcome = false } = {}) {
    super(message, { code: "UNREACHABLE", unknownOutcome });
  }
}

/** No answer in time: the outcome is unknown unless said otherwise. */
export class TimedOut extends TidelogError {
  constructor(message, { unknownOutcome = false } = {}) {
    super(message, { code: "REQUEST_TIMED_OUT", unknownOutcome });
  }
}

/** The client, producer or consumer was closed. */
export class Closed extends TidelogError {
  constructor(message) {
    super(message, { code: "CLOSED" });
  }
}

/** Wrong options or arguments: all of them, one a line. */
export class ConfigError extends TidelogError {
  constructor(message) {
    super(message, { code: "INVALID_CONFIG" });
  }
}

/**
 * Records were not acknowledged, and nobody waited for them. `failed` says how many; `code` and `unknownOutcome` are
 * those of the first.
 */
export class DeliveryFailed extends TidelogError {
  constructor(failed, first) {
    super(`${failed} records were not acknowledged; the first: ${first.message}`, {
      code: first.code,
      unknownOutcome: first.unknownOutcome,
      detail: { failed },
      cause: first,
    });
    this.failed = failed;
  }
}

/** The error that arrived. A code that this version does not know counts as not retriable. */
export function fromInfo(info) {
  const code = info.code in CODES ? info.code : "UNSUPPORTED";
  const detail = {};
  for (const [key, text] of Object.entries(info.detail)) {
    detail[key] = /^-?[0-9]{1,15}$/.test(text) ? Number(text) : text;
  }
  return new BrokerError(info.message, { code, unknownOutcome: info.unknownOutcome, detail });
}

/** Throw `ConfigError` with every text whose condition is true, one a line. */
export function check(faults) {
  const found = Object.keys(faults).filter((text) => faults[text]);
  if (found.length) throw new ConfigError(found.join("\n"));
}
