/** What an application sees: records acknowledged once and in order, over lost gateways; errors that say where. */

import assert from "node:assert/strict";
import test from "node:test";
import { readHeader } from "../../shared/js/src/wire/batch.js";
import * as tidelog from "../../shared/js/tidelog.js";
import { FakeCluster, Refusal } from "./fake-gateway.js";

const URLS = ["ws://g1", "ws://g2"];
const text = (record) => new TextDecoder().decode(record.value);

/** A test with a cluster, a topic "t" of two partitions, and a client, which is closed at its end. */
function clientTest(name, body, options = {}) {
  test(name, async () => {
    const cluster = new FakeCluster();
    cluster.addTopic("t", 2);
    const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket, ...options });
    try {
      await body(log, cluster);
    } finally {
      await log.close().catch(() => null); // what a test leaves unacknowledged on purpose is reported to nobody
    }
  });
}

async function collect(consumer, count = Infinity) {
  const records = [];
  for await (const record of consumer) {
    records.push(record);
    if (records.length === count) break;
  }
  return records;
}

// --- producers ---

clientTest("a sent record is acknowledged with its place", async (log, cluster) => {
  const producer = await log.producer("t");
  const ack = await producer.send("hello", { key: "k", headers: { trace: new Uint8Array([1]) }, partition: 1, timestampMs: 5 });
  assert.deepEqual(ack, { partition: 1, offset: 0, leaderEpoch: 4, durability: "all/os", timestampMs: 5 });
  const [record] = cluster.log("t", 1).records();
  assert.deepEqual([text(record), record.key, record.headers], ["hello", new Uint8Array([107]), [["trace", new Uint8Array([1])]]]);
});

clientTest("what is submitted in one turn leaves in one batch", async (log, cluster) => {
  const producer = await log.producer("t");
  await Promise.all(["a", "b", "c"].map((value) => producer.send(value, { partition: 0 })));
  assert.equal(cluster.log("t").batches.length, 1);
});

clientTest("without a key a partition that is read-only or paused is passed over", async (log, cluster) => {
  const producer = await log.producer("t", { acks: "leader", idempotent: false });
  for (const code of ["TOPIC_READ_ONLY", "TOPIC_PAUSED"]) {
    cluster.refusals.push(new Refusal(code));
    const refused = await producer.submit("v");
    await assert.rejects(refused.wait(), { code });
    for (let i = 0; i < 4; i++) {
      const { partition } = await producer.send("v");
      if (code === "TOPIC_READ_ONLY") assert.notEqual(partition, refused.partition);
    }
  }
  const both = new Set();
  for (let i = 0; i < 4; i++) both.add((await producer.send("v")).partition);
  assert.equal(both.size, 2, "where all refuse they have their turns, one after the other");
});

clientTest("a request whose time ends says why it was refused before", async (log, cluster) => {
  cluster.failures.set("list_offset", [new Refusal("OFFSET_NOT_AVAILABLE")]);
  const asked = log.listOffset("t", 0);
  await cluster.heard("list_offset");
  cluster.deaf.add("list_offset"); // the next try is not answered
  await assert.rejects(asked, { code: "OFFSET_NOT_AVAILABLE" });
}, { requestTimeoutS: 1 });

clientTest("a producer presents its ticket on every connection, and asks for a new id when it is too old", async (log, cluster) => {
  const producer = await log.producer("t");
  await producer.send("1", { partition: 0 });
  for (const rotations of [1, 1, 2]) {
    cluster.key += rotations;
    cluster.cut();
    await log.topics(); // on the next connection
    await producer.send(`${rotations}`, { partition: 0 });
  }
  await producer.close();
  const records = cluster.log("t").records().map(text);
  assert.deepEqual(records, ["1", "1", "1", "2"]);
  const ids = new Set(cluster.log("t").batches.map((batch) => readHeader(batch).producerId));
  assert.equal(ids.size, 2);
  await log.topics(); // what was released before is heard by then
  assert.deepEqual(cluster.held, []);
});

clientTest("closing waits for every acknowledgement", async (log, cluster) => {
  const producer = await log.producer("t");
  for (let i = 0; i < 1000; i++) await producer.submit(`${i}`, { partition: 0 });
  await producer.close();
  assert.deepEqual(cluster.log("t").records().map(text), Array.from({ length: 1000 }, (_, i) => `${i}`));
  await assert.rejects(producer.send("late"), tidelog.Closed);
});

clientTest("closing reports what nobody waited for, and only that", async (log, cluster) => {
  const producer = await log.producer("t", { idempotent: false });
  cluster.refusals = [new Refusal("CORRUPT_BATCH"), new Refusal("BATCH_TOO_LARGE")];
  await producer.submit("a", { partition: 0 });
  await assert.rejects(producer.send("b", { partition: 1 }), { code: "BATCH_TOO_LARGE" });
  await assert.rejects(producer.close(), { name: "DeliveryFailed", failed: 1, code: "CORRUPT_BATCH" });
});

clientTest("closing the client closes its producers and reports for them", async (log, cluster) => {
  const producer = await log.producer("t");
  cluster.refusals = [new Refusal("CORRUPT_BATCH")];
  await producer.submit("a");
  await assert.rejects(log.close(), tidelog.DeliveryFailed);
});

clientTest("an error that may pass is tried again until it has", async (log, cluster) => {
  const producer = await log.producer("t", { backoffS: 0.01 });
  cluster.refusals = [new Refusal("NOT_LEADER"), new Refusal("NOT_ENOUGH_REPLICAS")];
  assert.equal((await producer.send("a", { partition: 0 })).offset, 0);
});

clientTest("what was written but not acknowledged when the gateway was lost is not written twice", async (log, cluster) => {
  const producer = await log.producer("t");
  cluster.loseAcks = 1;
  const ack = producer.send("a", { partition: 0 });
  await cluster.heard("produce");
  cluster.cut();
  assert.equal((await ack).offset, 0);
  assert.deepEqual(cluster.log("t").records().map(text), ["a"]);
  assert.deepEqual(cluster.connected, ["ws://g1", "ws://g2"]);
});

clientTest("many cuts under load leave every record once and in order", async (log, cluster) => {
  const producer = await log.producer("t", { batchBytes: 500 });
  const values = Array.from({ length: 3000 }, (_, i) => `${i}`);
  for (const value of values) {
    await producer.submit(value, { partition: 0 });
    if (value % 500 === 200) cluster.loseAcks = 2;
    if (value % 500 === 250) cluster.cut();
  }
  await producer.close();
  assert.deepEqual(cluster.log("t").records().map(text), values);
});

clientTest("without idempotence a lost gateway leaves the outcome unknown", async (log, cluster) => {
  const producer = await log.producer("t", { acks: "leader", idempotent: false });
  cluster.loseAcks = 1;
  const ack = producer.send("a");
  await cluster.heard("produce");
  cluster.cut();
  await assert.rejects(ack, { code: "UNREACHABLE", unknownOutcome: true });
});

clientTest("submit waits while the buffer is full, and keeps the order of the calls", async (log, cluster) => {
  const producer = await log.producer("t", { bufferBytes: 4000, batchBytes: 1000 });
  const values = Array.from({ length: 100 }, (_, i) => `${i} ${"x".repeat(200)}`);
  const pending = values.map((value) => producer.submit(value, { partition: 0 }));
  const quick = await Promise.race([Promise.all(pending).then(() => "all"), Promise.resolve("some")]);
  assert.equal(quick, "some");
  for (const one of await Promise.all(pending)) await one.wait();
  assert.deepEqual(cluster.log("t").records().map(text), values);
});

clientTest("a value is what it was when it was sent", async (log, cluster) => {
  const producer = await log.producer("t");
  const value = new Uint8Array([97]);
  const ack = producer.send(value, { partition: 0 });
  value[0] = 98;
  await ack;
  assert.equal(text(cluster.log("t").records()[0]), "a");
});

clientTest("a record that is expected elsewhere is not appended", async (log, cluster) => {
  const producer = await log.producer("t");
  const ack = producer.send("a", { partition: 0, expectedOffset: 0 });
  const after = producer.send("b", { partition: 0 });
  assert.deepEqual([(await ack).offset, (await after).offset], [0, 1]);
  const parts = cluster.seen.filter(({ op }) => op === "produce").flatMap((message) => message.parts);
  assert.deepEqual(parts.map((part) => part.expected_offset), [0, undefined]);
  cluster.refusals = [new Refusal("UNEXPECTED_OFFSET", "no", { detail: { end_offset: "2" } })];
  await assert.rejects(producer.send("c", { key: "k", expectedOffset: 1 }), { code: "UNEXPECTED_OFFSET", detail: { end_offset: 2 } });
  await assert.rejects(producer.send("c", { expectedOffset: 2 }), /name it, or a key/);
});

clientTest("wrong arguments are refused by name", async (log) => {
  const producer = await log.producer("t");
  await assert.rejects(producer.send(5), /bytes, texts or null/);
  await assert.rejects(producer.send("a", { partition: 2 }), /partitions 0 to 1/);
  await assert.rejects(producer.send("a", { timestampMs: -1 }), /timestampMs/);
  await assert.rejects(producer.send("a", { headers: { a: null } }), /headers/);
  await assert.rejects(producer.send("x".repeat(2 << 20)), { code: "BATCH_TOO_LARGE" });
  await assert.rejects(log.producer("t", { ack: "all", lingerS: -1 }), /no option ack\nlingerS/);
  await assert.rejects(log.producer("t", { compression: "zstd" }), /codecs/);
  await assert.rejects(log.producer("none"), { code: "UNKNOWN_TOPIC" });
});

clientTest("who gives up at once is told what is not acknowledged", async (log, cluster) => {
  const producer = await log.producer("t");
  cluster.loseAcks = 1;
  const ack = producer.send("a");
  await cluster.heard("produce");
  producer.abandon();
  await assert.rejects(ack, { code: "CLOSED", unknownOutcome: true });
});

clientTest("after the delivery timeout a record has failed", async (log, cluster) => {
  const producer = await log.producer("t", { deliveryTimeoutS: 0.05 });
  cluster.loseAcks = 1;
  await assert.rejects(producer.send("a"), { code: "REQUEST_TIMED_OUT", unknownOutcome: true, message: /deliveryTimeoutS 0.05/ });
});

// --- consumers ---

clientTest("consuming from the start to the end", async (log, cluster) => {
  cluster.fill("t", ["a", "b"]);
  cluster.fill("t", ["c"], { partition: 1 });
  const records = await collect(log.consume("t", { start: "earliest", end: "latest" }));
  const places = records.map((r) => [r.partition, r.offset, text(r), r.leaderEpoch, r.timestampMs, r.topic]).sort();
  assert.deepEqual(places, [[0, 0, "a", 4, 1000, "t"], [0, 1, "b", 4, 1000, "t"], [1, 0, "c", 4, 1000, "t"]]);
});

clientTest("a range of offsets is half-open", async (log, cluster) => {
  cluster.fill("t", ["a", "b", "c", "d"]);
  const records = await collect(log.consume("t", { start: 1, end: 3, partitions: [0] }));
  assert.deepEqual(records.map(text), ["b", "c"]);
});

clientTest("a consumer that waits gets new records", async (log, cluster) => {
  const found = collect(log.consume("t"), 1);
  await cluster.heard("subscribe", 2);
  cluster.fill("t", ["new"]);
  assert.deepEqual((await found).map(text), ["new"]);
});

clientTest("a consumer goes on at the next gateway without loss or repetition", async (log, cluster) => {
  for (let i = 0; i < 50; i++) cluster.fill("t", [`${i} ${"x".repeat(8000)}`]); // a few at a time: the credit is 64 KiB
  const seen = [];
  for await (const record of log.consume("t", { start: 0, partitions: [0], partitionBytes: 1 })) {
    seen.push(text(record).split(" ")[0]);
    if (seen.length % 10 === 0) cluster.cut();
    if (seen.length === 50) break;
  }
  assert.deepEqual(seen, Array.from({ length: 50 }, (_, i) => `${i}`));
  assert.ok(cluster.connected.length > 2);
});

clientTest("it goes on with the leader epoch that it has seen last", async (log, cluster) => {
  cluster.fill("t", ["a"]);
  const records = collect(log.consume("t", { start: 0, partitions: [0] }), 2);
  await cluster.heard("subscribe", 1);
  await new Promise(setImmediate);
  cluster.cut();
  const [, again] = await cluster.heard("subscribe", 2);
  assert.deepEqual([again.offset, again.last_epoch], [1, 4]);
  cluster.fill("t", ["b"]);
  assert.equal((await records).length, 2);
});

clientTest("who leaves the loop has unsubscribed", async (log, cluster) => {
  cluster.fill("t", ["a", "b"]);
  const consumer = log.consume("t", { start: 0 });
  assert.equal((await collect(consumer, 1)).length, 1);
  await cluster.heard("unsubscribe", 2);
  await assert.rejects(consumer.nextRecords(), tidelog.Closed);
});

clientTest("positions are those of the last record handed out, and a consumer goes on from them", async (log, cluster) => {
  cluster.fill("t", ["a", "b", "c"]);
  const consumer = log.consume("t", { start: "earliest" });
  await collect(consumer, 2);
  assert.deepEqual(consumer.positions.get(0), { leaderEpoch: 4, offset: 2 });
  const rest = await collect(log.consume("t", { start: consumer.positions, end: "latest" }));
  assert.deepEqual(rest.map(text), ["c"]);
});

clientTest("an offset that is gone is an error with its place", async (log, cluster) => {
  cluster.fill("t", ["a", "b"]);
  cluster.log("t").start = 1;
  await assert.rejects(collect(log.consume("t", { start: { 0: 0 }, partitions: [0] })), {
    code: "OFFSET_OUT_OF_RANGE",
    message: "t/0 at offset 0: gone",
    detail: { log_start: 1, topic: "t", partition: 0, offset: 0 },
  });
});

clientTest("a slow consumer is not sent more than its credit", async (log, cluster) => {
  const large = "x".repeat(30_000);
  for (let i = 0; i < 20; i++) cluster.fill("t", [large]);
  const consumer = log.consume("t", { start: 0, partitions: [0], partitionBytes: 1 });
  await consumer.open();
  await cluster.heard("subscribe");
  await new Promise(setImmediate);
  assert.equal((await cluster.heard("subscribe"))[0].credit, 64 << 10);
  assert.equal(cluster.seen.filter(({ op }) => op === "credit").length, 0);
  assert.equal((await collect(consumer, 20)).length, 20);
  assert.ok(cluster.seen.filter(({ op }) => op === "credit").length >= 5);
});

test("a consumer that wants more credit than the gateway keeps does not wait for it", async () => {
  const cluster = new FakeCluster();
  cluster.addTopic("t", 1);
  cluster.announced.limits = { credit_bytes: 100_000 };
  for (let i = 0; i < 20; i++) cluster.fill("t", ["x".repeat(30_000)]);
  const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket });
  const consumer = log.consume("t", { start: "earliest", end: "latest", partitionBytes: 32 << 20 });
  assert.equal((await collect(consumer)).length, 20);
  await log.close();
});

clientTest("closing a consumer ends who waits for its records", async (log, cluster) => {
  const consumer = log.consume("t");
  const waiting = assert.rejects(consumer.nextRecords(), tidelog.Closed);
  await cluster.heard("subscribe", 2);
  await consumer.close();
  await waiting;
});

clientTest("reading options that do not go together are refused by name", async (log) => {
  assert.throws(() => log.consume("t", { consistency: "bounded" }), /needs maxStalenessS/);
  assert.throws(() => log.consume("t", { readFrom: "any", consistency: "linearizable" }), /come from the leader/);
  assert.throws(() => log.consume("t", { from: "earliest" }), /no option from/);
  await assert.rejects(collect(log.consume("t", { start: -1 })), tidelog.ConfigError);
  await assert.rejects(collect(log.consume("t", { start: "newest" })), /earliest, latest/);
  await assert.rejects(collect(log.consume("t", { partitions: [2] })), { code: "UNKNOWN_TOPIC" });
});

clientTest("without a gateway for too long a consumer says so", async (log, cluster) => {
  const waiting = collect(log.consume("t"));
  await cluster.heard("subscribe", 2);
  URLS.forEach((url) => cluster.dead.add(url));
  cluster.cut();
  await assert.rejects(waiting, { code: "UNREACHABLE", message: /ws:\/\/g1, ws:\/\/g2/ });
}, { requestTimeoutS: 1 });

clientTest("a paused partition hands out nothing, and goes on behind what was handed out", async (log, cluster) => {
  cluster.fill("t", ["a", "b", "c"]);
  cluster.fill("t", ["x"], { partition: 1 });
  const consumer = log.consume("t", { start: 0, end: "latest" });
  const seen = [];
  for await (const record of consumer) {
    seen.push(text(record));
    if (seen.join("") === "a") {
      await consumer.pause(0);
      assert.deepEqual(consumer.paused, [0]);
      assert.ok(consumer.bufferedBytes > 0);
    }
    if (text(record) === "x") await consumer.resume();
  }
  assert.deepEqual(seen, ["a", "x", "b", "c"]);
  await assert.rejects(log.consume("t", { partitions: [1] }).pause(0), { code: "UNKNOWN_TOPIC" });
});

clientTest("a consumer can be sent elsewhere, also after an error", async (log, cluster) => {
  cluster.fill("t", ["a", "b", "c"]);
  cluster.fill("t", ["d"]);
  cluster.log("t").start = 2;
  const consumer = log.consume("t", { start: 0, end: 3, partitions: [0] });
  await assert.rejects(consumer.nextRecords(), { code: "OFFSET_OUT_OF_RANGE" });
  await assert.rejects(consumer.nextRecords(), { code: "OFFSET_OUT_OF_RANGE" });
  await consumer.seek({ 0: 2 });
  assert.deepEqual((await consumer.nextRecords()).map(text), ["c"]);
  assert.deepEqual(await consumer.nextRecords(), []);
  await consumer.seek(2, 0);
  assert.deepEqual((await collect(consumer)).map(text), ["c"]);
});

clientTest("reading backwards gives the same records in the other order", async (log, cluster) => {
  for (let i = 0; i < 20; i++) cluster.fill("t", [`${2 * i}`, `${2 * i + 1}`]);
  const forwards = await collect(log.consume("t", { start: 3, end: 30, partitions: [0] }));
  const backwards = await collect(log.consume("t", { start: 30, end: 3, partitions: [0], reverse: true }));
  assert.deepEqual(backwards, forwards.reverse());
  const consumer = log.consume("t", { partitions: [0], reverse: true });
  assert.deepEqual((await collect(consumer, 2)).map(text), ["39", "38"]);
  assert.deepEqual(consumer.positions.get(0), { leaderEpoch: -1, offset: 38 });
  const rest = await collect(log.consume("t", { start: consumer.positions, partitions: [0], reverse: true }));
  assert.deepEqual([text(rest[0]), rest.length], ["37", 38]);
  cluster.log("t").start = 10;
  await assert.rejects(collect(log.consume("t", { start: 30, end: 3, partitions: [0], reverse: true })), {
    code: "OFFSET_OUT_OF_RANGE",
  });
});

// --- the connection ---

test("a dead gateway in the list does no harm", async () => {
  const cluster = new FakeCluster();
  cluster.dead.add("ws://g1");
  const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket });
  assert.deepEqual(cluster.connected, ["ws://g2"]);
  await log.close();
});

const NAMED = [{ node: "g1", url: "ws://g1" }, { node: "g2", url: "ws://g2" }];

/** A client that was given the first gateway, has seen the metadata, and then loses it. */
async function lostTheGivenGateway(options = {}) {
  const cluster = new FakeCluster();
  cluster.addTopic("t");
  cluster.gateways = NAMED;
  const log = await tidelog.connect("ws://g1", { WebSocket: cluster.WebSocket, ...options });
  const producer = await log.producer("t");
  await producer.send("a");
  cluster.dead.add("ws://g1");
  cluster.cut();
  return { cluster, log, producer };
}

test("a client goes on at a gateway that the cluster has named", async () => {
  const { cluster, log, producer } = await lostTheGivenGateway();
  await producer.send("b");
  assert.deepEqual(cluster.connected, ["ws://g1", "ws://g2"]);
  assert.equal(log.gateway.url, "ws://g2");
  assert.deepEqual(cluster.log("t").records().map(text), ["a", "b"]);
  const hellos = cluster.seen.filter(({ op }) => op === "hello");
  assert.deepEqual(hellos.map(({ cluster: named }) => named), [undefined, "fake"], "the found one must be of the same cluster");
  await log.close();
});

test("a client that is not to find gateways stays with those that it was given", async () => {
  const { cluster, log } = await lostTheGivenGateway({ discover: false, requestTimeoutS: 1 });
  await assert.rejects(log.topics(), { code: "UNREACHABLE" });
  assert.deepEqual(cluster.connected, ["ws://g1"]);
  cluster.dead.clear();
  await log.close();
});

test("a page that came over https goes to no gateway without TLS", async () => {
  globalThis.location = { protocol: "https:" };
  try {
    const { cluster, log } = await lostTheGivenGateway({ requestTimeoutS: 1 });
    await assert.rejects(log.topics(), { code: "UNREACHABLE" });
    assert.deepEqual(cluster.connected, ["ws://g1"]);
    cluster.dead.clear();
    await log.close();
  } finally {
    delete globalThis.location;
  }
});

/** Connect in vain. The time in which to connect passes when every gateway was tried, however busy the machine is. */
async function connectInVain(context, urls, options) {
  let time = 0;
  context.mock.timers.enable({ apis: ["setTimeout"] });
  context.mock.method(performance, "now", () => time);
  const connected = tidelog.connect(urls, options);
  connected.catch(() => {});
  for (let i = 0; i < 20; i++) await new Promise(setImmediate);
  time = 60_000;
  context.mock.timers.tick(time);
  context.mock.reset();
  return connected;
}

test("without any gateway connect says so", async (context) => {
  const cluster = new FakeCluster();
  URLS.forEach((url) => cluster.dead.add(url));
  const options = { WebSocket: cluster.WebSocket };
  const unreachable = { code: "UNREACHABLE", message: /no gateway can be reached .* last error: (?!null)/ };
  await assert.rejects(connectInVain(context, URLS, options), unreachable);
  await assert.rejects(connectInVain(context, "http://g1", options), { code: "UNREACHABLE", message: /no URL/ });
  await assert.rejects(tidelog.connect([], options), tidelog.ConfigError);
});

test("what a connection has in flight stays within what the gateway has announced", async () => {
  const cluster = new FakeCluster();
  cluster.addTopic("orders", 4);
  cluster.announced.limits = { produce_bytes: 1500, produce_batches: 3 };
  const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket });
  const producers = [await log.producer("orders", { lingerS: 0 }), await log.producer("orders", { lingerS: 0 })];
  const sent = [];
  for (let n = 0; n < 100; n++) for (const producer of producers) sent.push(await producer.submit("x".repeat(300), { partition: n % 4 }));
  await Promise.all(producers.map((producer) => producer.close()));
  assert.equal((await Promise.all(sent.map((pending) => pending.wait()))).length, 200);
  const parts = cluster.seen.filter(({ op }) => op === "produce").map((message) => message.parts);
  assert.ok(parts.every((one) => one.length === 1 || (one.length <= 3 && one.reduce((sum, { size }) => sum + size, 0) <= 1500)));
  await log.close();
});

test("a conditional append is not sent to a gateway of an earlier release", async () => {
  const cluster = new FakeCluster();
  cluster.addTopic("orders");
  cluster.announced = {};
  const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket });
  const producer = await log.producer("orders");
  await assert.rejects(producer.send("a", { expectedOffset: 0 }), { code: "UNSUPPORTED", message: /conditional_append/ });
  assert.equal((await producer.send("a")).offset, 0);
  assert.deepEqual(cluster.seen.find(({ op }) => op === "hello").capabilities, ["strict"]);
  await producer.close();
  await log.close();
});

test("a server of another kind is no gateway", async (context) => {
  const cluster = new FakeCluster();
  const options = { WebSocket: cluster.WebSocket };
  const unreachable = (message) => ({ code: "UNREACHABLE", message });
  cluster.subprotocol = "chat";
  await assert.rejects(connectInVain(context, URLS, options), unreachable(/does not speak tidelog.v1/));
  cluster.subprotocol = "tidelog.v1";
  cluster.version = 2;
  await assert.rejects(connectInVain(context, URLS, options), unreachable(/speaks version 2, not 1/));
});

test("a program says in hello that it looks after the cluster", async () => {
  const cluster = new FakeCluster();
  for (const options of [{ operator: true }, {}]) {
    await (await tidelog.connect(URLS, { WebSocket: cluster.WebSocket, ...options })).close();
  }
  const hellos = cluster.seen.filter(({ op }) => op === "hello");
  assert.deepEqual(hellos.map(({ operator }) => operator), [true, undefined]);
});

test("the token goes with hello, and one that is not good is told at once", async () => {
  const cluster = new FakeCluster();
  const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket, token: "tide_1_2" });
  assert.equal(cluster.seen[0].token, "tide_1_2");
  const again = assert.rejects(log.status(), { code: "UNAUTHENTICATED" });
  cluster.deaf.add("metadata");
  cluster.failures.set("hello", [new Refusal("UNAUTHENTICATED"), new Refusal("UNAUTHENTICATED")]);
  cluster.cut();
  await again;
  await log.close();
  cluster.failures.set("hello", [new Refusal("UNAUTHENTICATED")]);
  await (await tidelog.connect(URLS, { WebSocket: cluster.WebSocket })).close(); // the other one took us
  cluster.failures.set("hello", URLS.map(() => new Refusal("UNAUTHENTICATED", "the token has expired")));
  const options = { WebSocket: cluster.WebSocket };
  await assert.rejects(tidelog.connect(URLS, options), { code: "UNAUTHENTICATED", message: "the token has expired" });
});

clientTest("an error that may pass is waited out, another one is told", async (log, cluster) => {
  cluster.failures.set("metadata", [new Refusal("NO_QUORUM"), new Refusal("OVERLOADED")]);
  assert.equal((await log.status()).cluster, "fake");
  cluster.failures.set("delete_topic", [new Refusal("FORBIDDEN", "no", { unknown_outcome: true, detail: { leader: "r1", at: "7" } })]);
  await assert.rejects(log.deleteTopic("t"), { code: "FORBIDDEN", unknownOutcome: true, detail: { leader: "r1", at: 7 } });
});

clientTest("a request that may be repeated outlives its gateway; one that may not tells that its outcome is unknown", async (log, cluster) => {
  cluster.deaf = new Set(["metadata", "delete_topic"]);
  const answered = log.status();
  const refused = assert.rejects(log.deleteTopic("t"), { code: "UNREACHABLE", unknownOutcome: true });
  await cluster.heard("delete_topic");
  cluster.deaf.clear();
  cluster.cut();
  assert.equal((await answered).cluster, "fake");
  await refused;
});

clientTest("what is no message ends the connection, and the next gateway is tried", async (log, cluster) => {
  for (const nonsense of ["text", new Uint8Array([0xff]).buffer, new Uint8Array([0xa1, 0x62, 0x72, 0x65, 0xc0, 0x00]).buffer]) {
    const before = cluster.connected.length;
    cluster.say(nonsense);
    while (cluster.connected.length === before) await new Promise(setImmediate);
    assert.equal((await log.status()).cluster, "fake");
  }
});

test("a gateway that is silent is asked, and given up where it does not answer", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let time = 0; // exact in binary after each pass: the client compares times that are equal
  context.mock.method(performance, "now", () => time);
  const cluster = new FakeCluster();
  const log = await tidelog.connect(URLS, { WebSocket: cluster.WebSocket });
  const pass = async (seconds) => {
    time += seconds * 1000;
    context.mock.timers.tick(seconds * 1000);
    for (let i = 0; i < 5; i++) await new Promise(setImmediate);
  };
  await pass(5);
  await pass(5);
  assert.ok(cluster.seen.some(({ op }) => op === "metadata"));
  assert.equal(cluster.connected.length, 1);
  cluster.deaf.add("metadata");
  for (let i = 0; i < 5; i++) await pass(5);
  assert.deepEqual(cluster.connected.slice(0, 2), URLS);
  await log.close();
});

clientTest("what is asked after the client was closed is refused", async (log) => {
  await log.close();
  await assert.rejects(log.status(), tidelog.Closed);
  await assert.rejects(collect(log.consume("t")), tidelog.Closed);
});

// --- topics, and every other request once: `test_javascript.py` holds them against the schema of the protocol ---

clientTest("topics are created, described and deleted", async (log) => {
  const made = await log.createTopic("new", { partitions: 3, replicationFactor: 1, config: { flush: "os", unclean_election: true } });
  assert.deepEqual(made.partitions.map(({ leader }) => leader), ["r1", "r1", "r1"]);
  await assert.rejects(log.createTopic("new"), { code: "TOPIC_EXISTS", retriable: false });
  const found = await log.createTopic("new", { partitions: 5, existOk: true });
  assert.deepEqual([found.topicId, found.partitions.length], [made.topicId, 3], "it stays as it is");
  assert.equal((await log.createTopic("newer", { existOk: true })).partitions.length, 1);
  await log.deleteTopic("newer");
  assert.deepEqual((await log.topics()).map(({ name }) => name), ["t", "new"]);
  await log.deleteTopic("new");
  await assert.rejects(log.describe("new"), { code: "UNKNOWN_TOPIC", refreshMetadata: true });
});

clientTest("every request of the client", async (log, cluster) => {
  cluster.fill("t", ["a", "b"]);
  assert.deepEqual(await log.listOffset("t", 0, "earliest"), { offset: 0, leaderEpoch: -1, timestampMs: -1, bytes: -1, stable: null });
  assert.equal((await log.listOffset("t", 0, new Date(5000))).offset, 2);
  cluster.fill("t", ["c", "d"], { times: [6000, 7000] });
  assert.deepEqual(await log.listOffset("t", 0, new Date(6500)), { offset: 3, leaderEpoch: 4, timestampMs: 7000 });
  await log.describe("t", { offsets: true });
  await log.configureTopic("t", { retention_ms: 5 });
  await log.setLearners("t", 0, ["r2"]);
  await log.growTopic("t", 4);
  await log.setReadOnly("t", [0]);
  await log.setReadOnly("t", [], { readOnly: false });
  await log.pause("t", [0, 1]);
  await log.resume("t");
  await log.transfer("t", 0, "r1");
  await log.reassign("t", 0, ["r1", "r2"]);
  await log.cancelReassignment("t", 0);
  await log.rebalance({ emptyDrained: true });
  await log.rebalance({ weights: [{ topic: "t", partition: 0, weight: 7 }], unit: "B" });
  assert.deepEqual({ ...(await cluster.heard("rebalance", 2))[1].weights[0] }, { name: "t", partition: 0, weight: 7 });
  await log.cancelRebalance();
  assert.deepEqual(await log.planRebalance(), []);
  assert.deepEqual(await log.waitingMoves(), []);
  await log.drain("r1");
  await log.drain("r1", false);
  await log.forgetServer("r4");
  assert.equal((await log.quorum()).active, "c1");
  await log.addController("c4", "ws://c4:1");
  await log.removeController("c4");
  assert.deepEqual(await log.history("t", 1), []);
  assert.equal((await log.digest("id-t-0", 0, "r1", [5])).logEnd, 0);
  await collect(log.consume("t", { start: 0, end: 1, partitions: [0], readFrom: "any", consistency: "bounded", maxStalenessS: 2 }));
  const [subscribe] = await cluster.heard("subscribe");
  assert.deepEqual([subscribe.read_from, subscribe.consistency, subscribe.max_staleness_ms], ["any", "bounded", 2000]);
});
