/**
 * A cluster in memory, and the class `WebSocket` whose objects talk to its gateways: what a client sees of both, without
 * a socket. Answers come in later turns, as they would.
 */

import { appendFileSync } from "node:fs";
import { checkBatch, decodeBatch, encodeBatch, readHeader, split } from "../../shared/js/src/wire/batch.js";
import { decode, decodePrefix, encodeMessage } from "../../shared/js/src/wire/cbor.js";
import { toHex } from "./vectors.js";

export class Refusal extends Error {
  constructor(code, message = "the test says so", more = {}) {
    super(message);
    this.info = { code, message, ...more };
  }
}

class Log {
  batches = [];
  start = 0;
  end = 0;
  #sequences = new Map();

  append(data, epoch) {
    const { producerId, baseSequence, recordCount, crc32c } = readHeader(data);
    if (producerId) {
      const known = this.#sequences.get(producerId) ?? { next: 0, at: new Map() };
      if (known.at.has(baseSequence)) {
        const { offset, crc } = known.at.get(baseSequence);
        if (crc !== crc32c) throw new Refusal("SEQUENCE_CONFLICT", `${baseSequence} is another batch`);
        return { offset, duplicate: true };
      }
      if (baseSequence !== known.next) throw new Refusal("OUT_OF_ORDER_SEQUENCE", `${baseSequence} is not ${known.next}`);
      known.at.set(baseSequence, { offset: this.end, crc: crc32c });
      known.next += recordCount;
      this.#sequences.set(producerId, known);
    }
    const offset = this.end;
    const stamped = data.slice();
    new DataView(stamped.buffer).setBigInt64(0, BigInt(offset));
    new DataView(stamped.buffer).setUint32(8, epoch);
    this.batches.push(stamped);
    this.end += recordCount;
    return { offset };
  }

  /** Where the batch begins that has a record of this time or later: leaders know no better. */
  since(timestampMs) {
    for (const batch of this.batches) {
      const { baseOffset, firstTimestamp, maxTimestamp } = checkBatch(batch);
      if (maxTimestamp >= timestampMs) return { offset: baseOffset, leader_epoch: 4, timestamp_ms: firstTimestamp };
    }
    return { offset: this.end };
  }

  /** The batches that hold `offset` and what follows. */
  from(offset) {
    if (offset < this.start) throw new Refusal("OFFSET_OUT_OF_RANGE", "gone", { detail: { log_start: String(this.start) } });
    return this.batches.filter((batch) => readHeader(batch).endOffset > offset);
  }

  records() {
    return this.batches.flatMap((batch) => decodeBatch(batch));
  }
}

export class FakeCluster {
  topics = new Map();
  /** Gateways by URL that cannot be reached. */
  dead = new Set();
  /** URLs of the gateways that were connected to, in order. */
  connected = [];
  /** Errors for the next batches; null lets one pass. */
  refusals = [];
  /** So many acks are never sent, though the batch is written. */
  loseAcks = 0;
  /** Requests by op that are not answered. */
  deaf = new Set();
  /** Errors for the next requests, by op. */
  failures = new Map();
  /** Everything that clients sent: decoded headers. */
  seen = [];
  /** What gateways say of each other. */
  gateways = [];
  /** What gateways say of themselves. */
  version = 1;
  announced = { capabilities: ["strict", "conditional_append"], limits: {} };
  subprotocol = "tidelog.v1";
  epoch = 4;
  /** What every member of the one group is assigned, in which generation, and how far the group has come. */
  assignment = [];
  generation = 1;
  positions = [];
  /** The transactions of all applications, and whether the end of one finds it committed. */
  transactions = [];
  committed = false;
  #sockets = new Set();
  #producerIds = 100;
  /** Of tickets. A ticket names its key; this one and the one before are good. */
  key = 1;
  #waiting = [];

  constructor() {
    const cluster = this;
    /** Its objects behave as the platform's. */
    this.WebSocket = class extends FakeSocket {
      constructor(url, protocol) {
        super(cluster, url, protocol);
      }
    };
  }

  /** Producer ids that clients may write under, as they have presented tickets. */
  get held() {
    return [...this.#sockets].flatMap((socket) => [...socket.held]);
  }

  addTopic(name, partitions = 1, config = {}) {
    const topicId = `id-${name}-${this.topics.size}`;
    this.topics.set(name, { topicId, name, config, logs: Array.from({ length: partitions }, () => new Log()) });
    return this.topics.get(name);
  }

  log(name, partition = 0) {
    return this.topics.get(name).logs[partition];
  }

  /** Put records in, as if another client had. */
  fill(name, values, { partition = 0, times = [] } = {}) {
    const encoder = new TextEncoder();
    const records = values.map((value, i) => {
      return { value: encoder.encode(value), key: null, timestampMs: times[i] ?? 1000, headers: [] };
    });
    this.log(name, partition).append(encodeBatch(records), this.epoch);
    this.#push();
  }

  /** Every client loses its gateway; no ack is lost on the next. */
  cut() {
    this.loseAcks = 0;
    for (const socket of [...this.#sockets]) socket.lose();
  }

  /** Something else than an answer, to every client. */
  say(data) {
    for (const socket of this.#sockets) socket.hear(data);
  }

  /** Until clients have sent `count` messages of this kind. */
  async heard(op, count = 1) {
    while (this.seen.filter((header) => header.op === op).length < count) {
      await new Promise((resolve) => this.#waiting.push(resolve));
    }
    return this.seen.filter((header) => header.op === op);
  }

  onOpen(socket) {
    this.#sockets.add(socket);
    this.connected.push(socket.url);
  }

  onClose(socket) {
    this.#sockets.delete(socket);
  }

  /** Return the part of a credit that is kept: no more than is announced. */
  #kept(credit) {
    return Math.min(credit, this.announced.limits?.credit_bytes ?? Infinity);
  }

  onMessage(socket, data) {
    if (process.env.TIDELOG_SENT) appendFileSync(process.env.TIDELOG_SENT, `${toHex(data)}\n`);
    const [header, end] = decodePrefix(data, 1000);
    const payload = end < data.length ? decode(data.subarray(end)) : new Uint8Array();
    this.seen.push(header);
    for (const resolve of this.#waiting.splice(0)) resolve();
    if (header.op === "produce") return this.#produce(socket, header, payload);
    if (header.op === "credit") {
      const sub = socket.subs.get(header.sub);
      if (sub) sub.credit = this.#kept(sub.credit + header.bytes);
      return this.#push();
    }
    if (this.deaf.has(header.op)) return undefined;
    try {
      const failures = this.failures.get(header.op) ?? [];
      if (failures.length) throw failures.shift();
      const [answer, bytes] = this.#answer(socket, header);
      socket.tell({ re: header.id, ...answer }, bytes);
    } catch (refusal) {
      if (!(refusal instanceof Refusal)) throw refusal;
      socket.tell({ re: header.id, error: refusal.info });
    }
    return this.#push();
  }

  #answer(socket, header) {
    const log = () => [...this.topics.values()].find((topic) => topic.topicId === header.topic_id).logs[header.partition];
    switch (header.op) {
      case "hello":
        return [{ version: this.version, cluster: "fake", node: "g1", role: "gateway", max_message_bytes: 1 << 24, max_in_flight: 1000, ...this.announced }];
      case "metadata":
        return [{ cluster: "fake", index: 1, servers: [], topics: this.#topics(header), gateways: this.gateways }];
      case "create_topic":
        if (this.topics.has(header.name)) throw new Refusal("TOPIC_EXISTS");
        return [{ topic_id: this.addTopic(header.name, header.partitions).topicId }];
      case "delete_topic":
        if (!this.topics.delete(header.name)) throw new Refusal("UNKNOWN_TOPIC");
        return [{}];
      case "init_producer":
        return [{ producer_id: ++this.#producerIds, ticket: `${this.key} ${this.#producerIds}` }];
      case "use_producer": {
        const [key, of] = header.ticket.split(" ").map(Number);
        if (key < this.key - 1 || of !== header.producer_id || header.producer_epoch) throw new Refusal("INVALID_TICKET");
        socket.held.add(of);
        return [{ ticket: `${this.key} ${of}` }];
      }
      case "release_producer":
        if (!socket.held.delete(header.producer_id)) throw new Refusal("MALFORMED");
        return [{}];
      case "list_offset":
        return [header.at === "timestamp" ? log().since(header.timestamp_ms) : { offset: header.at === "earliest" ? log().start : log().end }];
      case "subscribe":
        socket.subs.set(header.sub, { log: log(), offset: header.offset, credit: this.#kept(header.credit) });
        return [{}];
      case "unsubscribe":
        socket.subs.delete(header.sub);
        return [{}];
      case "read":
        return [{ leader_epoch: this.epoch }, log().from(header.offset)];
      case "history":
        return [{ entries: [] }];
      case "join_group":
        return [{ generation: this.generation, heartbeat_ms: 10, assignment: this.assignment }];
      case "group_heartbeat":
        return [{ generation: this.generation, assignment: this.assignment }];
      case "commit_offsets":
        if (header.member && header.generation !== this.generation) throw new Refusal("FENCED_GENERATION");
        this.positions.push(...header.positions);
        return [{}];
      case "fetch_offsets":
        return [{ positions: this.positions }];
      case "describe_group":
        return [{ group: header.group, state: "empty", generation: 1, assignor: "sticky", coordinator: "r1" }];
      case "list_transactions":
        return [{ transactions: this.transactions.filter(({ app }) => !header.app || app === header.app) }];
      case "end_transaction":
        return [{ committed: this.committed }];
      case "describe_quorum":
        return [{ active: "c1", term: 1, commit_index: 1, controllers: [] }];
      case "digest":
        return [{ log_start: 0, log_end: 0, high_watermark: 0 }];
      default:
        return [{}];
    }
  }

  #topics({ topics = [], all_topics = false }) {
    const wanted = [...this.topics.values()].filter(({ name }) => all_topics || topics.includes(name));
    return wanted.map(({ topicId, name, config, logs }) => ({
      topic_id: topicId,
      name,
      config,
      partitions: logs.map((_, partition) => ({
        ...{ partition, replicas: ["r1"], isr: ["r1"], leader: "r1", leader_epoch: this.epoch, epoch: 1 },
      })),
    }));
  }

  #produce(socket, { parts }, payload) {
    const acks = [];
    [...split(payload)].forEach(([, data], i) => {
      const { id, topic_id: topicId, partition } = parts[i];
      const { logs } = [...this.topics.values()].find((topic) => topic.topicId === topicId);
      try {
        const refusal = this.refusals.shift();
        if (refusal) throw refusal;
        const { producerId } = readHeader(data);
        if (producerId && !socket.held.has(Number(producerId))) throw new Refusal("INVALID_TICKET");
        const { offset, duplicate } = logs[partition].append(data, this.epoch);
        acks.push({ id, offset, leader_epoch: this.epoch, durability: "all/os", duplicate });
      } catch (refusal) {
        if (!(refusal instanceof Refusal)) throw refusal;
        acks.push({ id, error: refusal.info });
      }
    });
    const lost = Math.min(this.loseAcks, acks.length);
    this.loseAcks -= lost;
    if (acks.length > lost) socket.tell({ op: "produced", acks: acks.slice(lost) });
    this.#push();
  }

  /** What subscriptions have credit for. */
  #push() {
    for (const socket of this.#sockets) {
      for (const [sub, state] of socket.subs) {
        if (state.offset < state.log.start) {
          const detail = { log_start: String(state.log.start) };
          socket.tell({ op: "delivery", sub, error: { code: "OFFSET_OUT_OF_RANGE", message: "gone", detail } });
          socket.subs.delete(sub);
          continue;
        }
        for (const batch of state.log.batches) {
          const { endOffset } = readHeader(batch);
          if (endOffset <= state.offset || state.credit <= 0) continue;
          state.credit -= batch.length;
          state.offset = endOffset;
          socket.tell({ op: "delivery", sub, high_watermark: state.log.end }, [batch]);
        }
      }
    }
  }
}

class FakeSocket {
  protocol = "";
  subs = new Map();
  /** Producer ids whose tickets were presented. */
  held = new Set();
  onopen = null;
  onmessage = null;
  onclose = null;
  onerror = null;
  #cluster;
  #open = false;

  constructor(cluster, url, protocol) {
    if (!url.startsWith("ws://")) throw new SyntaxError("no URL");
    this.url = url;
    this.#cluster = cluster;
    setImmediate(() => {
      if (cluster.dead.has(url)) return this.lose();
      this.#open = true;
      if (cluster.subprotocol === protocol) this.protocol = protocol;
      cluster.onOpen(this);
      return this.onopen?.();
    });
  }

  send(data) {
    if (this.#open) this.#cluster.onMessage(this, data.slice());
  }

  close() {
    this.#open = false;
    this.#cluster.onClose(this);
  }

  tell(header, payload) {
    this.hear(encodeMessage(header, payload).slice().buffer);
  }

  hear(data) {
    setImmediate(() => this.#open && this.onmessage?.({ data }));
  }

  lose() {
    this.close();
    setImmediate(() => this.onclose?.({ code: 1006, reason: "" }));
  }
}
