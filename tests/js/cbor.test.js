/** The CBOR codec writes the bytes that Python writes, reads them back, and refuses what the protocol has no place for. */

import assert from "node:assert/strict";
import test from "node:test";
import { decode, decodePrefix, encode, encodeMessage } from "../../shared/js/src/wire/cbor.js";
import { ProtocolError } from "../../shared/js/tidelog.js";
import { fromHex, toHex, vectors } from "./vectors.js";

test("it writes what Python writes", () => {
  for (const { hex, value } of vectors.cbor.plain) assert.equal(toHex(encode(value)), hex);
});

test("it reads what Python writes", () => {
  for (const { hex, value } of vectors.cbor.plain) assert.deepEqual(decode(fromHex(hex)), value);
});

test("an integer beyond 2^53 is no Number and is not rounded", () => {
  for (const hex of vectors.cbor.large) assert.equal(typeof decode(fromHex(hex)), "bigint");
  assert.throws(() => encode(2 ** 53), RangeError);
  assert.throws(() => encode(0.5), RangeError);
});

for (const [name, hex] of Object.entries(vectors.cbor.strange)) {
  test(`it refuses ${name}`, () => assert.throws(() => decode(fromHex(hex)), ProtocolError));
}

test("more items than were allowed are refused before they are made", () => {
  assert.throws(() => decode(fromHex("9a7fffffff" + "80".repeat(100)), 50), /too many items/);
  assert.throws(() => decode(fromHex("81".repeat(3) + "83010203"), 6), /too many items/);
  assert.deepEqual(decode(fromHex("81".repeat(3) + "83010203"), 7), [[[[1, 2, 3]]]]);
});

test("every cut of a message is refused", () => {
  const whole = encode({ a: [1, "text", fromHex("00ff")], b: { c: null, d: 70000 } });
  for (let size = 0; size < whole.length; size++) {
    assert.throws(() => decode(whole.subarray(0, size)), ProtocolError);
  }
});

test("a message is a header and one byte string of all that follows", () => {
  const chunks = [fromHex("0102"), new Uint8Array(), fromHex("03")];
  const message = encodeMessage({ op: "produce", left: undefined }, chunks);
  const [header, end] = decodePrefix(message, 10);
  assert.deepEqual({ ...header }, { op: "produce" });
  assert.deepEqual(decode(message.subarray(end)), fromHex("010203"));
  assert.deepEqual(encodeMessage({ op: "credit" }), encode({ op: "credit" }));
});
