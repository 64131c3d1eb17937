/**
 * The cluster as the panels see it, live or as it was: one shape, from what the gateway answers or from the timeline.
 *
 * `{atMs, live, complete, told, cluster, active, term, controllers, gateways, gatewayUrls, servers, topics}`; `told`: we
 * may know of controllers and gateways. A topic's partitions have
 * `state`: `offline` (nobody leads), `paused`, `behind` (a replica is not in sync) or `ok`. A topic has `damage`, one of
 * `DAMAGE`.
 */

import { whole } from "../page/format.js";

/** `r2` stands before `r10`. Made once: it takes milliseconds. */
const COLLATOR = new Intl.Collator("en", { numeric: true });

/** What may be wrong with a topic: the worst of its partitions' states; nothing, then ever worse. */
export const DAMAGE = ["", "paused", "behind", "offline"];

/** From the answers to `metadata` and `describe_quorum` (null: none yet; with `error`: why there is none). */
export function liveCluster(status, quorum, atMs) {
  const commit = quorum?.commitIndex ?? -1;
  return finish({
    ...{ atMs, live: true, complete: true },
    cluster: status.cluster,
    active: quorum?.active ?? "",
    term: quorum?.term ?? 0,
    told: quorum !== null && quorum.error?.code !== "FORBIDDEN",
    gateways: quorum?.gateways ?? [],
    gatewayUrls: quorum?.gatewayUrls ?? {},
    controllers: (quorum?.controllers ?? []).map((one) => ({ ...one, behind: one.match < 0 ? 0 : Math.max(0, commit - one.match) })),
    servers: status.servers,
    topics: status.topics,
  });
}

/** From a `Past`. */
export function pastCluster(past, cluster) {
  return finish({
    ...{ atMs: past.timeMs, live: false, complete: past.complete, cluster },
    active: past.active,
    term: past.term,
    ...{ told: true, gateways: [], gatewayUrls: {} },
    controllers: [...past.controllers.values()].map((one) => ({ ...one, role: "", behind: 0, lost: false })),
    servers: [...past.servers.values()].map((one) => ({ ...one, brokerEpoch: one.broker_epoch })),
    topics: [...past.topics.values()].map((topic) => ({
      ...topic,
      partitions: [...topic.partitions].sort(([a], [b]) => a - b).map(([partition, state]) => fromRecord(partition, state)),
    })),
  });
}

function fromRecord(partition, state) {
  const { elr = [], learners = [], target = [], successor = "", paused = false, sealing = false } = state;
  return {
    ...{ partition, replicas: state.replicas, isr: state.isr, leader: state.leader ?? "", epoch: state.epoch },
    ...{ leaderEpoch: state.leader_epoch, elr, learners, target, successor: successor ?? "", paused, sealing },
    readOnly: state.read_only ?? false,
  };
}

function finish(cluster) {
  const topics = cluster.topics
    .map(finishTopic)
    .sort((a, b) => a.internal - b.internal || compare(a.name, b.name));
  const counts = new Map(cluster.servers.map(({ node }) => [node, { leads: 0, follows: 0, behind: 0 }]));
  for (const { partitions } of topics) for (const one of partitions) count(counts, one);
  const servers = cluster.servers.map((one) => ({ ...one, ...counts.get(one.node) })).sort((a, b) => compare(a.node, b.node));
  const controllers = [...cluster.controllers].sort((a, b) => compare(a.node, b.node));
  return { ...cluster, topics, servers, controllers };
}

function count(counts, { leader, replicas, isr }) {
  for (const node of replicas) {
    const own = counts.get(node);
    if (!own) continue;
    if (node === leader) own.leads += 1;
    else own.follows += 1;
    if (!isr.includes(node)) own.behind += 1;
  }
}

function finishTopic(topic) {
  if (!finished.has(topic)) {
    const partitions = topic.partitions.map((one) => ({ ...one, state: stateOf(one) }));
    finished.set(topic, { ...topic, internal: topic.name.startsWith("__"), partitions, damage: damageOf(partitions) });
  }
  return finished.get(topic);
}

/** By topic as it was told: the same object gives the same object, so that what did not change is not drawn anew. */
const finished = new WeakMap();

function damageOf(partitions) {
  const states = new Set(partitions.map(({ state }) => state));
  return DAMAGE.findLast((state) => states.has(state)) ?? "";
}

function stateOf({ leader, paused, replicas, isr }) {
  if (paused) return "paused";
  if (!leader) return "offline";
  return replicas.every((node) => isr.includes(node)) ? "ok" : "behind";
}

function compare(a, b) {
  return COLLATOR.compare(a, b);
}

/** The topics with the worst damage first, those of the cluster's own last among equals. */
export function worstFirst(topics) {
  return [...topics].sort((a, b) => DAMAGE.indexOf(b.damage) - DAMAGE.indexOf(a.damage));
}

/** How it is, in one sentence, and how bad: `{words, level}` with level `good`, `warning` or `bad`. */
export function health(cluster) {
  const partitions = cluster.topics.flatMap((topic) => topic.partitions);
  const offline = partitions.filter(({ state }) => state === "offline").length;
  const behind = partitions.filter(({ state }) => state === "behind").length;
  const silent = cluster.servers.filter(({ fenced }) => fenced).map(({ node }) => node);
  const faults = [
    ...(offline ? [`${many(offline, "partition")} without a leader`] : []),
    ...(behind ? [`${many(behind, "partition")} with a replica that is not in sync`] : []),
    ...(silent.length ? [`${silent.join(", ")} not heard of`] : []),
    ...(cluster.active || !cluster.told ? [] : ["no controller is known to be active"]),
  ];
  const level = offline || (cluster.told && !cluster.active) ? "bad" : faults.length ? "warning" : "good";
  return { level, words: faults.length ? `${faults.join("; ")}.` : "All partitions have a leader, all replicas are in sync." };
}

/** `3 partitions`, `1 partition`. */
export function many(count, name) {
  return `${whole(count)} ${name}${count === 1 ? "" : "s"}`;
}
