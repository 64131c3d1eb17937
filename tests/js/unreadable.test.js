/** Batches with a right CRC that no reader can decode: what consumers of every kind say, where they stand, what `skip` passes over. */

import assert from "node:assert/strict";
import test from "node:test";
import { encodeBatch } from "../../shared/js/src/wire/batch.js";
import { crc32c } from "../../shared/js/src/wire/crc32c.js";
import * as tidelog from "../../shared/js/tidelog.js";
import { FakeCluster } from "./fake-gateway.js";

/** Three records whose body is garbage, as producer id 17 wrote it. */
function garbage() {
  const records = [2500, 3000, 3500].map((timestampMs) => ({ value: new Uint8Array(9), key: null, timestampMs, headers: [] }));
  const data = encodeBatch(records, { producerId: 17 });
  data.fill(0xff, 64);
  new DataView(data.buffer).setUint32(12, crc32c(data.subarray(16)));
  return data;
}

/** A test with a topic "t" whose offsets 0 to 2 and 6 to 9 can be read, and 3 to 5 not. */
function planted(name, body, { tail = true } = {}) {
  test(name, async (t) => {
    const warn = t.mock.method(console, "warn", () => {});
    const cluster = new FakeCluster();
    const { topicId } = cluster.addTopic("t");
    cluster.fill("t", ["0", "1", "2"]);
    cluster.log("t").append(garbage(), cluster.epoch);
    if (tail) cluster.fill("t", ["6", "7"]);
    if (tail) cluster.fill("t", ["8", "9"]);
    cluster.assignment = [{ topic_id: topicId, topic: "t", partitions: [0] }];
    const log = await tidelog.connect("ws://g1", { WebSocket: cluster.WebSocket });
    try {
      await body(log, cluster, warn.mock);
    } finally {
      await log.close();
    }
  });
}

const offsets = (records) => records.map((record) => record.offset);
const committed = (cluster) => cluster.positions.at(-1)?.offset;
const whole = { start: "earliest", end: "latest" };
const member = { group: "g", start: "earliest", autoCommitS: 1000 };

planted("a consumer is told the place, stays there, and goes on behind the batch", async (log) => {
  const consumer = log.consume("t", whole);
  assert.deepEqual(offsets(await consumer.nextRecords()), [0, 1, 2]);
  for (let i = 0; i < 2; i++) {
    const error = await consumer.nextRecords().then(assert.fail, (thrown) => thrown);
    assert.ok(error instanceof tidelog.UnreadableBatch && error instanceof tidelog.CorruptBatch);
    const { code, topic, partition, baseOffset, lastOffset, nextOffset, producerId, isDamaged } = error;
    assert.deepEqual([code, topic, partition, baseOffset, lastOffset], ["CORRUPT_BATCH", "t", 0, 3, 5]);
    assert.deepEqual([nextOffset, producerId, isDamaged], [6, 17, false]);
    assert.match(error.message, /^t\/0: the batch at offsets 3 to 5, of producer id 17, cannot be read: .* Go on at offset 6/);
    assert.equal(consumer.positions.get(0).offset, 3);
  }
  await consumer.seek(new Map([[0, 6]]));
  assert.deepEqual(offsets(await consumer.nextRecords()), [6, 7]);
});

planted("skipping passes over exactly that batch, counts it and says where", async (log, cluster, warnings) => {
  const consumer = log.consume("t", { ...whole, onUnreadable: "skip" });
  const seen = [];
  for await (const record of consumer) seen.push(record);
  assert.deepEqual(offsets(seen), [0, 1, 2, 6, 7, 8, 9]);
  assert.deepEqual([consumer.skippedBatches, consumer.skippedOffsets], [1, 3]);
  assert.equal(warnings.calls.length, 1);
  assert.match(warnings.calls[0].arguments[0], /skipped: t\/0: the batch at offsets 3 to 5/);
});

planted("a batch with a wrong CRC is never skipped", async (log, cluster) => {
  cluster.log("t").batches[1][70] ^= 1;
  const consumer = log.consume("t", { ...whole, onUnreadable: "skip" });
  await consumer.nextRecords();
  await assert.rejects(consumer.nextRecords(), { name: "UnreadableBatch", isDamaged: true, message: /read again from offset 3/ });
  assert.equal(consumer.skippedBatches, 0);
  assert.equal(consumer.positions.get(0).offset, 3);
});

planted("backwards it is the same", async (log) => {
  const consumer = log.consume("t", { start: "latest", reverse: true });
  assert.deepEqual(offsets([...(await consumer.nextRecords()), ...(await consumer.nextRecords())]), [9, 8, 7, 6]);
  await assert.rejects(consumer.nextRecords(), { baseOffset: 3 });
  await assert.rejects(consumer.nextRecords(), { baseOffset: 3 });
  assert.equal(consumer.positions.get(0).offset, 6);
  const seen = [];
  const skipping = log.consume("t", { start: "latest", reverse: true, onUnreadable: "skip" });
  for await (const record of skipping) seen.push(record);
  assert.deepEqual(offsets(seen), [9, 8, 7, 6, 2, 1, 0]);
  assert.deepEqual([skipping.skippedBatches, skipping.skippedOffsets], [1, 3]);
});

planted("a time within such a batch is found as its first offset", async (log) => {
  await assert.rejects(log.consume("t", { start: new Date(3000) }).nextRecords(), { baseOffset: 3 });
});

planted("a group stays before the batch until a member goes on behind it", async (log, cluster) => {
  const consumer = log.consume("t", member);
  await consumer.nextRecords();
  await assert.rejects(consumer.nextRecords(), { name: "UnreadableBatch", nextOffset: 6 });
  await consumer.commit();
  assert.equal(committed(cluster), 3);
  await consumer.seek([{ topic: "t", partition: 0, offset: 6 }]);
  assert.deepEqual(offsets(await consumer.nextRecords()), [6, 7]);
  await consumer.commit();
  assert.equal(committed(cluster), 8);
  await consumer.close();
});

planted("skipping moves the group's position behind the batch and no further", async (log, cluster) => {
  const consumer = log.consume("t", { ...member, onUnreadable: "skip" });
  const records = consumer[Symbol.asyncIterator]();
  const next = async () => (await records.next()).value.offset;
  assert.deepEqual([await next(), await next()], [0, 1]);
  await consumer.commit();
  assert.equal(committed(cluster), 2, "the rest of the batch before is not done");
  assert.deepEqual([await next(), await next()], [2, 6]);
  await consumer.commit();
  assert.equal(committed(cluster), 7);
  assert.deepEqual([consumer.skippedBatches, consumer.skippedOffsets], [1, 3]);
  await consumer.close();
});

planted(
  "a batch that is skipped at the end of the log is committed, but not before what comes before it is done",
  async (log, cluster) => {
    const consumer = log.consume("t", { ...member, onUnreadable: "skip" });
    const records = consumer[Symbol.asyncIterator]();
    await records.next();
    while (!consumer.skippedBatches) await new Promise((resolve) => setTimeout(resolve));
    await consumer.pause();
    await consumer.commit();
    assert.equal(committed(cluster), 1, "it waits behind the rest of the batch before");
    await consumer.resume();
    await records.next();
    await records.next();
    await consumer.commit();
    assert.equal(committed(cluster), 6);
    await consumer.close();
  },
  { tail: false },
);

planted("the policy has two values", async (log) => {
  assert.throws(() => log.consume("t", { onUnreadable: "ignore" }), /onUnreadable must be raise or skip, not ignore/);
});
