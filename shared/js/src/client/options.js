/** Settings of producers and consumers: names, defaults and meanings are those of the Python client. */

import { CODECS } from "../wire/batch.js";
import { check } from "../errors.js";

export const ACKS = { none: 0, leader: 1, all: 2 };
/** Batches of an idempotent producer in flight on one partition, if the gateway does not announce a window. */
const PRODUCER_WINDOW = 5;
const CONSISTENCIES = ["eventual", "bounded", "linearizable"];

/** The defaults; each is explained in `tidelog.d.ts`. Times in seconds, sizes in bytes. */
const PRODUCER = {
  acks: "all",
  compression: "none",
  lingerS: 0.005,
  batchBytes: 128 << 10,
  deliveryTimeoutS: 30,
  requestTimeoutS: 10,
  maxInFlight: 5,
  bufferBytes: 32 << 20,
  idempotent: null,
  backoffS: 0.1,
};
const CONSUMER = {
  bufferBytes: 32 << 20,
  partitionBytes: 4 << 20,
  backoffS: 0.1,
  readFrom: "leader",
  consistency: "eventual",
  maxStalenessS: null,
  onUnreadable: "raise",
};

const GROUP = {
  start: "earliest",
  instance: "",
  assignor: "",
  sessionTimeoutS: 45,
  rebalanceTimeoutS: 60,
  autoCommitS: 5,
  backoffS: 0.1,
  onAssigned: () => {},
  onRevoked: () => {},
  onLost: () => {},
};

/**
 * Return how many batches of one partition may be in flight: for an idempotent producer at most the gateway's
 * `window`.
 */
export function mostInFlight({ idempotent, maxInFlight }, window) {
  return idempotent ? Math.min(maxInFlight, window || PRODUCER_WINDOW) : maxInFlight;
}

/**
 * Return the options of a producer with all defaults. Throws `ConfigError` for unknown names and impossible values.
 */
export function producerOptions(given = {}) {
  const options = { ...PRODUCER, ...given };
  check({
    ...unknown(given, PRODUCER),
    [`acks must be one of ${Object.keys(ACKS).join(", ")}, not ${options.acks}`]: !(options.acks in ACKS),
    [`compression must be one of ${CODECS.join(", ")}`]: !CODECS.includes(options.compression),
    "lingerS must not be negative": !(options.lingerS >= 0),
    "batchBytes must be at least 1": !(options.batchBytes >= 1),
    "bufferBytes must be at least batchBytes": !(options.bufferBytes >= options.batchBytes),
    "requestTimeoutS must be above 0": !(options.requestTimeoutS > 0),
    "deliveryTimeoutS must be above lingerS": !(options.deliveryTimeoutS > options.lingerS),
    "maxInFlight must be at least 1": !(options.maxInFlight >= 1),
    "backoffS must be above 0": !(options.backoffS > 0),
    "acks none cannot be idempotent": options.acks === "none" && options.idempotent === true,
  });
  options.idempotent ??= options.acks !== "none";
  return options;
}

/**
 * Return the options of a consumer with all defaults. Throws `ConfigError` for unknown names and impossible values.
 */
export function consumerOptions(given = {}) {
  const options = { ...CONSUMER, ...given };
  const { consistency, maxStalenessS, readFrom, onUnreadable } = options;
  check({
    ...unknown(given, CONSUMER),
    "partitionBytes must be at least 1": !(options.partitionBytes >= 1),
    "bufferBytes must be at least partitionBytes": !(options.bufferBytes >= options.partitionBytes),
    "backoffS must be above 0": !(options.backoffS > 0),
    [`readFrom must be leader or any, not ${readFrom}`]: !["leader", "any"].includes(readFrom),
    [`onUnreadable must be raise or skip, not ${onUnreadable}`]: !["raise", "skip"].includes(onUnreadable),
    [`consistency must be one of ${CONSISTENCIES.join(", ")}, not ${consistency}`]: !CONSISTENCIES.includes(consistency),
    "consistency bounded needs maxStalenessS": consistency === "bounded" && maxStalenessS === null,
    [`maxStalenessS is the bound of consistency bounded, not of ${consistency}`]:
      consistency !== "bounded" && maxStalenessS !== null,
    "maxStalenessS must be 0 or more, below a day": maxStalenessS !== null && !(maxStalenessS >= 0 && maxStalenessS < 86400),
    "linearizable reads come from the leader: readFrom any cannot serve them":
      readFrom === "any" && consistency === "linearizable",
  });
  return options;
}

/**
 * Return the options of a member of a group, and those of its consumers, with all defaults: `[group, consumer]`.
 * Throws `ConfigError` for unknown names and impossible values.
 */
export function groupOptions(name, given) {
  const ours = Object.entries(given).filter(([option]) => option in GROUP);
  const rest = Object.entries(given).filter(([option]) => !(option in GROUP));
  const group = { ...GROUP, ...Object.fromEntries(ours), group: name };
  check({
    "group must be a text": typeof name !== "string" || !name,
    "sessionTimeoutS must be above 0": !(group.sessionTimeoutS > 0),
    "rebalanceTimeoutS must be above 0": !(group.rebalanceTimeoutS > 0),
    "autoCommitS must be above 0, or null": group.autoCommitS !== null && !(group.autoCommitS > 0),
  });
  return [group, consumerOptions(Object.fromEntries(rest))];
}

/** Return the bytes that one partition may have in flight or waiting, if the consumer reads this many. */
export function creditOf(options, partitions) {
  return Math.max(64 << 10, Math.min(options.partitionBytes, Math.floor(options.bufferBytes / Math.max(partitions, 1))));
}

/** Return faults, as texts, for the names in `given` that `known` does not have. */
export function unknown(given, known) {
  const strange = Object.keys(given).filter((name) => !(name in known));
  return Object.fromEntries(strange.map((name) => [`there is no option ${name}`, true]));
}
