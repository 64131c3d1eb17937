/** The cluster as an application sees it: topics and records. Made by `connect`. */

import { decodeBatch, split } from "./batch.js";
import { now } from "./clock.js";
import { Consumer } from "./consumer.js";
import { BrokerError, ConfigError, TimedOut } from "./errors.js";
import { Moving } from "./moving.js";
import { consumerOptions, producerOptions } from "./options.js";
import { Producer } from "./producer.js";
import * as words from "./words.js";

const MAX_OFFSET = Number.MAX_SAFE_INTEGER;
/** A server that cannot tell what it holds is asked again for so long. */
const DIGEST_PATIENCE_S = 3;

/** A connected client; may be used by many at a time. */
export class Log extends Moving {
  #connection;
  #codecs;
  #running;

  constructor(connection, codecs) {
    super((request, shape, options) => connection.call(request, shape, options));
    this.#connection = connection;
    this.#codecs = codecs;
    this.#running = connection.run();
  }

  /**
   * End: what producers have accepted is acknowledged first, or reported (`DeliveryFailed`); consumers are closed.
   */
  async close() {
    const failures = [];
    for (const attached of this.#connection.attached) {
      await attached.close().catch((error) => failures.push(error));
    }
    this.#connection.close();
    await this.#running;
    if (failures.length) throw failures[0];
  }

  // --- topics ---

  /**
   * Create a topic, and wait until its partitions have leaders. `config`: topic settings by their names in
   * docs/configuration.md. Rejects with `TOPIC_EXISTS`, `INVALID_TOPIC`, `INVALID_CONFIG`, `INVALID_REPLICATION_FACTOR`.
   */
  async createTopic(name, { partitions = 1, replicationFactor = 1, config = {} } = {}) {
    const request = {
      op: "create_topic",
      name,
      partitions: words.unless(1, partitions),
      replication_factor: words.unless(1, replicationFactor),
      config: Object.keys(config).length ? texts(config) : undefined,
    };
    const { topicId } = await this.ask(request, words.topicCreated, { again: false });
    const deadline = now() + this.#connection.requestTimeoutS;
    return this.poll(
      async () => (await this.#topics([name])).find((topic) => topic.topicId === topicId && topic.partitions.every((p) => p.leader)),
      () => {
        if (now() > deadline) throw new TimedOut(`${name} was created, but not all of its partitions have a leader yet`);
      },
    );
  }

  /** Delete a topic and all its records. Rejects with `UNKNOWN_TOPIC`. */
  async deleteTopic(name) {
    await this.ask({ op: "delete_topic", name }, words.done, { again: false });
  }

  /** Change settings of a topic; those that are not named stay. Rejects with `UNKNOWN_TOPIC`, `INVALID_CONFIG`. */
  async configureTopic(name, config) {
    await this.ask({ op: "alter_topic", name, config: texts(config) });
  }

  /** Which servers copy a partition's log without being replicas of it; none ends that. */
  async setLearners(topic, partition, learners) {
    await this.ask({ op: "alter_learners", name: topic, partition, learners: words.some([...learners]) });
  }

  /** Every topic. */
  async topics() {
    return (await this.status()).topics;
  }

  /**
   * One topic; `offsets`: with log start and high watermark of each partition, asked from the leaders. Rejects with
   * `UNKNOWN_TOPIC`.
   */
  async describe(topic, { offsets = false } = {}) {
    const found = (await this.#topics([topic], offsets)).find(({ name }) => name === topic);
    if (found) return found;
    throw new BrokerError(`there is no topic ${topic}`, { code: "UNKNOWN_TOPIC", detail: { topic } });
  }

  /** Every change of a partition's leader, ISR and replicas that is remembered, oldest first, with its cause. */
  async history(topic, partition) {
    const found = await this.describe(topic);
    return (await this.histories(found, [partition])).get(partition);
  }

  /** `history` of many partitions at a time: a Map. */
  async histories(topic, partitions) {
    return gather(checked(topic, partitions), async (partition) => {
      const request = { op: "history", topic_id: topic.topicId, partition };
      return (await this.ask(request, words.historyAnswer)).entries;
    });
  }

  /** Cluster, servers and topics as the gateway knows them. */
  async status() {
    return this.ask({ op: "metadata", all_topics: true }, words.metadataAnswer);
  }

  /** The controllers, and which is the active one. */
  async quorum() {
    return this.ask({ op: "describe_quorum" }, words.quorumAnswer);
  }

  /** Take a running controller into the group, as a learner first. */
  async addController(node, url) {
    await this.ask({ op: "add_controller", node, url });
  }

  /** Take a controller out of the group. */
  async removeController(node) {
    await this.ask({ op: "remove_controller", node }, words.done, { again: false });
  }

  // --- records ---

  /** A producer for one topic; close it to know that all was acknowledged. Rejects with `UNKNOWN_TOPIC`. */
  async producer(topic, options = {}) {
    const complete = producerOptions(options);
    const found = await this.describe(topic);
    return new Producer(this.#connection, found, complete, this.#codecs);
  }

  /**
   * `for await (const record of log.consume("orders", {start: "earliest"}))`. `start`, `end`: `earliest`, `latest`, an
   * offset, a Date, or a Map (or object) of partition to offset or position; without `end` it waits for more for ever.
   * `end: "latest"` is what is committed when the consumer is opened.
   */
  consume(topic, { start = "latest", end = null, partitions = null, ...options } = {}) {
    const complete = consumerOptions(options);
    const plan = async () => {
      const found = await this.describe(topic);
      const wanted = partitions === null ? found.partitions.map(({ partition }) => partition) : new Set(partitions);
      const chosen = checked(found, wanted);
      const starts = await this.#positions(found, start, chosen);
      const ends = end === null ? new Map() : await this.#positions(found, end, chosen);
      return { topicId: found.topicId, starts, ends: new Map([...ends].map(([p, { offset }]) => [p, offset])) };
    };
    return new Consumer(this.#connection, topic, complete, this.#codecs, plan);
  }

  /**
   * The offset at a place of one partition: `earliest`, `latest`, or of the first record at or after a Date (`latest`
   * when there is none).
   */
  async listOffset(topic, partition, at = "latest") {
    const found = await this.describe(topic);
    return (await this.listOffsets(found, at, [partition])).get(partition);
  }

  /** `listOffset` of many partitions at a time: a Map. */
  async listOffsets(topic, at, partitions) {
    const [kind, timestampMs] = place(at);
    return gather(checked(topic, partitions), async (partition) => {
      const request = { op: "list_offset", topic_id: topic.topicId, partition, at: kind };
      if (kind === "timestamp") request.timestamp_ms = timestampMs;
      const answer = await this.ask(request, words.offsetAnswer);
      const early = answer.timestampMs >= 0 && answer.timestampMs < timestampMs;
      return early ? this.#withinBatch(topic.topicId, partition, answer, timestampMs) : answer;
    });
  }

  /** Bounds of the log of one replica, and its hash chain at each of up to 64 offsets. */
  async digest(topicId, partition, node, offsets = []) {
    const request = { op: "digest", node, topic_id: topicId, partition, offsets: words.some([...offsets]) };
    return this.ask(request, words.digestAnswer, { patienceS: DIGEST_PATIENCE_S });
  }

  // --- how ---

  async #topics(topics, offsets = false) {
    const request = { op: "metadata", topics, offsets: words.unless(false, offsets) };
    return (await this.ask(request, words.metadataAnswer)).topics;
  }

  /** The leader knows times by the batch: find the record in it. */
  async #withinBatch(topicId, partition, answer, timestampMs) {
    const request = { op: "read", topic_id: topicId, partition, offset: answer.offset, max_bytes: 1 };
    const { payload } = await this.ask(request, words.readAnswer);
    for (const [, batch] of split(payload)) {
      for (const record of decodeBatch(batch, { codecs: this.#codecs })) {
        if (record.offset >= answer.offset && record.timestampMs >= timestampMs) {
          return { offset: record.offset, leaderEpoch: record.leaderEpoch, timestampMs: record.timestampMs };
        }
      }
    }
    return answer;
  }

  async #positions(topic, where, partitions) {
    if (typeof where === "number") return new Map(partitions.map((partition) => [partition, position(where)]));
    if (typeof where === "object" && !(where instanceof Date)) {
      const given = where instanceof Map ? where : new Map(Object.entries(where).map(([key, at]) => [Number(key), at]));
      const missing = partitions.filter((partition) => !given.has(partition));
      if (missing.length) throw new ConfigError(`no position is given for partitions ${missing} of ${topic.name}`);
      return new Map(partitions.map((partition) => [partition, position(given.get(partition))]));
    }
    const found = await this.listOffsets(topic, where, partitions);
    return new Map([...found].map(([partition, { offset }]) => [partition, position(offset)]));
  }
}

function position(at) {
  const { leaderEpoch = -1, offset } = typeof at === "number" ? { offset: at } : at;
  if (!Number.isInteger(offset) || offset < 0 || offset > MAX_OFFSET) {
    throw new ConfigError(`an offset is an integer from 0 to 2^53 - 1: ${offset}`);
  }
  return { leaderEpoch, offset };
}

/** The partitions, in order. Throws `UNKNOWN_TOPIC` for one that there is not. */
function checked(topic, partitions) {
  const count = topic.partitions.length;
  const sorted = [...partitions].sort((a, b) => a - b);
  for (const partition of sorted) {
    if (Number.isInteger(partition) && partition >= 0 && partition < count) continue;
    throw new BrokerError(`${topic.name} has partitions 0 to ${count - 1}, not ${partition}`, { code: "UNKNOWN_TOPIC" });
  }
  return sorted;
}

/** Settings as the wire has them. */
function texts(config) {
  return Object.fromEntries(Object.entries(config).map(([name, value]) => [name, String(value)]));
}

function place(at) {
  if (at instanceof Date && !Number.isNaN(at.getTime())) return ["timestamp", at.getTime()];
  if (at !== "earliest" && at !== "latest") {
    throw new ConfigError(`a place is earliest, latest, an offset or a Date, not ${at}`);
  }
  return [at, -1];
}

/** Ask for every partition at once; the first error ends all. */
async function gather(partitions, ask) {
  return new Map(await Promise.all(partitions.map(async (partition) => [partition, await ask(partition)])));
}
