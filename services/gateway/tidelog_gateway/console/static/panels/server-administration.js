/** The forms that drain, rebalance and forget replica servers; and the moves of partitions that they begin. */

import { many } from "../cluster/cluster.js";
import { GOALS, weigh } from "../cluster/weights.js";
import { h } from "../page/dom.js";
import { unknown } from "../page/failures.js";
import { Forms } from "../page/forms.js";
import { table } from "../page/table.js";
import { copiesOf } from "./partition-administration.js";

const EVERY_MS = 2000;
/** Rows of a table that are drawn, and moves whose progress is asked for. */
const SHOWN = 20;

export class ServerAdministration {
  #forms = new Forms();
  /** Reassignments that wait for their turn; they are asked for while some move, and when `#wanted`. */
  #waiting = [];
  #error = null;
  #wanted = false;
  #asking = false;
  #due = 0;
  /** By place: the bounds of the logs of a partition that moves, by server. */
  #logs = new Map();

  /** Forget what the forms say. */
  clear() {
    this.#forms.clear();
    this.#waiting = [];
    this.#error = null;
    this.#wanted = false;
  }

  view(app) {
    this.#look(app);
    return [
      h("div", { class: "doing" }, this.#drain(app), this.#rebalance(app), this.#forget(app)),
      this.#moves(app),
    ];
  }

  // --- forms ---

  #drain(app) {
    const plan = ({ server }) => {
      const found = app.cluster.servers.find(({ node }) => node === server);
      const isDrained = found?.draining ?? false;
      const act = async () => {
        await app.log.drain(server, !isDrained);
        return isDrained ? `Done: ${server} takes part again.` : `Done: ${server} gives its leaderships away. Its card above says how many are left.`;
      };
      return isDrained
        ? { shown: resumption(app, server), button: `End the drain of ${server}`, act }
        : { shown: departure(app, server), button: `Drain ${server}`, act };
    };
    const words = ({ node, fenced, draining }) => [node, ...(draining ? ["drained"] : []), ...(fenced ? ["not heard of"] : [])].join(", ");
    const fields = [
      h("p", { class: "small quiet whole" }, "A server that is drained leads nothing that another server in sync can lead, keeps its copies, and gets new ones only where too few other servers run. This lasts over restarts, until you end it."),
      h("label", {}, "Server ", h("select", { name: "server" }, app.cluster.servers.map((one) => h("option", { key: one.node, value: one.node }, words(one))))),
    ];
    return h("details", { key: "drain" }, h("summary", {}, "Drain a server, or end that"), this.#forms.planned(app, "drain", fields, "Preview the moves", plan));
  }

  #rebalance(app) {
    const plan = async ({ by, empty }) => {
      const weights = await weigh(app.log, by);
      const goals = { emptyDrained: empty !== undefined, weights, unit: GOALS[by].unit };
      const moves = await app.log.planRebalance(goals);
      if (!moves.length) return "Replicas and preferred leaders are spread evenly: there is nothing to do.";
      const act = async () => {
        await app.log.rebalance(goals);
        this.#wanted = true;
        return "Begun, a few at a time: the moves are below.";
      };
      return { shown: plannedTable(moves), button: `Begin ${many(moves.length, "reassignment")}`, act };
    };
    const fields = [
      h("p", { class: "small quiet whole" }, "Evens out replicas over racks and servers, and preferred leaders over servers. New servers get their share."),
      h("label", {}, "Even out ", h("select", { name: "by" }, Object.entries(GOALS).map(([value, { words }]) => h("option", { value }, words)))),
      h("label", {}, h("input", { type: "checkbox", name: "empty" }), " also move all replicas away from drained servers"),
    ];
    const onToggle = ({ target }) => {
      this.#wanted ||= target.open;
      app.draw();
    };
    return h("details", { key: "rebalance", onToggle }, h("summary", {}, "Rebalance"), this.#forms.planned(app, "rebalance", fields, "Preview the moves", plan));
  }

  #forget(app) {
    const gone = app.cluster.servers.filter(({ fenced }) => fenced);
    const plan = ({ server }) => {
      const { leads, follows } = app.cluster.servers.find(({ node }) => node === server);
      const copies = leads + follows;
      if (copies) return `${server} still has copies of ${many(copies, "partition")}. Drain it, then rebalance, and move all replicas away from drained servers.`;
      const shown = h("p", {}, `${server} is removed from the cluster, so that nothing waits for it. If it comes back it is a new server.`);
      const act = async () => (await app.log.forgetServer(server), `Done: the cluster has forgotten ${server}.`);
      return { shown, button: `Forget ${server}`, act };
    };
    const fields = h("label", {}, "Server ", h("select", { name: "server" }, gone.map(({ node }) => h("option", { key: node, value: node }, node))));
    return h(
      "details",
      { key: "forget" },
      h("summary", {}, "Forget a server"),
      gone.length || this.#forms.said("forget")
        ? this.#forms.planned(app, "forget", fields, "Preview", plan)
        : h("p", {}, "All servers are live. To remove one for good, drain it, rebalance it empty, and stop it; then it can be forgotten here."),
    );
  }

  // --- moves ---

  #moves(app) {
    const moving = movingOf(app.cluster);
    const waiting = this.#waiting.filter(({ name, partition }) => !moving.some(({ place }) => place === `${name}/${partition}`));
    const leaving = app.cluster.servers.filter(({ draining, leads }) => draining && leads);
    if (!moving.length && !waiting.length && !leaving.length && !this.#error) return null;
    const cancel = async () => {
      const count = waiting.length;
      await app.log.cancelRebalance();
      this.#wanted = true;
      return `Done: ${many(count, "reassignment")} that waited ${count === 1 ? "is" : "are"} dropped. What has begun goes on.`;
    };
    const rows = [
      ...moving.slice(0, SHOWN).map(({ place, topic, one }) => [place, h("a", { href: `#/partition/${encodeURIComponent(topic.name)}/${one.partition}` }, place), one.replicas, one.target, progress(one, this.#logs.get(place))]),
      ...waiting.slice(0, SHOWN).map((one) => [`${one.name}/${one.partition} waits`, `${one.name}/${one.partition}`, one.replicas, one.target, "waits for its turn"]),
    ];
    return h(
      "section",
      { key: "moves", "aria-labelledby": "moves" },
      h("h2", { id: "moves" }, "Moves of partitions"),
      leaving.map(({ node, leads }) => h("p", { key: node }, `${node} is drained, and leads ${many(leads, "partition")} until another server in sync can.`)),
      h("p", { role: "status" }, `${many(moving.length, "partition")} on the way, ${many(waiting.length, "reassignment")} waiting.`),
      this.#error ? unknown(this.#error, "What waits is not known") : null,
      rows.length ? table("Moves of partitions", [["Partition"], ["Replicas"], ["Become"], ["Progress"]], rows.map(([key, place, from, to, words]) => [key, [place, from.join(", "), to.join(", "), words]])) : null,
      waiting.length ? this.#forms.form(app, "cancel", [], `Drop the ${waiting.length} that wait`, cancel) : null,
    );
  }

  /** Ask how far the moves are, and which wait; not in a cluster at rest. */
  async #look(app) {
    const moving = app.cluster ? movingOf(app.cluster).slice(0, SHOWN) : [];
    const isWanted = this.#wanted || moving.length || this.#waiting.length;
    if (!isWanted || document.hidden || !app.live || this.#asking || !app.log?.gateway || performance.now() < this.#due) return;
    this.#asking = true;
    this.#wanted = false;
    const [waiting, logs] = await Promise.all([app.log.waitingMoves().catch((error) => error), boundsOf(app.log, moving)]);
    this.#error = waiting instanceof Error ? waiting : null;
    this.#waiting = this.#error ? [] : waiting;
    this.#logs = logs;
    this.#asking = false;
    this.#due = performance.now() + EVERY_MS;
    setTimeout(() => app.draw(), EVERY_MS);
    app.draw();
  }
}

/** Partitions that are on the way to other replicas: `{place, topic, one}`. */
function movingOf({ topics }) {
  return topics.flatMap((topic) => topic.partitions.filter(({ target }) => target.length).map((one) => ({ place: `${topic.name}/${one.partition}`, topic, one })));
}

/** Resolve with the bounds of the logs that a move is about: by place a Map by server, without those that do not answer. */
async function boundsOf(log, moving) {
  const found = moving.map(async ({ place, topic, one }) => {
    const nodes = [...new Set([one.leader, ...one.target])].filter(Boolean);
    const logs = await Promise.all(nodes.map((node) => log.digest(topic.topicId, one.partition, node).catch(() => null)));
    return [place, new Map(nodes.map((node, i) => [node, logs[i]]).filter(([, bounds]) => bounds))];
  });
  return new Map(await Promise.all(found));
}

function progress(one, logs = new Map()) {
  const copies = copiesOf(one, logs).filter(({ words }) => words !== "in sync");
  return copies.length ? copies.map(({ node, words }) => `${node}: ${words}`).join("; ") : "all are in sync; the others go";
}

/** What happens to the partitions that a server leads when it is drained. */
function departure(app, server) {
  const isOpen = (node) => app.cluster.servers.some((one) => one.node === node && !one.fenced && !one.draining);
  const led = app.cluster.topics.flatMap((topic) => topic.partitions.filter(({ leader }) => leader === server).map((one) => [`${topic.name}/${one.partition}`, one]));
  if (!led.length) return h("p", {}, `${server} leads nothing. It gets no leaderships while it is drained.`);
  const heirs = led.map(([place, one]) => [place, one, one.isr.filter((node) => node !== server && isOpen(node))]);
  const stuck = heirs.filter(([, , nodes]) => !nodes.length);
  const ordered = [...stuck, ...heirs.filter(([, , nodes]) => nodes.length)];
  const words = (one, nodes) => (one.paused ? "paused: moves when it is resumed" : nodes.length ? nodes.join(" or ") : "nobody: no other server in sync");
  return [
    h("p", {}, `${server} leads ${many(led.length, "partition")}. ${led.length - stuck.length} of them can be led by another server in sync; ${stuck.length ? `${stuck.length} stay until another replica is in sync` : "none stays"}.`),
    table(`Partitions that ${server} leads`, [["Partition"], ["Next leader"]], ordered.slice(0, SHOWN).map(([place, one, nodes]) => [place, [place, words(one, nodes)]])),
    more(led.length),
  ];
}

/** What happens when a drain ends. */
function resumption(app, server) {
  const preferred = app.cluster.topics.flatMap(({ partitions }) => partitions).filter(({ replicas, leader }) => replicas[0] === server && leader !== server);
  return h("p", {}, `${server} may lead and get replicas again. ${many(preferred.length, "partition")} that prefer${preferred.length === 1 ? "s" : ""} it come back gradually.`);
}

function plannedTable(moves) {
  const rows = moves.slice(0, SHOWN).map((one) => {
    const place = `${one.name}/${one.partition}`;
    return [place, [place, one.replicas.join(", "), one.target.join(", "), one.reason || "–", one.evidence || "–"]];
  });
  const coming = moves.reduce((sum, one) => sum + one.target.filter((node) => !one.replicas.includes(node)).length, 0);
  return [
    h("p", {}, `${many(moves.length, "partition")} would move, and ${many(coming, "replica")} be copied to other servers. A few move at a time; nothing is given up before a copy is in sync.`),
    table("Planned moves", [["Partition"], ["Replicas"], ["Become"], ["For the sake of"], ["Figures"]], rows),
    more(moves.length),
  ];
}

function more(count) {
  return count > SHOWN ? h("p", { class: "small quiet" }, `And ${many(count - SHOWN, "more partition")}.`) : null;
}
