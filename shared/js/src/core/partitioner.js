/**
 * Which partition a record goes to: murmur2 of the key, as Kafka's clients do it, so that keys land where users of Kafka
 * expect them; without a key, one partition for a whole batch, then the next (KIP-480, "sticky"). Partitions that take no
 * records at present, since they are read-only or paused, are passed over while there are others.
 */

const M = 0x5bd1e995;
const SEED = 0x9747b28c;

/** 32-bit murmur2 with the seed of Kafka's clients, as an unsigned number. */
export function murmur2(data) {
  const { length } = data;
  const whole = length & ~3;
  let h = SEED ^ length;
  for (let at = 0; at < whole; at += 4) {
    let k = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24);
    k = Math.imul(k, M);
    k = Math.imul(k ^ (k >>> 24), M);
    h = Math.imul(h, M) ^ k;
  }
  if (length > whole) {
    for (let at = length - 1; at >= whole; at--) h ^= data[at] << (8 * (at - whole));
    h = Math.imul(h, M);
  }
  h = Math.imul(h ^ (h >>> 13), M);
  return (h ^ (h >>> 15)) >>> 0;
}

/** The partition of `key` in a topic of so many: the hash without its sign bit, modulo their number. */
export function partitionOf(key, partitions) {
  return (murmur2(key) & 0x7fffffff) % partitions;
}

/** Chooses partitions for one producer. `start`: where records without a key begin. */
export class Partitioner {
  constructor(partitions, start = 0) {
    this.partitions = partitions;
    /** Where records without a key go now. */
    this.sticky = start % partitions;
    /** Partitions that take no records at present. */
    this.closed = new Set();
  }

  ofKey(key) {
    return partitionOf(key, this.partitions);
  }

  /** A batch without keys is full: the next one goes to the next partition that takes records. */
  moveOn() {
    const next = (this.sticky + 1) % this.partitions;
    let partition = next;
    do {
      if (!this.closed.has(partition)) break;
      partition = (partition + 1) % this.partitions;
    } while (partition !== next);
    this.sticky = partition;
  }

  /** These, and no others, take no records at present. A key stays with its partition all the same. */
  close(partitions) {
    this.closed = new Set(partitions);
    if (this.closed.has(this.sticky)) this.moveOn();
  }
}
