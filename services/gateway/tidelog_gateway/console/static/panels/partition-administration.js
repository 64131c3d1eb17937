/** The forms that move a partition: its leadership, its replicas and its learners; and how far a move is. */

import { h } from "../page/dom.js";
import { Forms } from "../page/forms.js";
import { short, whole } from "../page/format.js";
import { listOf } from "../page/typed.js";

export class PartitionAdministration {
  #forms = new Forms();

  /** Forget what the forms say. */
  clear() {
    this.#forms.clear();
  }

  /** The forms for a partition `one`. `logs` are its replicas' answers to `digest`, by server. */
  view(app, topic, one, logs) {
    return [
      one.target.length ? this.#move(app, topic, one, logs) : null,
      h("div", { class: "doing" }, this.#transfer(app, topic, one), this.#reassign(app, topic, one), this.#learners(app, topic, one)),
    ];
  }

  #transfer(app, topic, one) {
    const others = one.replicas.filter((node) => node !== one.leader);
    const candidates = [...others.filter((node) => one.isr.includes(node)), ...others.filter((node) => !one.isr.includes(node))];
    const act = async ({ server }) => {
      const { leader, leaderEpoch } = await app.log.transfer(topic.name, one.partition, server);
      return `Done: ${leader} leads in leader epoch ${leaderEpoch}.`;
    };
    const words = (node) => [node, one.isr.includes(node) ? "in sync" : "not in sync", ...(node === one.replicas[0] ? ["preferred"] : [])].join(", ");
    const fields = [
      h("p", { class: "small quiet whole" }, "The leader takes no records until the new one has all of them; clients then send again what it refused. If the new one does not catch up in time, the leader stays."),
      h("label", {}, "New leader ", h("select", { name: "server" }, candidates.map((node) => h("option", { key: node, value: node }, words(node))))),
    ];
    return h(
      "details",
      { key: `transfer ${topic.topicId}/${one.partition}` },
      h("summary", {}, "Transfer the leadership"),
      candidates.length ? this.#forms.form(app, "transfer", fields, "Transfer", act) : h("p", {}, `${one.leader || "No server"} has the only replica. Reassign the partition to more servers first.`),
    );
  }

  #reassign(app, topic, one) {
    const plan = async ({ servers }) => {
      const wanted = listOf(servers);
      checkServers(app, wanted);
      if (!wanted.length) throw new RangeError("name at least one server");
      if (wanted.join() === one.replicas.join()) return `The replicas are ${wanted.join(", ")} already. Name other servers, or another order.`;
      const { partitions } = await app.log.describe(topic.name, { offsets: true });
      const steps = stepsOf(one, wanted, partitions[one.partition].bytes);
      const act = async () => {
        await app.log.reassign(topic.name, one.partition, wanted);
        return "Begun: this page shows how far it is, and when it is done.";
      };
      return { shown: h("ul", {}, steps.map((step) => h("li", {}, step))), button: `Move to ${wanted.join(", ")}`, act };
    };
    const fields = [
      h("p", { class: "small quiet whole" }, `The preferred leader comes first; the number of replicas may change. Servers: ${app.cluster.servers.map(serverWords).join(", ")}.`),
      serversField("Replicas ", one.replicas),
    ];
    return h("details", { key: `reassign ${topic.topicId}/${one.partition}` }, h("summary", {}, "Reassign the replicas"), this.#forms.planned(app, "reassign", fields, "Preview the move", plan));
  }

  #learners(app, topic, one) {
    const act = async ({ servers }) => {
      const wanted = listOf(servers);
      checkServers(app, wanted);
      await app.log.setLearners(topic.name, one.partition, wanted);
      return `Done: learners ${wanted.join(", ") || "none"}.`;
    };
    const fields = [
      h("p", { class: "small quiet whole" }, "Learners copy the log and do not count for commits. The list replaces the present one; an empty list means none."),
      serversField("Learners ", one.target.length ? [] : one.learners),
    ];
    return h("details", { key: `learners ${topic.topicId}/${one.partition}` }, h("summary", {}, "Set the learners"), this.#forms.form(app, "learners", fields, "Set", act));
  }

  /** A move in progress. */
  #move(app, topic, one, logs) {
    const act = async () => {
      await app.log.cancelReassignment(topic.name, one.partition);
      return "Done: the former replicas stay, or come back.";
    };
    return h(
      "section",
      { class: "card", key: "move", "aria-labelledby": "move" },
      h("h2", { id: "move" }, `On the way to ${one.target.join(", ")}`),
      h("ul", {}, copiesOf(one, logs).map(({ node, words }) => h("li", { key: node }, `${node}: ${words}`))),
      this.#forms.form(app, "cancel", [], "Cancel the move", act),
    );
  }
}

/** What a move does, in sentences. `bytes`: the size of the leader's copy, -1 where it is not known. */
export function stepsOf(one, wanted, bytes) {
  const coming = wanted.filter((node) => !one.replicas.includes(node));
  const going = one.replicas.filter((node) => !wanted.includes(node));
  const size = bytes >= 0 ? ` (${short(bytes, "B")})` : "";
  return [
    ...coming.map((node) => `${node} copies the log${size}, and becomes a replica when it is in sync.`),
    ...going.map((node) => `${node} then goes, and deletes its copy.`),
    coming.length || going.length ? null : "No data moves: only the order changes.",
    going.includes(one.leader) ? `${one.leader} hands over the leadership before it goes.` : null,
    wanted[0] === one.replicas[0] ? null : `${wanted[0]} becomes the preferred leader, in place of ${one.replicas[0]}.`,
    wanted.length === one.replicas.length ? null : `The number of replicas changes from ${one.replicas.length} to ${wanted.length}.`,
  ].filter(Boolean);
}

/** How far each new replica of a move is: `{node, words}`. `logs`: bounds of the logs by server. */
export function copiesOf(one, logs) {
  const leader = logs.get(one.leader);
  return one.target.map((node) => {
    const log = logs.get(node);
    if (one.isr.includes(node)) return { node, words: "in sync" };
    if (!log || !leader) return { node, words: "no answer yet" };
    const all = leader.logEnd - leader.logStart;
    const copied = Math.min(all, Math.max(0, log.logEnd - leader.logStart));
    return { node, words: `${whole(copied)} of ${whole(all)} records are copied${all ? ` (${Math.floor((100 * copied) / all)} %)` : ""}` };
  });
}

function checkServers(app, wanted) {
  const known = app.cluster.servers.map(({ node }) => node);
  const unknown = wanted.filter((node) => !known.includes(node));
  if (unknown.length) throw new RangeError(`there is no server ${unknown.join(", ")}; there are ${known.join(", ")}`);
}

function serverWords({ node, rack, fenced, draining }) {
  const marks = [rack && `rack ${rack}`, fenced && "not heard of", draining && "drained"].filter(Boolean);
  return marks.length ? `${node} (${marks.join(", ")})` : node;
}

function serversField(words, nodes) {
  return h("label", {}, words, h("input", { name: "servers", defaultValue: nodes.join(", "), placeholder: "r1, r2, r3", autocomplete: "off", spellcheck: "false" }));
}
