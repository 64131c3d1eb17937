/** The page: which panel is shown, live or at a moment of the past, and what is said above and below all of them. */

import { Alerts } from "./cluster/alerts.js";
import { health, pastCluster } from "./cluster/cluster.js";
import { h, render } from "./page/dom.js";
import { clock } from "./page/format.js";
import { GroupsPanel } from "./panels/groups.js";
import { MapPanel } from "./panels/map.js";
import { PartitionPanel } from "./panels/partition.js";
import { PlayPanel } from "./panels/play.js";
import { RatesPanel } from "./panels/rates.js";
import { ReplicationPanel } from "./panels/replication.js";
import { SecurityPanel } from "./panels/security.js";
import { Session } from "./cluster/session.js";
import { Telling } from "./cluster/telling.js";
import { TimeBar } from "./page/timebar.js";
import { TimelinePanel } from "./panels/timeline.js";
import { TopicsPanel } from "./panels/topics.js";
import { TransactionsPanel } from "./panels/transactions.js";

/** Most alerts that are shown; the others are counted. */
const MOST_ALERTS = 4;
const PLAY = new PlayPanel();
const PANELS = [
  { name: "cluster", title: "Cluster", panel: new MapPanel() },
  { name: "partition", title: "Partition", panel: new PartitionPanel() },
  { name: "timeline", title: "Timeline", panel: new TimelinePanel() },
  { name: "topics", title: "Topics", panel: new TopicsPanel() },
  { name: "rates", title: "Rates", panel: new RatesPanel() },
  { name: "replication", title: "Replication", panel: new ReplicationPanel() },
  { name: "groups", title: "Groups", panel: new GroupsPanel() },
  { name: "transactions", title: "Transactions", panel: new TransactionsPanel() },
  { name: "security", title: "Security", panel: new SecurityPanel() },
  { name: "play", title: "Play", panel: PLAY },
];

/** What panels work with: `log`, `cluster` (of the moment that is shown), `history`, `live`, and `draw` to be drawn. */
class App {
  #session;
  #telling = new Telling((caughtUp) => this.#onTold(caughtUp));
  #alerts = new Alerts(() => this.draw());
  #timebar = new TimeBar(this);
  #current = null;
  #drawing = false;
  #past = null;

  constructor() {
    const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}`;
    this.#session = new Session(url, () => this.#onSession());
    addEventListener("hashchange", () => this.#go());
    document.addEventListener("visibilitychange", () => this.#session.hurry());
  }

  /** For ever. */
  run() {
    this.#go();
    return this.#session.run((log) => {
      PLAY.ask(this, log);
      this.#telling.follow(log);
      this.#alerts.follow(log, () => this.#heardOf());
    });
  }

  get log() {
    return this.#session.log;
  }

  /** The id of the token that the page connects with; "": it has none. */
  get tokenId() {
    return this.#session.tokenId;
  }

  get history() {
    return this.#telling.history;
  }

  /** How the timeline is read: see `Telling`. */
  get told() {
    return this.#telling.phase;
  }

  /** The cluster is shown as it is. */
  get live() {
    return this.#past === null;
  }

  /** The cluster at the moment that is shown; null while nothing is known. */
  get cluster() {
    return this.#past ?? this.#session.cluster;
  }

  /** The event after which the cluster is shown: how many there were; all of them when it is shown as it is. */
  get moment() {
    return this.#past?.moment ?? this.history.events.length;
  }

  /** Show the cluster after so many events; null: as it is. */
  show(moment) {
    const event = moment === null ? undefined : this.history.events[moment - 1];
    if (event) this.#past = { ...pastCluster(this.history.after(event.end), this.#session.cluster.cluster), moment };
    else this.#past = null;
    this.draw();
  }

  /** The servers that are heard of, and the active controller. */
  #heardOf() {
    const { cluster } = this.#session;
    if (!cluster) return [];
    return [...cluster.servers.filter(({ fenced }) => !fenced).map(({ node }) => node), ...(cluster.active ? [cluster.active] : [])];
  }

  /** Ask the gateway at once how the cluster is: something was changed. */
  hurry() {
    this.#session.hurry();
  }

  /** Draw everything anew, soon. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#draw();
    });
  }

  #onSession() {
    this.#telling.again(this.#session.log, this.#session.cluster);
    this.draw();
  }

  #onTold(caughtUp) {
    this.#session.told = this.told === "following";
    if (!caughtUp) this.#past = null;
    this.#session.hurry();
    this.draw();
  }

  #go() {
    const [name = "", ...place] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    if (name === "main") return;
    const next = PANELS.find((one) => one.name === name) ?? PANELS[0];
    const turned = this.#current !== null && next !== this.#current;
    if (turned) this.#current.panel.close?.();
    this.#current = next;
    if (turned) document.getElementById("main").focus({ preventScroll: true });
    next.panel.open?.(this, place);
    this.draw();
  }

  #draw() {
    const { phase, cluster } = this.#session;
    document.title = `${this.#current.title} · ${cluster?.cluster ?? "Tidelog"}`;
    document.body.dataset.phase = phase;
    document.body.dataset.time = this.live ? "live" : "past";
    render(document.getElementById("header"), this.#header(cluster));
    render(document.getElementById("notices"), this.#notices());
    const ready = this.cluster !== null && phase !== "token";
    render(document.getElementById("main"), ready ? this.#current.panel.view(this) : this.#waiting());
    if (phase === "token" && document.activeElement === document.body) document.querySelector("[name=token]")?.focus();
    render(document.getElementById("timebar"), ready ? this.#timebar.view() : []);
  }

  #header(cluster) {
    const link = ({ name, title }) =>
      h("a", { href: `#/${name}`, "aria-current": name === this.#current.name ? "page" : null }, title);
    return [
      h("p", { class: "brand" }, "Tidelog", cluster && h("span", { class: "quiet" }, ` ${cluster.cluster}`)),
      h("nav", { "aria-label": "Panels" }, PANELS.filter(({ panel }) => panel !== PLAY || PLAY.nodes).map(link)),
      this.#state(),
    ];
  }

  #state() {
    const { phase, log } = this.#session;
    const words = { connecting: "connecting", up: `live at ${log?.gateway?.node ?? "the gateway"}`, gone: "no gateway", token: "who are you?" };
    return h("p", { class: `phase ${phase}` }, h("span", { class: "lamp", "aria-hidden": "true" }), words[phase]);
  }

  /** Read out when they change. */
  #notices() {
    const { phase, cluster } = this.#session;
    if (phase === "gone") return h("p", { class: "notice bad" }, this.#goneWords());
    if (phase !== "up" || !cluster) return [];
    const { level, words } = health(this.cluster);
    const moment = this.live ? "" : `At ${clock(this.cluster.atMs)}: `;
    const partial = this.cluster.complete ? "" : " What was before the oldest record of the timeline is not known.";
    const state = h("p", { class: `notice ${level}` }, `${moment}${words}${partial}`);
    return this.live ? [state, ...this.#alertNotices()] : state;
  }

  /** What metrics say is wrong, each with what to do. */
  #alertNotices() {
    const found = this.#alerts.found;
    const shown = found.slice(0, MOST_ALERTS).map(({ level, words, help }) => h("p", { key: words, class: `notice ${level}` }, `${words}. `, h("span", { class: "small" }, help)));
    const more = found.length - MOST_ALERTS;
    return more > 0 ? [...shown, h("p", { class: "notice warning" }, `${more} more: 'tidelog doctor' shows all, with their causes.`)] : shown;
  }

  #goneWords() {
    const { cluster, error } = this.#session;
    const { code = "UNREACHABLE", message } = error?.cause ?? {};
    const how = code === "UNREACHABLE" ? "does not answer." : `refuses the connection: ${message}.`;
    const since = cluster ? ` What is shown is of ${clock(cluster.atMs)}.` : "";
    return `The gateway at ${location.host} ${how}${since} Connecting again…`;
  }

  #waiting() {
    if (this.#session.phase !== "token") return h("p", { class: "quiet" }, "Connecting…");
    const onSubmit = (event) => {
      event.preventDefault();
      this.#session.useToken(new FormData(event.target).get("token").trim());
    };
    return h(
      "form",
      { class: "card", onSubmit },
      h("h1", {}, "Who are you?"),
      h("p", { role: "status" }, `${this.#session.error?.message ?? ""}.`),
      h("p", { class: "quiet small" }, "The token is kept until this tab is closed."),
      h("label", {}, "Token ", h("input", { name: "token", type: "password", autocomplete: "off", required: true })),
      h("button", {}, "Connect"),
    );
  }
}

new App().run();
