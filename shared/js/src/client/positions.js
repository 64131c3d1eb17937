/** Places in a log: `earliest`, `latest`, an offset, a Date, or a Map or object of partition to offset or position. */

import { BrokerError, ConfigError } from "../errors.js";

/** Return `{leaderEpoch, offset}` for an offset (leader epoch -1) or a position. Throws `ConfigError`. */
export function positionOf(at) {
  const { leaderEpoch = -1, offset } = typeof at === "number" ? { offset: at } : at;
  if (!Number.isSafeInteger(offset) || offset < 0) {
    throw new ConfigError(`an offset is an integer from 0 to 2^53 - 1, not ${offset}`);
  }
  return { leaderEpoch, offset };
}

/** Return `where` as a Map of partition to position, if it is a Map or an object; else null. */
export function mapOf(where) {
  if (where instanceof Map) return where;
  if (where === null || typeof where !== "object" || where instanceof Date) return null;
  return new Map(Object.entries(where).map(([partition, at]) => [Number(partition), at]));
}

/** Return the partitions that `where` names; none if it is no Map or object. */
export function namedBy(where) {
  return [...(mapOf(where)?.keys() ?? [])];
}

/** Return a place as the protocol has it: the kind, and the time if it is a Date. Throws `ConfigError`. */
export function kindOf(at) {
  if (at instanceof Date && !Number.isNaN(at.getTime())) return ["timestamp", at.getTime()];
  if (at !== "earliest" && at !== "latest") {
    throw new ConfigError(`a place is earliest, latest, an offset or a Date, not ${at}`);
  }
  return [at, -1];
}

/**
 * Return these partitions, each once, in ascending order. Throws `UNKNOWN_TOPIC` for one that the topic does not
 * have.
 */
export function checkPartitions(topic, partitions) {
  const count = topic.partitions.length;
  const sorted = [...new Set(partitions)].sort((a, b) => a - b);
  for (const partition of sorted) {
    if (Number.isInteger(partition) && partition >= 0 && partition < count) continue;
    throw new BrokerError(`${topic.name} has partitions 0 to ${count - 1}, not ${partition}`, { code: "UNKNOWN_TOPIC" });
  }
  return sorted;
}

/**
 * Call `ask` for every partition at the same time, and resolve with a Map of the answers. Rejects with the first
 * error.
 */
export async function gather(partitions, ask) {
  return new Map(await Promise.all(partitions.map(async (partition) => [partition, await ask(partition)])));
}
