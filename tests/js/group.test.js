/** Members of consumer groups: the rules of docs/protocol.md, seen from the application and in what the member sends. */

import assert from "node:assert/strict";
import test from "node:test";
import { Membership } from "../../shared/js/src/core/group-member.js";
import * as tidelog from "../../shared/js/tidelog.js";
import { FakeCluster, Refusal } from "./fake-gateway.js";

const text = (record) => new TextDecoder().decode(record.value);

/** A test with a cluster whose topic "t" has two partitions with records "a0"... and "b0"..., and a client. */
function groupTest(name, body) {
  test(name, async () => {
    const cluster = new FakeCluster();
    const { topicId } = cluster.addTopic("t", 2);
    for (let i = 0; i < 4; i++) {
      cluster.fill("t", [`a${i}`]);
      cluster.fill("t", [`b${i}`], { partition: 1 });
    }
    const assign = (...partitions) => {
      cluster.assignment = partitions.length ? [{ topic_id: topicId, topic: "t", partitions }] : [];
    };
    assign(0);
    const log = await tidelog.connect("ws://g1", { WebSocket: cluster.WebSocket });
    try {
      await body(log, cluster, assign);
    } finally {
      await log.close();
    }
  });
}

const reading = { group: "g", start: "earliest", autoCommitS: 1000 };

/** `[op, detail]` of what the member sent, without the heartbeats that say nothing new. */
function told(cluster) {
  const owned = (header) => (header.owned ?? []).flatMap(({ partitions }) => partitions).join();
  const lines = cluster.seen
    .filter(({ op }) => /group|offsets/.test(op))
    .map((header) => {
      const positions = (header.positions ?? []).map(({ partition, offset }) => `${partition}:${offset}`).join();
      return [header.op, header.op === "group_heartbeat" ? owned(header) : positions].join(" ").trim();
    });
  return lines.filter((line, i) => line !== lines[i - 1]);
}

groupTest("what was processed is committed when the member leaves, and another goes on there", async (log, cluster) => {
  const seen = [];
  for await (const record of log.consume("t", reading)) {
    seen.push(text(record));
    if (seen.length === 3) break;
  }
  assert.deepEqual(seen, ["a0", "a1", "a2"]);
  assert.deepEqual(told(cluster).filter((line) => !line.startsWith("group_heartbeat")), ["join_group", "fetch_offsets", "commit_offsets 0:0", "commit_offsets 0:2", "leave_group"]);
  for await (const record of log.consume("t", reading)) {
    assert.equal(text(record), "a2"); // it was in the application's hands: done or not, nobody knows
    break;
  }
});

groupTest("commit counts what the application has in its hands", async (log, cluster) => {
  const consumer = log.consume("t", reading);
  await consumer.nextRecords();
  await consumer.commit();
  assert.deepEqual(cluster.positions.map(({ offset, leader_epoch: epoch }) => [offset, epoch]), [[0, undefined], [1, 4]]);
  await consumer.close();
  assert.equal(cluster.positions.length, 2);
});

groupTest("a partition begins where the group has come, as it was told after it was assigned", async (log, cluster, assign) => {
  assign();
  const consumer = log.consume("t", reading);
  const records = consumer.nextRecords();
  await cluster.heard("group_heartbeat");
  cluster.positions = [{ topic_id: cluster.topics.get("t").topicId, partition: 1, offset: 3 }];
  assign(1);
  assert.deepEqual((await records).map(text), ["b3"]);
  assert.deepEqual(consumer.assignment.map(({ topic, partition }) => [topic, partition]), [["t", 1]]);
});

groupTest("what is taken away is committed, and only then given up; not before the application comes back", async (log, cluster, assign) => {
  assign(0, 1);
  const revoked = [];
  const onRevoked = (shares) => revoked.push(...shares.map(({ partition }) => partition));
  const consumer = log.consume("t", { ...reading, onRevoked });
  const records = consumer[Symbol.asyncIterator]();
  const first = (await records.next()).value;
  const other = 1 - first.partition;
  cluster.generation++;
  assign(other);
  const before = (await cluster.heard("group_heartbeat")).length;
  await cluster.heard("group_heartbeat", before + 2);
  assert.ok(cluster.seen.filter(({ op }) => op === "group_heartbeat").at(-1).owned.some(({ partitions }) => partitions.includes(first.partition)));
  const next = (await records.next()).value;
  assert.equal(next.partition, other);
  await cluster.heard("commit_offsets", 2);
  await cluster.heard("group_heartbeat", cluster.seen.filter(({ op }) => op === "group_heartbeat").length + 1);
  const lines = told(cluster);
  const commit = lines.indexOf(`commit_offsets ${first.partition}:1`);
  assert.ok(commit > 0 && lines.lastIndexOf("group_heartbeat 0,1") < commit, lines.join("\n"));
  assert.deepEqual(lines.slice(commit + 1), [`group_heartbeat ${other}`]);
  assert.equal(cluster.seen.findLast(({ op }) => op === "commit_offsets").generation, 2);
  assert.deepEqual(revoked, [first.partition]);
  await records.return();
});

groupTest("of a batch that is taken away while it is handed out, the rest is another member's", async (log, cluster, assign) => {
  cluster.fill("t", ["a4", "a5", "a6"]);
  cluster.positions = [{ topic_id: cluster.topics.get("t").topicId, partition: 0, offset: 4 }];
  const records = log.consume("t", reading)[Symbol.asyncIterator]();
  assert.equal(text((await records.next()).value), "a4");
  cluster.generation++;
  assign(1);
  await cluster.heard("group_heartbeat", (await cluster.heard("group_heartbeat")).length + 2);
  assert.equal(text((await records.next()).value), "b0");
  await cluster.heard("commit_offsets", 2);
  assert.equal(cluster.positions.find(({ partition, offset }) => partition === 0 && offset > 4).offset, 5);
  await records.return();
});

test("while the group is silent for longer than the session nothing is handed out", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let time = 0; // exact in binary after each pass: the client compares times that are equal
  context.mock.method(performance, "now", () => time);
  const pass = async (seconds) => {
    time += seconds * 1000;
    context.mock.timers.tick(seconds * 1000);
    for (let i = 0; i < 20; i++) await new Promise(setImmediate);
  };
  const cluster = new FakeCluster();
  const { topicId } = cluster.addTopic("t");
  cluster.assignment = [{ topic_id: topicId, topic: "t", partitions: [0] }];
  cluster.fill("t", ["a", "b"]);
  cluster.fill("t", ["c"]);
  const log = await tidelog.connect("ws://g1", { WebSocket: cluster.WebSocket });
  for (const next of ["b", "c"]) {
    const records = log.consume("t", { ...reading, sessionTimeoutS: 3 })[Symbol.asyncIterator]();
    await records.next();
    if (next === "c") await records.next();
    cluster.deaf.add("group_heartbeat");
    for (let i = 0; i < 4; i++) await pass(1);
    let given = null;
    const waiting = records.next().then(({ value }) => (given = text(value)));
    await pass(0.1);
    assert.equal(given, null);
    cluster.deaf.clear();
    while (given === null) await pass(0.5);
    assert.equal(given, next);
    await waiting;
    await records.return();
    cluster.positions = [];
  }
  await log.close();
});

groupTest("a member that the group does not know joins again, and commits nothing of what it had", async (log, cluster) => {
  const lost = [];
  const consumer = log.consume("t", { ...reading, onLost: (shares) => lost.push(shares[0].partition) });
  const records = consumer[Symbol.asyncIterator]();
  assert.equal(text((await records.next()).value), "a0");
  assert.equal(text((await records.next()).value), "a1");
  cluster.failures.set("group_heartbeat", [new Refusal("UNKNOWN_MEMBER")]);
  await cluster.heard("join_group", 2);
  assert.equal(text((await records.next()).value), "a0");
  assert.deepEqual([cluster.positions.map(({ offset }) => offset), lost], [[0], [0]], "only where it began");
  await records.return();
});

groupTest("a commit in a former generation is made again in the present one", async (log, cluster) => {
  const consumer = log.consume("t", reading);
  await consumer.nextRecords();
  cluster.failures.set("commit_offsets", [new Refusal("FENCED_GENERATION")]);
  cluster.generation++;
  await consumer.commit();
  assert.deepEqual(cluster.positions.map(({ offset }) => offset), [0, 1]);
  assert.equal(cluster.seen.filter(({ op }) => op === "commit_offsets").at(-1).generation, 2);
});

groupTest("who was replaced by another process of its name is told so", async (log, cluster) => {
  const consumer = log.consume("t", { ...reading, instance: "i1" });
  await consumer.nextRecords();
  cluster.failures.set("group_heartbeat", [new Refusal("FENCED_INSTANCE")]);
  await assert.rejects(async () => {
    for (;;) await consumer.nextRecords();
  }, { code: "FENCED_INSTANCE" });
  assert.equal((await cluster.heard("join_group"))[0].instance, "i1");
});

groupTest("without auto-commit only commit commits", async (log, cluster) => {
  const consumer = log.consume("t", { ...reading, autoCommitS: null });
  for (let i = 0; i < 3; i++) await consumer.nextRecords();
  await consumer.close();
  assert.deepEqual(cluster.positions.map(({ offset }) => offset), [0], "only where it began");
});

groupTest("what is done is committed from time to time", async (log, cluster) => {
  const consumer = log.consume("t", { ...reading, autoCommitS: 0.001 });
  for (let i = 0; i < 3; i++) await consumer.nextRecords();
  await cluster.heard("commit_offsets", 2);
  assert.ok(cluster.seen.filter(({ op }) => op === "commit_offsets")[1].positions[0].offset <= 2);
});

groupTest("where it begins is committed at once: nothing that comes after is passed over by whoever is next", async (log, cluster) => {
  const first = log.consume("t", { ...reading, start: "latest" });
  await first.open();
  await cluster.heard("commit_offsets");
  await first.close();
  cluster.fill("t", ["new"]);
  const next = log.consume("t", { ...reading, start: "latest" });
  assert.deepEqual((await next.nextRecords()).map(text), ["new"]);
});

groupTest("a partition that is taken away before its beginning was found is just given up", async (log, cluster, assign) => {
  const assigned = [];
  const onAssigned = (shares) => assigned.push(...shares.map(({ partition }) => partition));
  const consumer = log.consume("t", { ...reading, onAssigned });
  assert.deepEqual((await consumer.nextRecords()).map(text), ["a0"]);
  cluster.deaf.add("fetch_offsets");
  cluster.generation++;
  assign(0, 1);
  await cluster.heard("fetch_offsets", 2);
  cluster.generation++;
  assign(0);
  const beats = () => cluster.seen.filter(({ op }) => op === "group_heartbeat");
  const owned = () => (beats().at(-1).owned ?? []).flatMap(({ partitions }) => partitions);
  do await cluster.heard("group_heartbeat", beats().length + 1);
  while (owned().includes(1));
  assert.deepEqual((await consumer.nextRecords()).map(text), ["a1"]);
  assert.deepEqual([assigned, consumer.assignment.map(({ partition }) => partition)], [[0], [0]]);
});

groupTest("a hook that takes its time holds back no heartbeat", async (log, cluster, assign) => {
  const consumer = log.consume("t", { ...reading, onAssigned: () => new Promise(() => {}) });
  await consumer.open();
  await cluster.heard("group_heartbeat", 3);
  await consumer.close();
});

groupTest("who has committed all that was handed out is not asked before a partition goes", async (log, cluster, assign) => {
  const consumer = log.consume("t", reading);
  const records = consumer[Symbol.asyncIterator]();
  await records.next();
  await consumer.commit();
  cluster.generation++;
  assign(1);
  const gone = ({ op, owned = [] }) => op === "group_heartbeat" && !owned.some(({ partitions }) => partitions.includes(0));
  for (let beats = 1; !cluster.seen.slice(3).some(gone); beats++) await cluster.heard("group_heartbeat", beats);
  assert.equal(text((await records.next()).value), "b0");
});

groupTest("what is paused is not handed out until it is resumed, and nothing of it is lost", async (log, cluster, assign) => {
  assign(0, 1);
  cluster.fill("t", ["a4", "a5", "a6"]);
  cluster.positions = [{ topic_id: cluster.topics.get("t").topicId, partition: 0, offset: 4 }];
  const consumer = log.consume("t", reading);
  const records = consumer[Symbol.asyncIterator]();
  const next = async () => text((await records.next()).value);
  const seen = [];
  do seen.push(await next());
  while (seen.at(-1) !== "a4");
  const [share] = consumer.assignment.filter(({ partition }) => partition === 0);
  await consumer.pause(share);
  assert.deepEqual(consumer.paused, [share]);
  while (seen.length < 5) seen.push(await next());
  assert.deepEqual(seen.filter((value) => value !== "a4"), ["b0", "b1", "b2", "b3"]);
  await consumer.resume();
  assert.deepEqual([await next(), await next(), consumer.paused], ["a5", "a6", []]);
  await assert.rejects(consumer.pause({ topic: "t", partition: 7 }), { code: "UNKNOWN_TOPIC" });
});

groupTest("a seek goes on elsewhere, and that is what is committed", async (log, cluster) => {
  const consumer = log.consume("t", reading);
  const records = consumer[Symbol.asyncIterator]();
  const next = async () => text((await records.next()).value);
  assert.equal(await next(), "a0");
  await consumer.seek(3);
  await consumer.commit();
  assert.equal(cluster.positions.at(-1).offset, 3);
  assert.equal(await next(), "a3");
  await consumer.seek([{ topic: "t", partition: 0, offset: 1, leaderEpoch: 4 }]);
  assert.deepEqual(consumer.positions.map(({ partition, offset }) => [partition, offset]), [[0, 1]]);
  assert.equal(await next(), "a1");
  await consumer.seek("earliest", ...consumer.assignment);
  assert.equal(await next(), "a0");
});

groupTest("a seek is the way on where the position is not in the log any more", async (log, cluster) => {
  cluster.log("t").start = 2;
  cluster.log("t").batches.splice(0, 2);
  cluster.positions = [{ topic_id: cluster.topics.get("t").topicId, partition: 0, offset: 1 }];
  const consumer = log.consume("t", reading);
  await assert.rejects(consumer.nextRecords(), { code: "OFFSET_OUT_OF_RANGE" });
  await consumer.seek("earliest");
  assert.deepEqual((await consumer.nextRecords()).map(text), ["a2"]);
});

groupTest("a member lives on at the next gateway", async (log, cluster) => {
  const seen = [];
  for await (const record of log.consume("t", reading)) {
    seen.push(text(record));
    cluster.cut();
    if (seen.length === 4) break;
  }
  assert.deepEqual(seen, ["a0", "a1", "a2", "a3"]);
  assert.equal(cluster.seen.filter(({ op }) => op === "join_group").length, 1);
});

groupTest("groups are listed, described, moved and deleted", async (log, cluster) => {
  assert.equal((await log.describeGroup("g")).state, "empty");
  await log.resetGroup("g", "t", { 1: 7 });
  assert.deepEqual([...(await log.fetchOffsets("g", "t"))], [[1, { leaderEpoch: -1, offset: 7 }]]);
  assert.deepEqual(await log.groups(), []);
  await log.deleteGroup("g");
  assert.deepEqual(cluster.seen.slice(-2).map(({ op }) => op), ["list_groups", "delete_group"]);
  assert.throws(() => log.consume("t", { group: "" }), tidelog.ConfigError);
  assert.throws(() => log.consume("t", { group: "g", end: "latest" }), /no option end/);
});

// --- the rules of time ---

function member(...partitions) {
  const membership = new Membership(45);
  membership.onJoined({ generation: 1, heartbeatMs: 3000, assignment: share(...partitions) }, 100);
  return membership;
}

function share(...partitions) {
  return [{ topicId: "5f", topic: "t", partitions }];
}

test("the session counts from when the last answered heartbeat was sent", () => {
  const membership = member(0);
  assert.equal(membership.isSilent(144.9), false);
  assert.equal(membership.isSilent(145), true);
  membership.onAnswer({ generation: 1, assignment: share(0) }, 130);
  assert.equal(membership.isSilent(174.9), false);
  assert.equal(membership.isSilent(175), true);
});

test("a heartbeat is due at its interval, and at once when something was given up", () => {
  const membership = member(0, 1);
  assert.equal(membership.beatDue, 103);
  for (const wanted of membership.toAcquire) membership.acquire(wanted);
  membership.onAnswer({ generation: 2, assignment: share(1) }, 103);
  const [leaving] = membership.toRelease;
  assert.equal(leaving.partition, 0);
  membership.release(leaving);
  assert.ok(membership.beatDue <= 103);
  assert.deepEqual(membership.owned, [{ topic_id: "5f", partitions: [1] }]);
});

test("an answer of a former generation says nothing new", () => {
  const membership = member(0);
  membership.onAnswer({ generation: 3, assignment: share(0, 1) }, 101);
  membership.onAnswer({ generation: 2, assignment: share() }, 102);
  assert.deepEqual(membership.toAcquire.map(({ partition }) => partition), [0, 1]);
});
