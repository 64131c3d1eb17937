/** What gateways answer, as Python's codec writes it, becomes the objects that the documentation promises. */

import assert from "node:assert/strict";
import test from "node:test";
import { CODES, ProtocolError, TidelogError } from "../../shared/js/tidelog.js";
import { decode, decodePrefix, encode } from "../../shared/js/src/wire/cbor.js";
import { fromInfo } from "../../shared/js/src/errors.js";
import * as messages from "../../shared/js/src/wire/messages.js";
import { fromHex, vectors } from "./vectors.js";

const shapeOf = (name) => messages.NOTICES[name] ?? messages[name];

for (const { shape, hex, value } of vectors.answers) {
  test(`it reads ${shape}`, () => {
    const [header, end] = decodePrefix(fromHex(hex), Infinity);
    header.payload = end < hex.length / 2 ? decode(fromHex(hex).subarray(end)) : new Uint8Array();
    assert.deepEqual(shapeOf(shape).read(header, shape), value);
  });
}

test("a field that is missing or of another kind is refused by its name", () => {
  const info = { partition: 0, replicas: ["r1"], isr: [], leader: "r1", leader_epoch: 0, epoch: 0 };
  const answer = (change) => ({
    ...{ cluster: "c", index: 1, servers: [] },
    topics: [{ topic_id: "5f", name: "t", config: {}, partitions: [{ ...info, ...change }] }],
  });
  const read = (change) => messages.metadataAnswer.read(decode(encode(answer(change))), "answer");
  assert.equal(read({}).topics[0].partitions[0].leaderEpoch, 0);
  assert.throws(() => read({ leader: undefined }), /answer.topics\[0\].partitions\[0\] lacks leader/);
  assert.throws(() => read({ epoch: "1" }), /partitions\[0\].epoch is not an integer/);
  assert.throws(() => read({ isr: "r1" }), ProtocolError);
  assert.throws(() => read({ isr: [1] }), /isr\[0\] is not a text/);
  assert.equal(read({ later: [1] }).topics[0].name, "t");
});

test("an answer's empty lists belong to who got them", () => {
  const first = messages.rebalancePlan.read({}, "answer");
  first.moves.push("mine");
  assert.deepEqual(messages.rebalancePlan.read({}, "answer").moves, []);
});

test("an error is told by its code", () => {
  const error = fromInfo({ code: "NOT_LEADER", message: "ask r2", unknownOutcome: false, detail: { leader: "r2", epoch: "7", id: "123456789012345678" }, id: "" });
  assert.ok(error instanceof TidelogError && error.retriable && error.refreshMetadata);
  assert.deepEqual(error.detail, { leader: "r2", epoch: 7, id: "123456789012345678" });
  assert.equal(String(error), "[NOT_LEADER] ask r2");
  const kept = fromInfo({ code: "NOT_LEADER", message: "ask r2", unknownOutcome: false, detail: {}, id: "g1-692b1c40-1f" });
  assert.deepEqual([kept.id, String(kept)], ["g1-692b1c40-1f", "[NOT_LEADER] ask r2 (error id g1-692b1c40-1f)"]);
  assert.ok("OFFSET_OUT_OF_RANGE" in CODES);
});

test("a batch that nobody can compare has an unknown outcome, whatever the server says", () => {
  for (const code of ["UNVERIFIED_SEQUENCE", "DUPLICATE_SEQUENCE"]) {
    const error = fromInfo({ code, message: "old", unknownOutcome: false, detail: {} });
    assert.deepEqual([error.code, error.retriable, error.unknownOutcome], [code, false, true]);
  }
  const { retriable, unknownOutcome } = fromInfo({ code: "SEQUENCE_CONFLICT", message: "another's", unknownOutcome: false, detail: {} });
  assert.deepEqual([retriable, unknownOutcome], [false, false]);
});

test("a code of a later version counts as not retriable", () => {
  const error = fromInfo({ code: "CONFUSED", message: "?", unknownOutcome: true, detail: {} });
  assert.deepEqual([error.code, error.retriable, error.unknownOutcome], ["UNSUPPORTED", false, true]);
});
