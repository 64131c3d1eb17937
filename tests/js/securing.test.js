/** Tokens, which nobody but their owner knows; rules and quotas as the protocol has them. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import test from "node:test";
import * as tidelog from "../../shared/js/tidelog.js";
import { FakeCluster, Refusal } from "./fake-gateway.js";

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

/** The fields of the last request of this kind. */
async function last(cluster, op) {
  const { op: _, id, ...fields } = (await cluster.heard(op)).at(-1);
  return JSON.parse(JSON.stringify(fields)); // decoded maps have no prototype
}

clientTest("a token is made here; the cluster is told its id and its SHA-256", async (log, cluster) => {
  const token = await log.createToken("app");
  const [, id] = token.match(/^tide_([0-9a-f]{16})_[A-Za-z0-9_-]{43}$/);
  const digest = createHash("sha256").update(token).digest("hex");
  assert.deepEqual(await last(cluster, "put_token"), { token_id: id, digest, principal: "app" });
  assert.notEqual(await log.createToken("app"), token);
});

clientTest("a token ends when it is said to, and another takes its place", async (log, cluster) => {
  await log.createToken("app", { lifetimeS: 90.5 });
  assert.equal((await last(cluster, "put_token")).lifetime_ms, 90500);
  await log.createToken("app", { lifetimeS: 0 });
  assert.equal((await last(cluster, "put_token")).lifetime_ms, 1);
  const token = await log.rotateToken("00ff00ff00ff00ff", { graceS: 3600, lifetimeS: 1 });
  const { digest, ...fields } = await last(cluster, "put_token");
  assert.deepEqual(fields, { token_id: token.slice(5, 21), replaces: "00ff00ff00ff00ff", grace_ms: 3_600_000, lifetime_ms: 1000 });
  await log.rotateToken("00ff00ff00ff00ff");
  assert.deepEqual(Object.keys(await last(cluster, "put_token")), ["token_id", "digest", "replaces"]);
  await log.revokeToken("00ff00ff00ff00ff");
  assert.deepEqual(await last(cluster, "revoke_tokens"), { token_id: "00ff00ff00ff00ff" });
  await log.revokeTokensOf("app");
  assert.deepEqual(await last(cluster, "revoke_tokens"), { principal: "app" });
  await log.rotateTicketKeys();
  assert.deepEqual(await last(cluster, "rotate_ticket_keys"), {});
});

clientTest("what may have made a token is not done twice", async (log, cluster) => {
  cluster.failures.set("put_token", [new Refusal("REQUEST_TIMED_OUT", "late", { unknown_outcome: true })]);
  await assert.rejects(log.createToken("app"), { code: "REQUEST_TIMED_OUT", unknownOutcome: true });
  assert.equal((await cluster.heard("put_token")).length, 1);
});

clientTest("rules and quotas", async (log, cluster) => {
  const rule = { principal: "app", operation: "read", resource: "topic:orders" };
  await log.alterAcls({ add: [rule, { ...rule, deny: true }], remove: new Set([{ ...rule, deny: false }]) });
  assert.deepEqual(await last(cluster, "alter_acls"), { add: [rule, { ...rule, deny: true }], remove: [rule] });
  await log.alterAcls({ remove: [rule] });
  assert.deepEqual(await last(cluster, "alter_acls"), { remove: [rule] });
  await log.alterQuotas([{ principal: "app", bytesInS: 1000, connections: 0 }, { principal: "free", requestsS: -1, bytesOutS: 5 }]);
  const quotas = [{ principal: "app", bytes_in_s: 1000, connections: 0 }, { principal: "free", bytes_out_s: 5 }];
  assert.deepEqual(await last(cluster, "alter_quotas"), { quotas });
  assert.deepEqual(await log.access(), { tokens: [], acls: [], quotas: [], heirs: [], authentication: false, authorization: false, principal: "", superuser: false });
  await log.dropInheritedSecurity();
  assert.deepEqual(await last(cluster, "alter_acls"), { drop_inherited: true });
});
