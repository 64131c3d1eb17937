/** The vectors in docs/vectors, which authors of other clients use: the JavaScript client passes them. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import test from "node:test";
import zlib from "node:zlib";
import { murmur2 } from "../../shared/js/src/core/partitioner.js";
import { decodeBatch, encodeBatch, readHeader } from "../../shared/js/src/wire/batch.js";
import { decodePrefix, encodeMessage } from "../../shared/js/src/wire/cbor.js";
import { CODES, CorruptBatch, partitionOf } from "../../shared/js/tidelog.js";
import { fromHex, toHex } from "./vectors.js";

const HAS_ZSTD = Boolean(zlib.zstdDecompressSync);
const codecs = HAS_ZSTD ? { zstd: { decompress: zlib.zstdDecompressSync } } : {};
const { good, bad } = read("batches.json");

for (const { name, hex, header, records } of good) {
  test(`it reads the batch ${name}`, { skip: name.includes("zstd") && !HAS_ZSTD }, () => {
    assert.deepEqual(decodeBatch(fromHex(hex), { codecs }).map(asJson), records);
    const { recordCount, batchLength, crc32c } = readHeader(fromHex(hex));
    assert.deepEqual([recordCount, batchLength, crc32c], [header.record_count, header.batch_length, header.crc32c]);
  });
}

for (const { name, hex } of bad) {
  test(`it refuses the batch ${name}`, { skip: name === "not-zstd" && !HAS_ZSTD }, () => {
    assert.throws(() => decodeBatch(fromHex(hex), { codecs }), CorruptBatch);
  });
}

test("it writes what is there for producers", () => {
  const { hex, records } = good.find(({ name }) => name === "producer");
  const rows = records.map(({ key, value, timestamp_ms, headers }) => {
    return { key: bytes(key), value: bytes(value), timestampMs: timestamp_ms, headers: headers.map(([name, content]) => [name, fromHex(content)]) };
  });
  assert.equal(toHex(encodeBatch(rows)), hex);
});

test("it finds the partitions of keys", () => {
  for (const { key, murmur2: hash, partition_of } of read("partitioner.json")) {
    assert.equal(murmur2(fromHex(key)), hash);
    for (const [count, partition] of Object.entries(partition_of)) assert.equal(partitionOf(fromHex(key), Number(count)), partition);
  }
});

test("tokens have the form and the digest that the page tells", () => {
  for (const { token, token_id: id, digest } of read("tokens.json")) {
    assert.equal(/^tide_([0-9a-f]{16})_[A-Za-z0-9_-]{43}$/.exec(token)[1], id);
    assert.equal(createHash("sha256").update(token).digest("hex"), digest);
  }
});

test("it reads and writes the messages", () => {
  const { messages, errors } = read("messages.json");
  for (const { header, payload, hex } of [...messages, ...errors]) {
    const [value, end] = decodePrefix(fromHex(hex), Infinity);
    assert.deepEqual(JSON.parse(JSON.stringify(value)), header);
    assert.ok(toHex(fromHex(hex).subarray(end)).endsWith(payload));
    assert.equal(toHex(encodeMessage(header, payload ? [fromHex(payload)] : [])), hex);
  }
  assert.deepEqual(errors.map(({ name }) => name).sort(), Object.keys(CODES).sort());
});

function read(file) {
  return JSON.parse(readFileSync(new URL(`../../docs/vectors/${file}`, import.meta.url), "utf-8"));
}

function asJson({ offset, timestampMs, key, value, headers }) {
  return { offset, timestamp_ms: timestampMs, key: key && toHex(key), value: value && toHex(value), headers: headers.map(([name, content]) => [name, toHex(content)]) };
}

function bytes(hex) {
  return hex === null ? null : fromHex(hex);
}
