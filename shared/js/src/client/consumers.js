/** Reading: consumers of every kind, and the offsets of places. `Log` has all of these methods. */

import { BackwardConsumer } from "./backward-consumer.js";
import { decodeBatch, split } from "../wire/batch.js";
import { Consumer } from "./consumer.js";
import { ConfigError, CorruptBatch } from "../errors.js";
import { GroupConsumer } from "./group-consumer.js";
import { consumerOptions, creditOf, groupOptions } from "./options.js";
import { checkPartitions, gather, kindOf, mapOf, positionOf } from "./positions.js";
import { Settling } from "./admin/transactions.js";
import * as messages from "../wire/messages.js";

export class Consuming extends Settling {
  #connection;
  #codecs;

  constructor(connection, codecs) {
    super((request, shape, options) => connection.call(request, shape, options));
    this.#connection = connection;
    this.#codecs = codecs;
  }

  /**
   * Return an asynchronous iterable over records: `for await (const record of log.consume("orders", {start:
   * "earliest"}))`. `start`, `end`: `earliest`, `latest`, an offset, a Date, or a Map or object of partition to
   * offset or position. The iteration stops at `end` (exclusive; `latest` is the end of what is committed when the
   * consumer is opened); without `end` it waits for more records for ever. Records come in order per partition. The
   * iteration throws `UNKNOWN_TOPIC`, `OFFSET_OUT_OF_RANGE`, `LOG_TRUNCATED`, and `UnreadableBatch` unless
   * `onUnreadable` is `skip`.
   *
   * `reverse`: the newest record first, from below `start` down to `end` (or to the log's start). These are the
   * records from `end` to `start` in reverse order.
   *
   * `group`: read as a member of this consumer group, which shares the partitions among its members and stores their
   * positions. `start` counts only in partitions without a committed position. `topic` may then be several topics.
   */
  consume(topic, { group = null, ...options } = {}) {
    return group === null ? this.#consumer(topic, options) : this.#member(topic, group, options);
  }

  #consumer(topic, { start = "latest", end = null, partitions = null, reverse = false, ...options }) {
    const complete = consumerOptions(options);
    const plan = async () => {
      const found = await this.describe(topic);
      const chosen = checkPartitions(found, partitions ?? found.partitions.keys());
      const locate = (where, wanted) => this.#positions(found, where, wanted);
      const starts = await locate(start, chosen);
      const ends = end === null ? [] : await locate(end, chosen);
      return { topicId: found.topicId, starts, ends: new Map([...ends].map(([p, { offset }]) => [p, offset])), locate };
    };
    const Kind = reverse ? BackwardConsumer : Consumer;
    return new Kind(this.#connection, topic, complete, this.#codecs, plan);
  }

  #member(topic, name, given) {
    const [options, reading] = groupOptions(name, given);
    const locate = async ({ topicId, topic: named, partition }, where) => {
      const known = { topicId, name: named, partitions: { length: partition + 1 } }; // the group says that it is there
      return (await this.#positions(known, where, [partition])).get(partition);
    };
    const open = ({ topicId, topic: named, partition }, position, count) => {
      const plan = async () => ({ topicId, starts: new Map([[partition, position]]), ends: new Map(), locate: null });
      const share = { ...reading, partitionBytes: creditOf(reading, count) };
      return new Consumer(this.#connection, named, share, this.#codecs, plan);
    };
    const topics = typeof topic === "string" ? [topic] : [...topic];
    return new GroupConsumer(this.#connection, topics, options, { locate, open });
  }

  /**
   * Resolve with the offset at a place of one partition: `earliest`, `latest`, or of the first record at or after a
   * Date (`latest` if there is none).
   */
  async listOffset(topic, partition, at = "latest") {
    const found = await this.describe(topic);
    return (await this.listOffsets(found, at, [partition])).get(partition);
  }

  /** Resolve with the `listOffset` of each of these partitions: a Map. */
  async listOffsets(topic, at, partitions) {
    const [kind, timestampMs] = kindOf(at);
    return gather(checkPartitions(topic, partitions), async (partition) => {
      const request = { op: "list_offset", topic_id: topic.topicId, partition, at: kind };
      if (kind === "timestamp") request.timestamp_ms = timestampMs;
      const answer = await this.ask(request, messages.offsetAnswer);
      const early = answer.timestampMs >= 0 && answer.timestampMs < timestampMs;
      return early ? this.#withinBatch(topic.topicId, partition, answer, timestampMs) : answer;
    });
  }

  /**
   * Resolve with the first record at or after a time. A gateway of an earlier release answers with the first offset
   * of a batch, as leaders do; the record is found by reading that batch. If the batch cannot be decoded, its first
   * offset is returned.
   */
  async #withinBatch(topicId, partition, answer, timestampMs) {
    const request = { op: "read", topic_id: topicId, partition, offset: answer.offset, max_bytes: 1 };
    const { payload } = await this.ask(request, messages.readAnswer);
    try {
      for (const [, batch] of split(payload)) {
        for (const record of decodeBatch(batch, { codecs: this.#codecs })) {
          if (record.offset >= answer.offset && record.timestampMs >= timestampMs) {
            return { offset: record.offset, leaderEpoch: record.leaderEpoch, timestampMs: record.timestampMs };
          }
        }
      }
    } catch (error) {
      if (!(error instanceof CorruptBatch)) throw error;
    }
    return answer;
  }

  async #positions(topic, where, partitions) {
    if (typeof where === "number") return new Map(partitions.map((partition) => [partition, positionOf(where)]));
    const given = mapOf(where);
    if (given) {
      const missing = partitions.filter((partition) => !given.has(partition));
      if (missing.length) throw new ConfigError(`no position is given for partitions ${missing} of ${topic.name}`);
      return new Map(partitions.map((partition) => [partition, positionOf(given.get(partition))]));
    }
    const found = await this.listOffsets(topic, where, partitions);
    return new Map([...found].map(([partition, { offset }]) => [partition, positionOf(offset)]));
  }
}
