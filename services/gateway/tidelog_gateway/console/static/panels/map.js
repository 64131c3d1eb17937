/** The cluster on one page: who there is, who leads what, and who is in sync. */

import { DAMAGE, many, worstFirst } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { whole } from "../page/format.js";
import { Flows } from "../cluster/flows.js";
import { picture } from "../cluster/links.js";
import { ServerAdministration } from "./server-administration.js";

/** Partitions of a topic that are shown at first. */
const PARTITIONS = 48;
/** Topics that are shown at first, and that come with each press of the button. */
const TOPICS = 16;
/** States of a partition, from bad to good. */
const STATES = [...DAMAGE].reverse();

/** What a replica may be to its partition, in words. */
export const ROLES = { leader: "leads", synced: "in sync", behind: "not in sync", learner: "learner" };
/** The servers are asked so often who is connected to them. */
const EVERY_MS = 5000;

export class MapPanel {
  #whole = new Set();
  #shown = TOPICS;
  #own = false;
  /** By topic: what is drawn of it, until it changes. */
  #drawn = new WeakMap();
  #wanted = "";
  #flows = new Flows();
  /** The connections that are drawn, as a text. */
  #served = "";
  #turn = null;
  #administration = new ServerAdministration();

  /** Look who is connected with whom, until `close`. */
  open(app) {
    this.close();
    this.#administration.clear();
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
    this.#turn = null;
  }

  #look(app) {
    if (document.hidden || !app.live || !app.cluster?.told || !app.log?.gateway) return;
    const nodes = app.cluster.servers.filter(({ fenced }) => !fenced).map(({ node }) => node);
    this.#flows.ask(app.log, nodes, () => {
      const served = JSON.stringify([...this.#flows.served()]);
      if (served !== this.#served) app.draw();
      this.#served = served;
    });
  }

  view(app) {
    const { cluster } = app;
    if (cluster.servers.some(({ node, fenced }) => !fenced && !this.#flows.has(node))) this.#look(app);
    const topics = worstFirst(cluster.topics.filter(({ name }) => name.includes(this.#wanted)));
    const first = topics.filter(({ internal, damage }) => !internal || damage);
    const shown = first.slice(0, this.#shown);
    const internal = topics.filter(({ internal: is, damage }) => is && !damage);
    const onMore = () => {
      this.#shown += TOPICS;
      app.draw();
    };
    const onToggle = ({ target }) => {
      if (this.#own === target.open) return;
      this.#own = target.open;
      app.draw();
    };
    return [
      h("h1", { class: "unseen" }, "Cluster"),
      h(
        "div",
        { class: "planes" },
        group(cluster, "Gateways", gateways(app)),
        group(cluster, "Controllers", controllers(cluster)),
        group(cluster, "Replica servers", cluster.servers.map(server)),
        cluster.told ? h("section", { "aria-labelledby": "links", class: "plane" }, h("h2", { id: "links" }, "Connections"), picture(cluster, cluster.live ? this.#flows.served() : new Map())) : null,
      ),
      app.live ? h("section", { key: "administration", "aria-label": "Administration of servers" }, this.#administration.view(app)) : null,
      h(
        "section",
        { "aria-labelledby": "topics" },
        h("div", { class: "row" }, h("h2", { id: "topics" }, "Topics"), this.#search(app)),
        first.length ? null : this.#wanted ? h("p", { class: "quiet" }, "No topic has that in its name: type less of it, or empty the field.") : h("p", { class: "quiet" }, "There are no topics yet: create one under ", h("a", { href: "#/topics" }, "Topics"), "."),
        shown.map((topic) => this.#topic(app, topic)),
        first.length > shown.length
          ? h("p", { key: "more", class: "acts" }, h("button", { onClick: onMore }, `Show ${Math.min(TOPICS, first.length - shown.length)} more`), h("span", { class: "small quiet" }, `${whole(shown.length)} of ${many(first.length, "topic")}, the worst first; all are under `, h("a", { href: "#/topics" }, "Topics"), "."))
          : null,
        internal.length
          ? h("details", { key: "internal", onToggle }, h("summary", {}, `The cluster's own: ${many(internal.length, "topic")}`), this.#own ? internal.map((topic) => this.#topic(app, topic)) : null)
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
    const all = this.#whole.has(topic.name) || topic.partitions.length <= PARTITIONS;
    let drawn = this.#drawn.get(topic);
    if (drawn?.all !== all) {
      drawn = { all, card: this.#card(app, topic, all) };
      this.#drawn.set(topic, drawn);
    }
    return drawn.card;
  }

  #card(app, topic, all) {
    const { name, partitions } = topic;
    const worst = [...partitions].sort((a, b) => rank(a) - rank(b));
    const onClick = () => {
      this.#whole.add(name);
      app.draw();
    };
    return h(
      "article",
      { key: `topic ${topic.topicId}`, class: "topic" },
      h("h3", {}, h("a", { href: `#/topics/${encodeURIComponent(name)}` }, name), h("span", { class: "quiet small" }, ` ${many(partitions.length, "partition")}`)),
      h("ul", { class: "chips" }, (all ? partitions : worst.slice(0, PARTITIONS)).map((one) => h("li", { key: one.partition }, chip(name, one)))),
      all ? null : h("button", { onClick }, `Show all ${partitions.length}`),
    );
  }
}

/** Partitions with a smaller one are worse. */
function rank({ state }) {
  return STATES.indexOf(state === "ok" ? "" : state);
}

/** Why there is nothing, and what to do. */
function why({ told, live }, title) {
  if (title === "Replica servers") return "None has registered yet: start one with tidelog replica.";
  if (!told) return "Not told to these rights (describe cluster): an administrator can allow it with tidelog acls add.";
  return live ? "Not known yet: this comes with the next answer of the controllers." : "The timeline does not tell of them: press Now at the bottom.";
}

function group(cluster, title, cards) {
  const id = title.toLowerCase().replace(" ", "-");
  return h("section", { "aria-labelledby": id, class: "plane" }, h("h2", { id }, title), cards.length ? h("ul", { class: "nodes" }, cards) : h("p", { class: "quiet" }, why(cluster, title)));
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
  return [...names].sort().map((name) => node(name, name, "good", [cluster.gatewayUrls[name]], name === here ? [["this one", "good"]] : []));
}

function controllers({ controllers: all, active, term }) {
  return all.map((one) => {
    const marks = [
      ...(one.node === active ? [["active", "good"]] : []),
      ...(one.voter ? [] : [["no vote", "warning"]]),
      ...(one.lost ? [["store lost", "bad"]] : []),
      ...(one.rolled_back ? [["old disk, being refilled", "bad"]] : []),
      ...(one.behind ? [[`${one.behind} behind`, "warning"]] : []),
    ];
    return node(one.node, one.node, one.lost || one.rolled_back ? "bad" : "good", [one.url, one.node === active ? `term ${term}` : ""], marks);
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

/** A partition: number, replicas with the leader first, leader epoch. Who hears the page is told the same in words. */
function chip(topic, one) {
  const order = [...one.replicas].sort((a, b) => (b === one.leader) - (a === one.leader));
  const copies = [...order, ...one.learners].map((name) => [name, roleOf(one, name)]);
  const last = one.state === "offline" ? "no leader" : one.state === "paused" ? "paused" : `e${one.leaderEpoch}`;
  const said = copies.map(([name, role]) => `${name} ${ROLES[role]}`);
  return h(
    "a",
    {
      class: `chip ${one.state}`,
      href: `#/partition/${encodeURIComponent(topic)}/${one.partition}`,
      "aria-label": `${topic} partition ${one.partition}: ${said.join(", ")}, ${last.replace(/^e(?=\d)/, "leader epoch ")}`,
    },
    h("b", {}, String(one.partition)),
    copies.map(([name, role]) => h("span", { class: `replica ${role}` }, name)),
    h("small", {}, last),
  );
}

/** What a replica is to its partition: one of `ROLES`. */
export function roleOf(one, name) {
  if (name === one.leader) return "leader";
  if (one.learners.includes(name)) return "learner";
  return one.isr.includes(name) ? "synced" : "behind";
}

function legend() {
  return h("p", { class: "legend small quiet" }, Object.entries(ROLES).map(([kind, words]) => h("span", {}, h("span", { class: `replica ${kind}` }, "r"), ` ${words}`)), h("span", {}, h("small", {}, "e3"), " leader epoch 3"));
}
