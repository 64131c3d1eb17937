/** The batch codec: the golden files of the Python tests, what Python writes today, and what it refuses. */

import assert from "node:assert/strict";
import test from "node:test";
import zlib from "node:zlib";
import { crc32c } from "../../shared/js/src/wire/crc32c.js";
import { decodeBatch, encodeBatch, split } from "../../shared/js/src/wire/batch.js";
import { decompress } from "../../shared/js/src/wire/lz4.js";
import { CorruptBatch, partitionOf } from "../../shared/js/tidelog.js";
import { murmur2 } from "../../shared/js/src/core/partitioner.js";
import { fromHex, toHex, vectors } from "./vectors.js";

/** Node has zstd from 22.15 on; elsewhere those vectors are read by nobody. */
const HAS_ZSTD = Boolean(zlib.zstdDecompressSync);
const codecs = HAS_ZSTD ? { zstd: { decompress: zlib.zstdDecompressSync, compress: zlib.zstdCompressSync } } : {};
const small = [
  { value: fromHex("61"), key: null, timestampMs: 1000, headers: [["trace", fromHex("01")]] },
  { value: null, key: fromHex("6b"), timestampMs: 999, headers: [] },
];

test("the checksum is CRC-32C", () => {
  assert.equal(crc32c(Buffer.from("123456789")), 0xe3069283);
  const data = Buffer.from("any bytes, longer than eight of them");
  for (let at = 0; at <= data.length; at++) assert.equal(crc32c(data.subarray(at), crc32c(data.subarray(0, at))), crc32c(data));
});

for (const { name, hex, records } of vectors.batches.good) {
  test(`it reads ${name}`, { skip: name.includes("zstd") && !HAS_ZSTD }, () => {
    const read = decodeBatch(fromHex(hex), { topic: "t", partition: 3, codecs });
    assert.deepEqual(
      read.map((r) => [r.offset, r.leaderEpoch, r.timestampMs, r.key && plain(r.key), r.value && plain(r.value), plainPairs(r.headers)]),
      records,
    );
    assert.ok(read.every((record) => record.topic === "t" && record.partition === 3));
  });
}

for (const { name, hex } of vectors.batches.bad) {
  test(`it refuses a batch with a wrong ${name}`, () => {
    assert.throws(() => decodeBatch(fromHex(hex), { codecs }), CorruptBatch);
  });
}

test("it writes what Python writes", () => {
  for (const { producerId, baseSequence, records, hex } of vectors.batches.written) {
    const rows = records.map(([value, key, timestampMs, headers]) => ({ value, key, timestampMs, headers }));
    assert.equal(toHex(encodeBatch(rows, { producerId, baseSequence })), hex);
  }
});

test("without a decompressor the error names the codec and what to do", () => {
  const { hex } = vectors.batches.good.find(({ name }) => name === "text-zstd");
  assert.throws(() => decodeBatch(fromHex(hex)), { code: "UNSUPPORTED", message: /zstd.*codecs/, detail: { codec: "zstd" } });
});

test("a decompressor that gives another size is not believed", () => {
  const { hex } = vectors.batches.good.find(({ name }) => name === "text-zstd");
  const decompress = () => new Uint8Array(3);
  assert.throws(() => decodeBatch(fromHex(hex), { codecs: { zstd: { decompress } } }), /not one zstd frame of/);
});

test("a zstd frame that declares another size than its batch is not unfolded", () => {
  const { hex } = vectors.batches.bad.find(({ name }) => name === "zstd: length");
  const decompress = () => assert.fail("unfolded");
  assert.throws(() => decodeBatch(fromHex(hex), { codecs: { zstd: { decompress } } }), /does not declare the 1000 bytes/);
});

/** An LZ4 frame of one block: version 1, blocks on their own, no checksums. */
function lz4Frame(...block) {
  return new Uint8Array([0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82, block.length, 0, 0, 0, ...block, 0, 0, 0, 0]);
}

test("LZ4 matches copy what was written before, also what they write themselves", () => {
  assert.deepEqual([...decompress(lz4Frame(0x20, 7, 8, 2, 0, 0x10, 9), 7)], [7, 8, 7, 8, 7, 8, 9]);
  assert.deepEqual([...decompress(lz4Frame(0x10, 7, 1, 0, 0x00), 5)], [7, 7, 7, 7, 7]);
});

test("LZ4 blocks that point outside, are cut short, or hold more or less than they should, are refused", () => {
  const wrong = [
    [0x10, 7, 0, 0, 0x00], // a match of nothing
    [0x10, 7, 2, 0, 0x00], // before the beginning
    [0x10, 7, 1], // half a distance
    [0x50, 7], // literals that are not there
    [0xf0, 255, 255], // a length without an end
    [0x10, 7, 1, 0, 0x10, 7], // a byte more
    [0x10, 7], // four less
  ];
  for (const block of wrong) assert.throws(() => decompress(lz4Frame(...block), 5), RangeError, `${block}`);
  assert.throws(() => decompress(lz4Frame(0x10, 7, 1, 0, 0x00).subarray(0, 12), 5), RangeError);
});

test("what is written with zstd declares its size and is read again", { skip: !HAS_ZSTD }, () => {
  const batch = encodeBatch(small, { codec: "zstd", codecs });
  assert.deepEqual(decodeBatch(batch, { codecs }).map((record) => record.timestampMs), [1000, 999]);
});

test("batches one after the other are told apart, and one that is cut short is refused", () => {
  const one = encodeBatch(small);
  const two = encodeBatch(small.slice(1));
  const joined = Buffer.concat([one, two]);
  assert.deepEqual([...split(joined)].map(([header, data]) => [header.recordCount, data.length]), [[2, one.length], [1, two.length]]);
  assert.throws(() => [...split(joined.subarray(0, joined.length - 1))], CorruptBatch);
});

test("an offset that no Number can hold is refused, not rounded", () => {
  const batch = encodeBatch(small);
  new DataView(batch.buffer).setBigInt64(0, 2n ** 53n);
  assert.throws(() => decodeBatch(batch), { code: "UNSUPPORTED", message: /2\^53/ });
});

test("no records, or too many, are no batch", () => {
  assert.throws(() => encodeBatch([]), RangeError);
  assert.throws(() => encodeBatch(new Array((1 << 18) + 1).fill(small[0])), RangeError);
});

test("keys go where Kafka's clients send them", () => {
  for (const { hex, hash, of12 } of vectors.partitions.keys) {
    assert.equal(murmur2(fromHex(hex)), hash);
    assert.equal(partitionOf(fromHex(hex), 12), of12);
  }
});

function plain(bytes) {
  return new Uint8Array(bytes);
}

function plainPairs(headers) {
  return headers.map(([name, content]) => [name, plain(content)]);
}
