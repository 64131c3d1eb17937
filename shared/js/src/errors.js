/**
 * Errors. Programs look at `code`, `retriable` and `unknownOutcome`, never at a text. The codes and their meanings
 * are those of docs/errors.md (`wire/error-codes.js` is written from the same table by `make pages`).
 */

import { CODES } from "./wire/error-codes.js";

/** Longest pause that a server may ask for, in milliseconds. */
const MAX_PAUSE_MS = 60_000;

/** Return the pause that a server asks for, in seconds, bounded; 0 if it is no number. */
export function pauseS(pauseMs) {
  return typeof pauseMs === "number" ? Math.min(pauseMs, MAX_PAUSE_MS) / 1000 : 0;
}

/**
 * The base of all errors. `code` is a key of `CODES`; `detail` has the numbers and texts that its meaning needs
 * (`leader`, `log_start`, `end_offset`, `leader_epoch` ...); with `unknownOutcome` the request may have been executed
 * all the same.
 */
export class TidelogError extends Error {
  constructor(message, { code = "MALFORMED", unknownOutcome = false, detail = {}, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.unknownOutcome = unknownOutcome || (CODES[code]?.unknownOutcome ?? false);
    this.detail = detail;
    /** Id under which the gateway keeps the evidence of the refusal for a while (`tidelog why ID`); "": none. */
    this.id = "";
  }

  /** Whether the same request may succeed later, unchanged. */
  get retriable() {
    return CODES[this.code]?.retriable ?? false;
  }

  /** Whether the sender's view of the cluster is out of date, so that it should ask for metadata. */
  get refreshMetadata() {
    return CODES[this.code]?.refreshMetadata ?? false;
  }

  /** Seconds to wait before the next try, if the server asks for a pause (`QUOTA_EXCEEDED`); else 0. */
  get pauseS() {
    return pauseS(this.detail.pause_ms);
  }

  toString() {
    return `[${this.code}] ${this.message}${this.id && ` (error id ${this.id})`}`;
  }
}

/** The error with which a server answered. */
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
 * A batch of the log that a reader cannot decode; `detail` has its place, too. Usually its producer wrote it so, and
 * it stays unreadable. With `isDamaged` its CRC is wrong: another read may get a sound copy, and it is never skipped.
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
    /** Topic, partition, offsets and producer id, in words; `why` is the check that failed. */
    this.place = where;
    this.why = why;
    this.topic = topic;
    this.partition = partition;
    this.baseOffset = baseOffset;
    this.lastOffset = endOffset - 1;
    /** The offset at which reading goes on behind the batch. */
    this.nextOffset = endOffset;
    /** Producer id of the batch; 0 if its producer was not idempotent, a BigInt above 2^53. */
    this.producerId = producerId;
    this.isDamaged = isDamaged;
    this.detail = { topic, partition, offset: baseOffset, last_offset: endOffset - 1, producer_id: producerId };
  }
}

/** There is no connection to the server, or it ended before the answer came. */
export class Unreachable extends TidelogError {
  constructor(message, { unknownOutcome = false, cause } = {}) {
    super(message, { code: "UNREACHABLE", unknownOutcome, cause });
  }
}

/** No answer came in time: the outcome is unknown unless `unknownOutcome` is false. */
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

/** Options or arguments are wrong; the message names all faults, one per line. */
export class ConfigError extends TidelogError {
  constructor(message) {
    super(message, { code: "INVALID_CONFIG" });
  }
}

/**
 * Records were not acknowledged, and no caller got the error. `failed` is their number, `code` that of the first.
 * `unknownOutcome` is true if any of them may be in the log.
 */
export class DeliveryFailed extends TidelogError {
  constructor(failed, first, unknownOutcome) {
    super(`${failed} records were not acknowledged; the first: ${first.message}`, {
      code: first.code,
      unknownOutcome,
      detail: { failed },
      cause: first,
    });
    this.failed = failed;
  }
}

/** Return the error that a message describes. A code that this version does not know counts as not retriable. */
export function fromInfo(info) {
  const code = info.code in CODES ? info.code : "UNSUPPORTED";
  const detail = {};
  for (const [key, text] of Object.entries(info.detail)) {
    detail[key] = /^-?[0-9]{1,15}$/.test(text) ? Number(text) : text;
  }
  const error = new BrokerError(info.message, { code, unknownOutcome: info.unknownOutcome, detail });
  error.id = info.id;
  return error;
}

/** Throw `ConfigError` with every text whose condition is true, one per line; return if none is. */
export function check(faults) {
  const found = Object.keys(faults).filter((text) => faults[text]);
  if (found.length) throw new ConfigError(found.join("\n"));
}
