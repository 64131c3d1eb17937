/** The cores of producers, consumers and connections, event by event: the same decisions as the Python cores in the same lives. */

import assert from "node:assert/strict";
import test from "node:test";
import { Closed, TidelogError, TimedOut, BrokerError } from "../../shared/js/tidelog.js";
import { BackwardCore } from "../../shared/js/src/core/backward-consumer.js";
import { ConsumerCore } from "../../shared/js/src/core/consumer.js";
import { fromInfo } from "../../shared/js/src/errors.js";
import { producerOptions } from "../../shared/js/src/client/options.js";
import { recordSize } from "../../shared/js/src/core/batch.js";
import { GatewayAddresses } from "../../shared/js/src/core/gateway-addresses.js";
import { ProduceWindow } from "../../shared/js/src/core/produce-window.js";
import { ProducerCore } from "../../shared/js/src/core/producer.js";
import { NOTICES, errorInfo } from "../../shared/js/src/wire/messages.js";
import { fromHex, toHex, vectors } from "./vectors.js";

for (const [life, { options, steps }] of vectors.producers.entries()) {
  test(`life ${life} of a producer`, () => {
    const core = producerCore(options);
    steps.forEach(({ event, given, came, state }, step) => {
      const did = producerEvents[event](core, ...given);
      assert.deepEqual(did ?? null, came, `what came of step ${step}, ${event}`);
      const due = core.deadline();
      assert.deepEqual([due === Infinity ? null : due, core.buffered, core.wantsProducerId, core.isIdle, [core.throttledAcks, core.throttledS], core.isBlocked], state, `after step ${step}, ${event}`);
    });
  });
}

for (const [life, { plan, steps }] of vectors.consumers.entries()) {
  test(`life ${life} of a consumer`, () => {
    const core = consumerCore(plan);
    steps.forEach(({ event, given, came, state }, step) => {
      const did = consumerEvents[event](core, ...given);
      assert.deepEqual(did ?? null, came, `what came of step ${step}, ${event}`);
      const due = core.deadline();
      const positions = pairsOf(core.positions);
      const now = [due === Infinity ? null : due, core.isFinished, positions, core.paused, core.waiting];
      assert.deepEqual(now, state, `after step ${step}, ${event}`);
    });
  });
}

for (const [life, { plan, steps }] of vectors.backwards.entries()) {
  test(`life ${life} of a consumer that reads backwards`, () => {
    const core = new BackwardCore({ topic: "t", ...plan, starts: positionsOf(plan.starts), bounds: numbersOf(plan.bounds) });
    steps.forEach(({ event, given, came, state }, step) => {
      const did = backwardEvents[event](core, ...given);
      assert.deepEqual(did ?? null, came, `what came of step ${step}, ${event}`);
      assert.deepEqual([core.isFinished, pairsOf(core.positions)], state, `after step ${step}, ${event}`);
    });
  });
}

for (const [life, { given, steps }] of vectors.addresses.entries()) {
  test(`life ${life} of the addresses of a client`, () => {
    const known = new GatewayAddresses(given, { shuffle: (list) => list.reverse() });
    assert.equal(known.next(), given[0]);
    steps.forEach(({ over, named, lost, found, next, round_over }, step) => {
      if (lost) {
        known.learn(named, over);
        known.onLost(over);
      }
      assert.deepEqual([[...known.found], known.next(), known.roundOver], [found, next, round_over], `step ${step}`);
    });
  });
}

const backwardEvents = {
  looks: (core) => core.looks().map(({ partition, offset, maxBytes, lastEpoch }) => [partition, offset, maxBytes, lastEpoch]),
  batches: (core, partition, offset, maxBytes, lastEpoch, hex) => core.onBatches({ partition, offset, maxBytes, lastEpoch }, fromHex(hex)),
  error(core, partition, offset, maxBytes, lastEpoch, info) {
    core.onError({ partition, offset, maxBytes, lastEpoch }, fromInfo(errorInfo.read(info, "error")));
  },
  take(core) {
    try {
      const fetched = core.take();
      return fetched && { partition: fetched.partition, records: rows(fetched) };
    } catch (error) {
      return failure(error);
    }
  },
};

const producerEvents = {
  add(core, partition, hex, now, expected) {
    const record = { value: fromHex(hex), key: null, timestampMs: 5, headers: [] };
    const size = recordSize(record);
    if (expected >= 0 || !core.append(partition, record, size)) core.open(partition, record, size, now, expected);
  },
  take(core, now) {
    const message = core.take(now);
    return message && { parts: message.parts, payload: message.payload.map(toHex) };
  },
  produced(core, acks, now) {
    core.window.remove(acks);
    return settled(core.onProduced(NOTICES.produced.read({ acks }, "produced").acks, now));
  },
  tick: (core, now) => settled(core.onTick(now)),
  up(core, limits, isOld) {
    core.window.begin(limits);
    const failed = isOld ? settled(core.failConditional(new BrokerError("no", { code: "UNSUPPORTED" }))) : null;
    core.onLinkUp();
    return failed;
  },
  down(core, now) {
    core.window.begin({});
    return settled(core.onLinkDown(now));
  },
  producerId: (core, id, window) => core.onProducerId(id, window),
  seal: (core) => core.closeOpenBatches(),
  failAll: (core) => settled(core.failAll(new Closed("over"))),
};

/** What was taken last. */
let taken = null;

const consumerEvents = {
  up: (core, limits, now) => effects(core.onLinkUp(limits, now)),
  down: (core) => core.onLinkDown(),
  tick: (core, now) => effects(core.onTick(now)),
  delivery: (core, sub, hex, now) => effects(core.onDelivery({ sub, error: null, payload: fromHex(hex) }, now)),
  deliveryError: (core, sub, info, now) => effects(core.onDelivery({ sub, error: errorInfo.read(info, "error") }, now)),
  refused(core, sub, code, now) {
    core.onRefused(sub, code === "REQUEST_TIMED_OUT" ? new TimedOut("no") : new BrokerError("no", { code }), now);
  },
  take(core) {
    try {
      taken = core.take();
      return taken && { partition: taken.partition, records: rows(taken), effects: effects(core.onTaken(taken.partition)) };
    } catch (error) {
      return failure(error);
    }
  },
  putBack: (core, leaderEpoch, offset) => core.putBack(taken, { leaderEpoch, offset }),
  pause: (core, partitions) => core.pause(partitions),
  resume: (core, partitions) => core.resume(partitions),
  seek: (core, partition, offset, now) => effects(core.seek(partition, { leaderEpoch: -1, offset }, now)),
  close: (core) => effects(core.close()),
};

function producerCore(options) {
  const names = { linger_s: "lingerS", batch_bytes: "batchBytes", delivery_timeout_s: "deliveryTimeoutS", max_in_flight: "maxInFlight", backoff_s: "backoffS" };
  const ours = Object.fromEntries(Object.entries(options).map(([name, value]) => [names[name] ?? name, value]));
  let id = 0;
  const window = new ProduceWindow();
  const core = new ProducerCore({
    window,
    topicId: "5f",
    partitions: 2,
    options: producerOptions({ ...ours, bufferBytes: 1 << 20 }),
    nextId: () => ++id,
    maxBatchBytes: 1 << 17,
  });
  return Object.assign(core, { window });
}

function consumerCore({ starts, ends, credit }) {
  let sub = 0;
  return new ConsumerCore({
    topic: "t",
    starts: positionsOf(starts),
    ends: numbersOf(ends),
    credit,
    backoffS: 0.25,
    nextSub: () => ++sub,
  });
}

function settled(batches) {
  return batches.map((b) => [b.partition, b.count, b.offset, b.error && [b.error.code, b.error.unknownOutcome]]);
}

function effects(list) {
  return list.map((effect) =>
    effect.position ? { ...effect, position: [effect.position.leaderEpoch, effect.position.offset] } : effect,
  );
}

function positionsOf(object) {
  return new Map(Object.entries(object).map(([partition, [leaderEpoch, offset]]) => [Number(partition), { leaderEpoch, offset }]));
}

function numbersOf(object) {
  return new Map(Object.entries(object).map(([partition, offset]) => [Number(partition), offset]));
}

function pairsOf(positions) {
  return [...positions].map(([partition, { leaderEpoch, offset }]) => [partition, [leaderEpoch, offset]]);
}

function rows(fetched) {
  return fetched.records("t", {}).map((record) => [record.offset, record.leaderEpoch, toHex(record.value)]);
}

function failure(error) {
  if (!(error instanceof TidelogError)) throw error;
  return { error: [error.code, error.message, error.detail] };
}
