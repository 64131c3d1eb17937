/** `Log`, the cluster as an application sees it: topics and records. Made by `connect`. */

import { now } from "../clock.js";
import { Consuming } from "./consumers.js";
import { BrokerError, TimedOut } from "../errors.js";
import { producerOptions } from "./options.js";
import { checkPartitions, gather } from "./positions.js";
import { Producer } from "./producer.js";
import * as messages from "../wire/messages.js";
import { some, unless } from "../wire/shapes.js";

/** Seconds for which a server that cannot report its digest is asked again. */
const DIGEST_PATIENCE_S = 3;

/** A connected client, from `connect` until `close`; any number of callers may use it at a time. */
export class Log extends Consuming {
  #connection;
  #codecs;
  #running;

  constructor(connection, codecs) {
    super(connection, codecs);
    this.#connection = connection;
    this.#codecs = codecs;
    this.#running = connection.run();
  }

  /**
   * Close the client. Producers first wait until their records are acknowledged or have failed (`DeliveryFailed`);
   * consumers are closed.
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

  /** The gateway of the open link: its `url`, `node` and `cluster`; null while there is no link. */
  get gateway() {
    const { link } = this.#connection;
    if (!link || link.closed) return null;
    return { url: link.url, node: link.peer.node, cluster: link.peer.cluster };
  }

  // --- topics ---

  /**
   * Create a topic, wait until its partitions have leaders, and resolve with its metadata. `config`: topic settings by
   * their names in docs/configuration.md. With `existOk`, if a topic of that name exists, resolve with its metadata and
   * change nothing, also if it has other partitions, replicas or settings. Rejects with `TOPIC_EXISTS` (without
   * `existOk`), `INVALID_TOPIC`, `INVALID_CONFIG`, `INVALID_REPLICATION_FACTOR`.
   */
  async createTopic(name, { partitions = 1, replicationFactor = 1, config = {}, existOk = false } = {}) {
    const request = {
      op: "create_topic",
      name,
      partitions: unless(1, partitions),
      replication_factor: unless(1, replicationFactor),
      config: Object.keys(config).length ? texts(config) : undefined,
    };
    let topicId = null;
    try {
      ({ topicId } = await this.ask(request, messages.topicCreated, { again: existOk }));
    } catch (error) {
      if (!existOk || error.code !== "TOPIC_EXISTS") throw error;
    }
    const isReady = (topic) => topicId === null || (topic.topicId === topicId && topic.partitions.every((p) => p.leader));
    const late = topicId === null ? "exists, but the gateway does not know it yet" : "was created, but not all of its partitions have a leader yet";
    const deadline = now() + this.#connection.requestTimeoutS;
    return this.poll(
      async () => (await this.#topics([name])).find(isReady),
      () => {
        if (now() > deadline) throw new TimedOut(`${name} ${late}`);
      },
    );
  }

  /** Delete a topic and all its records. Rejects with `UNKNOWN_TOPIC`. */
  async deleteTopic(name) {
    await this.ask({ op: "delete_topic", name }, messages.done, { again: false });
  }

  /** Change settings of a topic; those that are not named stay. Rejects with `UNKNOWN_TOPIC`, `INVALID_CONFIG`. */
  async configureTopic(name, config) {
    await this.ask({ op: "alter_topic", name, config: texts(config) });
  }

  /** Set the servers that copy a partition's log without being replicas of it; an empty list removes all. */
  async setLearners(topic, partition, learners) {
    await this.ask({ op: "alter_learners", name: topic, partition, learners: some([...learners]) });
  }

  /** Resolve with the metadata of every topic. */
  async topics() {
    return (await this.status()).topics;
  }

  /**
   * Resolve with the metadata of one topic; `offsets`: also log start and high watermark of each partition, requested
   * from the leaders. Rejects with `UNKNOWN_TOPIC`.
   */
  async describe(topic, { offsets = false } = {}) {
    const found = (await this.#topics([topic], offsets)).find(({ name }) => name === topic);
    if (found) return found;
    throw new BrokerError(`there is no topic ${topic}`, { code: "UNKNOWN_TOPIC", detail: { topic } });
  }

  /**
   * Resolve with the changes of a partition's leader, ISR and replicas that the controllers remember, oldest first,
   * each with its cause.
   */
  async history(topic, partition) {
    const found = await this.describe(topic);
    return (await this.histories(found, [partition])).get(partition);
  }

  /** Resolve with the `history` of each of these partitions: a Map. */
  async histories(topic, partitions) {
    return gather(checkPartitions(topic, partitions), async (partition) => {
      const request = { op: "history", topic_id: topic.topicId, partition };
      return (await this.ask(request, messages.historyAnswer)).entries;
    });
  }

  /** Resolve with cluster, servers and topics as the gateway knows them. */
  async status() {
    return this.ask({ op: "metadata", all_topics: true }, messages.metadataAnswer);
  }

  /** Resolve with the controllers, and which one is active. */
  async quorum() {
    return this.ask({ op: "describe_quorum" }, messages.quorumAnswer);
  }

  /**
   * Resolve with the metrics of a replica server, the active controller, or (no name) the gateway: its page in
   * Prometheus' text format, its version and its clock.
   */
  async metrics(node = "") {
    return this.ask({ op: "describe_metrics", node: unless("", node) }, messages.metricsAnswer, { again: false });
  }

  /** Add a running controller to the group, first as a learner. */
  async addController(node, url) {
    await this.ask({ op: "add_controller", node, url });
  }

  /** Remove a controller from the group. */
  async removeController(node) {
    await this.ask({ op: "remove_controller", node }, messages.done, { again: false });
  }

  /**
   * Inject a fault into a node of a cluster that `tidelog dev` runs: `kill`, `pause`, `cut` or `heal`; "" for none.
   * Resolves with the nodes as they are now. Rejects with `UNSUPPORTED` in every other cluster.
   */
  async play(node = "", act = "") {
    const request = { op: "play", node: unless("", node), act: unless("", act) };
    return (await this.ask(request, messages.playAnswer, { again: false })).nodes;
  }

  /**
   * Begin to record the messages between the services of a cluster that `tidelog dev` runs (`record`), or end that
   * and resolve with the newest 2,000 in order (`stop`).
   */
  async playedMessages(act) {
    return (await this.ask({ op: "play", act }, messages.playAnswer, { again: false })).messages;
  }

  // --- records ---

  /** Open a producer for one topic; close it to know that all was acknowledged. Rejects with `UNKNOWN_TOPIC`. */
  async producer(topic, options = {}) {
    const complete = producerOptions(options);
    const found = await this.describe(topic);
    return new Producer(this.#connection, found, complete, this.#codecs);
  }

  /**
   * Resolve with the bounds of the log that a server has of a partition, and its hash chain at each of up to 64
   * offsets.
   */
  async digest(topicId, partition, node, offsets = []) {
    const request = { op: "digest", node, topic_id: topicId, partition, offsets: some([...offsets]) };
    return this.ask(request, messages.digestAnswer, { patienceS: DIGEST_PATIENCE_S });
  }

  // --- how ---

  async #topics(topics, offsets = false) {
    const request = { op: "metadata", topics, offsets: unless(false, offsets) };
    return (await this.ask(request, messages.metadataAnswer)).topics;
  }
}

/** Return settings as texts, as the wire has them. */
function texts(config) {
  return Object.fromEntries(Object.entries(config).map(([name, value]) => [name, String(value)]));
}
