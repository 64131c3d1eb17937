/** Transactions of any application are listed, aborted and settled. */

import assert from "node:assert/strict";
import test from "node:test";
import * as tidelog from "../../shared/js/tidelog.js";
import { FakeCluster } from "./fake-gateway.js";

function clientTest(name, body) {
  test(name, async () => {
    const cluster = new FakeCluster();
    const log = await tidelog.connect("ws://g1", { WebSocket: cluster.WebSocket });
    try {
      await body(log, cluster);
    } finally {
      await log.close();
    }
  });
}

/** The fields of the requests of this kind. */
async function asked(cluster, op) {
  const found = await cluster.heard(op);
  return found.map(({ op: _, id, ...fields }) => JSON.parse(JSON.stringify(fields))); // decoded maps have no prototype
}

const OPEN = { app: "billing", state: "open", producer_id: 7, producer_epoch: 3 };

clientTest("they are listed, of all applications or of one", async (log, cluster) => {
  cluster.transactions = [OPEN, { ...OPEN, app: "etl", staged: "5f", state: "prepared" }];
  assert.deepEqual((await log.transactions()).map(({ app, untilMs }) => [app, untilMs]), [["billing", -1], ["etl", -1]]);
  const { transactions, batches } = await log.describeTransactions("etl");
  assert.deepEqual([transactions.map(({ staged }) => staged), batches], [["5f"], []]);
  assert.deepEqual(await asked(cluster, "list_transactions"), [{}, { app: "etl" }]);
});

clientTest("the open one is aborted, if there is one", async (log, cluster) => {
  cluster.transactions = [{ ...OPEN, staged: "5f" }];
  assert.equal(await log.abortTransaction("billing"), false);
  cluster.transactions.push(OPEN);
  assert.equal(await log.abortTransaction("billing"), true);
  cluster.committed = true;
  assert.equal(await log.abortTransaction("billing"), false);
  const request = { app: "billing", producer_id: 7, producer_epoch: 3, commit: false };
  assert.deepEqual(await asked(cluster, "end_transaction"), [request, request]);
  await log.abort("billing", new Set(["5f", "60"]));
  assert.deepEqual(await asked(cluster, "abort_staged"), [{ app: "billing", staged: ["5f", "60"] }]);
});

clientTest("one that hangs is settled in its partition", async (log, cluster) => {
  const { topicId } = cluster.addTopic("t");
  await log.settleTransaction("t", 0, 7, 3, { commit: true });
  assert.deepEqual(await asked(cluster, "settle_transaction"), [{ topic_id: topicId, partition: 0, producer_id: 7, producer_epoch: 3, commit: true }]);
  await assert.rejects(log.settleTransaction("other", 0, 7, 3, { commit: true }), { code: "UNKNOWN_TOPIC" });
});
