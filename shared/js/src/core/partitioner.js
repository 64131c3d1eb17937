/**
 * Choice of the partition of a record. A record with a key goes to the partition of its murmur2 hash, as with Kafka's
 * clients. Records without a key fill the batch of one partition, then that of the next (KIP-480, "sticky");
 * partitions that are read-only or paused are passed over while there are others.
 */

const M = 0x5bd1e995;
const SEED = 0x9747b28c;

/** Return the 32-bit murmur2 hash with the seed of Kafka's clients, unsigned. */
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

/** Return the partition of `key`: the hash without its sign bit, modulo the number of partitions. */
export function partitionOf(key, partitions) {
  return (murmur2(key) & 0x7fffffff) % partitions;
}

/** The choice of partitions for the records of one producer. `start`: first partition for records without a key. */
export class Partitioner {
  constructor(partitions, start = 0) {
    this.partitions = partitions;
    /** Partition that records without a key go to now. */
    this.sticky = start % partitions;
    /** Partitions that take no records at present. */
    this.closed = new Set();
  }

  ofKey(key) {
    return partitionOf(key, this.partitions);
  }

  /** Let `sticky` be the next partition that takes records, because a batch of records without a key is full. */
  moveOn() {
    const next = (this.sticky + 1) % this.partitions;
    let partition = next;
    do {
      if (!this.closed.has(partition)) break;
      partition = (partition + 1) % this.partitions;
    } while (partition !== next);
    this.sticky = partition;
  }

  /**
   * Replace the set of partitions that take no records at present. A record with a key still goes to its partition.
   */
  close(partitions) {
    this.closed = new Set(partitions);
    if (this.closed.has(this.sticky)) this.moveOn();
  }
}
