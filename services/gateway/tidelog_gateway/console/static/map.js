/** The cluster on one page: who there is, who leads what, and who is in sync. */

import { many } from "./cluster.js";
import { h } from "./dom.js";

/** Partitions of a topic that are shown at first. */
const PARTITIONS = 48;

export class MapPanel {
  #whole = new Set();
  #wanted = "";

  view(app) {
    const { cluster } = app;
    const topics = cluster.topics.filter(({ name }) => name.includes(this.#wanted));
    const own = topics.filter(({ internal }) => !internal);
    const internal = topics.filter(({ internal: is }) => is);
    return [
      h("h1", { class: "unseen" }, "Cluster"),
      h(
        "div",
        { class: "planes" },
        group(cluster, "Gateways", gateways(app)),
        group(cluster, "Controllers", controllers(cluster)),
        group(cluster, "Replica servers", cluster.servers.map(server)),
      ),
      h(
        "section",
        { "aria-labelledby": "topics" },
        h("div", { class: "row" }, h("h2", { id: "topics" }, "Topics"), this.#search(app)),
        own.length ? null : h("p", { class: "quiet" }, this.#wanted ? "No topic has that in its name." : "There are no topics yet."),
        own.map((topic) => this.#topic(app, topic)),
        internal.length
          ? h("details", { key: "internal" }, h("summary", {}, `The cluster's own: ${many(internal.length, "topic")}`), internal.map((topic) => this.#topic(app, topic)))
          : null,
        legend(),
      ),
    ];
  }

  #search(app) {
    const onInput = (event) => {
      this.#wanted = event.target.value;
      app.draw();
    };
    return h("label", { class: "small" }, "Name contains ", h("input", { type: "search", onInput }));
  }

  #topic(app, topic) {
    const { name, partitions } = topic;
    const all = this.#whole.has(name) || partitions.length <= PARTITIONS;
    const onClick = () => {
      this.#whole.add(name);
      app.draw();
    };
    return h(
      "article",
      { key: `topic ${topic.topicId}`, class: "topic" },
      h("h3", {}, h("a", { href: `#/topics/${encodeURIComponent(name)}` }, name), h("span", { class: "quiet small" }, ` ${many(partitions.length, "partition")}`)),
      h("ul", { class: "chips" }, (all ? partitions : partitions.slice(0, PARTITIONS)).map((one) => h("li", { key: one.partition }, chip(name, one)))),
      all ? null : h("button", { onClick }, `Show all ${partitions.length}`),
    );
  }
}

function group({ told }, title, cards) {
  const id = title.toLowerCase().replace(" ", "-");
  return h("section", { "aria-labelledby": id, class: "plane" }, h("h2", { id }, title), cards.length ? h("ul", { class: "nodes" }, cards) : h("p", { class: "quiet" }, told ? "Not known." : "Not told to these rights (describe cluster)."));
}

function node(key, name, state, lines, marks = []) {
  return h(
    "li",
    { key, class: `node ${state}` },
    h("strong", {}, name),
    marks.map(([text, level]) => h("span", { class: `mark ${level}` }, text)),
    lines.filter(Boolean).map((line) => h("div", { class: "quiet small" }, line)),
  );
}

function gateways({ cluster, log }) {
  const here = cluster.live ? log?.gateway?.node : null;
  const names = new Set([...(here ? [here] : []), ...cluster.gateways]);
  return [...names].sort().map((name) => node(name, name, "good", [], name === here ? [["this one", "good"]] : []));
}

function controllers({ controllers: all, active, term }) {
  return all.map((one) => {
    const marks = [
      ...(one.node === active ? [["active", "good"]] : []),
      ...(one.voter ? [] : [["no vote", "warning"]]),
      ...(one.lost ? [["store lost", "bad"]] : []),
      ...(one.behind ? [[`${one.behind} behind`, "warning"]] : []),
    ];
    return node(one.node, one.node, one.lost ? "bad" : "good", [one.url, one.node === active ? `term ${term}` : ""], marks);
  });
}

function server(one) {
  const marks = [
    ...(one.fenced ? [["not heard of", "bad"]] : []),
    ...(one.draining ? [["drained", "warning"]] : []),
    ...(one.behind ? [[`${one.behind} not in sync`, "warning"]] : []),
  ];
  const lines = [one.url, `leads ${one.leads}, follows ${one.follows}`, one.rack ? `rack ${one.rack}` : ""];
  return node(one.node, one.node, one.fenced ? "bad" : "good", lines, marks);
}

/** A partition: number, replicas with the leader first, leader epoch. */
function chip(topic, one) {
  const order = [...one.replicas].sort((a, b) => (b === one.leader) - (a === one.leader));
  return h(
    "a",
    { class: `chip ${one.state}`, href: `#/partition/${encodeURIComponent(topic)}/${one.partition}`, "aria-label": inWords(topic, one) },
    h("b", {}, String(one.partition)),
    order.map((name) => h("span", { class: `replica ${roleOf(one, name)}` }, name)),
    one.learners.map((name) => h("span", { class: "replica learner" }, name)),
    h("small", {}, one.state === "offline" ? "no leader" : one.state === "paused" ? "paused" : `e${one.leaderEpoch}`),
  );
}

/** What a replica is to its partition. */
export function roleOf(one, name) {
  if (name === one.leader) return "leader";
  if (one.learners.includes(name)) return "learner";
  return one.isr.includes(name) ? "synced" : "behind";
}

function inWords(topic, one) {
  const behind = one.replicas.filter((name) => !one.isr.includes(name));
  const leader = one.leader ? `led by ${one.leader} in leader epoch ${one.leaderEpoch}` : "without a leader";
  const more = behind.length ? `, not in sync: ${behind.join(", ")}` : "";
  return `${topic} partition ${one.partition}: ${leader}, in sync: ${one.isr.join(", ") || "nobody"}${more}`;
}

function legend() {
  const entries = [["leader", "leads"], ["synced", "in sync"], ["behind", "not in sync"], ["learner", "learner"]];
  return h("p", { class: "legend small quiet" }, entries.map(([kind, words]) => h("span", {}, h("span", { class: `replica ${kind}` }, "r"), ` ${words}`)), h("span", {}, h("small", {}, "e3"), " leader epoch 3"));
}
