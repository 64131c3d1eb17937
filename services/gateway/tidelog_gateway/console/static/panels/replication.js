/** What the replica servers do with each other, as it happens: fetches, notices, in-sync sets; how long it takes, who lags. */

import { Flows } from "../cluster/flows.js";
import { h } from "../page/dom.js";
import { reason } from "../page/failures.js";
import { duration, short, whole } from "../page/format.js";
import { Series } from "../page/plot.js";
import { table } from "../page/table.js";
import { figure } from "./rates.js";
import { entry, ofUsers } from "./timeline.js";

const EVERY_MS = 1000;
const PARTS = [["median", 0.5], ["95 %", 0.95], ["99 %", 0.99]];
const LATENCIES = [
  ["tidelog_commit_latency_seconds", "From a batch's append until it is committed"],
  ["tidelog_replica_fetch_latency_seconds", "From a follower's fetch to its answer"],
];
const ISR_EVENTS = new Set(["isr_shrunk", "isr_expanded", "isr_changed", "isr_refused", "elr_changed", "leader_elected", "offline"]);
const EVENTS = 12;
const WIDTH = 640;
const HEIGHT = 320;
const RADIUS = 26;
const BEND = 44;
/** Of more servers no numbers stand at the arrows. */
const NUMBERED = 4;

export class ReplicationPanel {
  #flows;
  #latencies = LATENCIES.map(() => PARTS.map(([name]) => new Series(name)));
  #behind = new Map();
  #seconds = new Map();
  #turn = null;

  /** Measure, until `close`. What was plotted before stays; what is so now is told from two new looks. */
  open(app) {
    this.close();
    this.#flows = new Flows();
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
  }

  #look(app) {
    if (document.hidden || !app.live || !app.cluster || !app.log?.gateway) return;
    const nodes = app.cluster.servers.filter(({ fenced }) => !fenced).map(({ node }) => node);
    this.#flows.ask(app.log, nodes, () => app.draw());
    this.#measure(Date.now());
  }

  #measure(at) {
    LATENCIES.forEach(([metric], i) =>
      PARTS.forEach(([, part], j) => {
        const value = this.#flows.quantile(metric, part);
        if (value !== undefined) this.#latencies[i][j].add(at, value);
      }),
    );
    const behind = new Map();
    const seconds = new Map();
    for (const link of this.#flows.links()) {
      behind.set(link.follower, (behind.get(link.follower) ?? 0) + link.behind);
      seconds.set(link.follower, Math.max(seconds.get(link.follower) ?? 0, link.seconds));
    }
    for (const [all, now] of [[this.#behind, behind], [this.#seconds, seconds]]) {
      for (const [node, value] of now) {
        if (!all.has(node)) all.set(node, new Series(node));
        all.get(node).add(at, value);
      }
    }
  }

  view(app) {
    if (!app.live) return [h("h1", {}, "Replication"), h("p", { class: "quiet" }, "What servers do with each other is not kept in the timeline: it is shown live only.")];
    const { servers } = app.cluster;
    const links = this.#flows.links();
    const refused = servers.map(({ node }) => [node, this.#flows.error(node)]).filter(([, error]) => error);
    return [
      h("h1", {}, "Replication"),
      h("p", { class: "quiet" }, "Followers fetch from leaders, and are notified when something has come while they idle. Per second, of all partitions together."),
      refused.map(([node, error]) => h("p", { class: "bad small" }, `What ${node} counts is not known: ${reason(error)}`)),
      graph(servers, links),
      linksTable(links),
      h("div", { class: "plots" }, this.#plots()),
      isr(app),
    ];
  }

  #plots() {
    const named = (all) => [...all.values()].sort((a, b) => a.name.localeCompare(b.name));
    return [
      LATENCIES.map(([, words], i) => figure(words, this.#latencies[i], duration)),
      figure("Records behind, by follower", named(this.#behind), whole),
      figure("Time behind, by follower", named(this.#seconds), duration),
    ];
  }
}

/** Servers on an ellipse, an arrow from each leader to each follower that copies from it. */
function graph(servers, links) {
  const places = new Map(servers.map(({ node, fenced }, i) => [node, { ...place(i, servers.length), fenced }]));
  const most = Math.max(1, ...links.map(({ bytes }) => bytes));
  return h(
    "figure",
    { class: "graph", role: "img", "aria-label": "Who copies from whom; the table below tells the same" },
    h(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
      links.map((link) => arrow(link, places, most, servers.length <= NUMBERED)),
      [...places].map(([node, { x, y, fenced }]) =>
        h("g", { key: node, class: `server ${fenced ? "bad" : "good"}` }, h("circle", { cx: x, cy: y, r: RADIUS }), h("text", { x, y: y + 6, "text-anchor": "middle" }, node)),
      ),
    ),
  );
}

function place(i, count) {
  const angle = (2 * Math.PI * i) / count - Math.PI / 2;
  return { x: Math.round(WIDTH / 2 + 220 * Math.cos(angle)), y: Math.round(HEIGHT / 2 + 122 * Math.sin(angle)) };
}

/** Bent to one side, so that the way back can be seen beside it. */
function arrow({ leader, follower, fetches, notices, bytes }, places, most, numbered) {
  const [from, to] = [places.get(leader), places.get(follower)];
  if (!from || !to) return null;
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const beside = (far) => ({ x: (from.x + to.x) / 2 - (dy / length) * far, y: (from.y + to.y) / 2 + (dx / length) * far });
  const bend = beside(BEND);
  const [begin, end] = [toward(from, bend, RADIUS + 3), toward(to, bend, RADIUS + 12)];
  const pace = bytes > 0 ? "moving" : fetches + notices > 0 ? "asking" : "still";
  const label = beside(BEND / 2 + 18);
  const anchor = label.x - bend.x > -4 && label.x - bend.x < 4 ? "middle" : dy > 0 ? "end" : "start";
  return h(
    "g",
    { key: `${leader} ${follower}`, class: `flow ${pace}` },
    h("path", { d: `M ${begin.x} ${begin.y} Q ${bend.x} ${bend.y} ${end.x} ${end.y}`, "stroke-width": (1.5 + (3 * bytes) / most).toFixed(1) }),
    h("polygon", { points: "0,-6 11,0 0,6", transform: `translate(${end.x} ${end.y}) rotate(${(Math.atan2(to.y - bend.y, to.x - bend.x) * 180) / Math.PI})` }),
    numbered && bytes > 0 ? h("text", { x: label.x, y: label.y + 4, "text-anchor": anchor }, short(bytes, "B/s")) : null,
  );
}

/** So far from one place on the way to another. */
function toward(from, to, far) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  return { x: from.x + ((to.x - from.x) * far) / length, y: from.y + ((to.y - from.y) * far) / length };
}

function linksTable(links) {
  if (!links.length) return h("p", { class: "quiet small" }, "Nobody copies from anybody: no topic has a second replica. A topic gets it when it is created, or with Reassign the replicas under Partition.");
  const heads = [["Leader"], ["Follower"], ["Fetches", "number"], ["Notices", "number"], ["Bytes", "number"], ["Behind", "number"], ["Last had all", "number"]];
  const cells = (link) => [link.leader, link.follower, short(link.fetches), short(link.notices), short(link.bytes, "B"), whole(link.behind), link.seconds > 0 ? `${duration(link.seconds)} ago` : "now"];
  return table("From leader to follower, per second", heads, links.map((link) => [`${link.leader} ${link.follower}`, cells(link)]));
}

function isr(app) {
  const found = ofUsers(app.history.events).filter(({ event: { record } }) => ISR_EVENTS.has(record.kind));
  return h(
    "section",
    { "aria-labelledby": "isr" },
    h("h2", { id: "isr" }, "In-sync sets and leaders"),
    h("p", { class: "quiet small" }, "The timeline tells of the cluster's own topics, too."),
    found.length ? null : h("p", { class: "quiet" }, "Nothing has changed yet: when a server stops, or comes back, it is told here."),
    h("ol", { class: "events", reversed: true }, found.slice(-EVENTS).reverse().map(({ event, i }) => entry(app, event.record, i))),
  );
}
