/** With the nodes of `tidelog dev` only: kill, pause, cut off and heal them, and see beside it what the cluster makes of it. */

import { h } from "../page/dom.js";
import { reason } from "../page/failures.js";
import { Steps } from "./steps.js";
import { Incidents, NOTHING, ofUsers } from "./timeline.js";

const EVERY_MS = 2000;
const EVENTS = 12;
const REFUSED = new Set(["UNSUPPORTED", "FORBIDDEN"]);
const ACTS = [
  ["kill", "Kill", "it ends at once; its data stays"],
  ["pause", "Pause", "it is silent, its connections stay, as of a process that hangs"],
  ["cut", "Cut off", "its connections break and nobody reaches it"],
  ["heal", "Heal", "it runs, and is reached"],
];

export class PlayPanel {
  /** The nodes; null where there is nothing to play with. */
  nodes = null;
  #said = "";
  #turn = null;
  #steps = new Steps();
  #incidents = new Incidents();

  /** Find out whether there is something to play with here. No answer leaves it as it was: the panel stays. */
  async ask(app, log) {
    try {
      this.nodes = await log.play();
    } catch (error) {
      if (REFUSED.has(error.code)) this.nodes = null;
    }
    app.draw();
  }

  /** Look what the nodes do, until `close`: others may play, too. */
  open(app) {
    this.close();
    this.#turn = setInterval(() => !document.hidden && app.log?.gateway && this.ask(app, app.log), EVERY_MS);
    if (app.log) this.ask(app, app.log);
  }

  close() {
    clearInterval(this.#turn);
  }

  view(app) {
    if (!this.nodes) return h("p", { class: "quiet" }, "There is nothing to play with here: only the nodes of tidelog dev can be killed, paused and cut off. Run it beside this cluster, and open its console.");
    const { events } = app.history;
    const newest = this.#incidents.of(events, "", () => ofUsers(events)).slice(-EVENTS).reverse();
    return [
      h("h1", {}, "Play"),
      h("p", { class: "quiet" }, "This cluster runs in one process, for development. Do something to a node, and look what the others do; with ◀ and ▶ at the bottom step through it, event by event, in any panel."),
      h("ul", { class: "played" }, this.nodes.map((one) => this.#node(app, one))),
      h("p", { role: "status", class: "small" }, this.#said),
      h("dl", { class: "small quiet" }, ACTS.map(([, name, words]) => h("div", {}, h("dt", {}, name), h("dd", {}, words)))),
      this.#steps.view(app),
      h("section", { "aria-labelledby": "then" }, h("h2", { id: "then" }, "What happened"), h("ol", { class: "events", reversed: true }, newest.map((incident) => this.#incidents.line(app, incident))), newest.length ? null : h("p", { class: "quiet" }, NOTHING[app.told])),
    ];
  }

  #node(app, { node, state }) {
    const may = { kill: state !== "killed", pause: state === "running" || state === "cut", cut: state === "running" || state === "paused", heal: state !== "running" };
    return h(
      "li",
      { key: node, class: `node ${state === "running" ? "good" : "bad"}` },
      h("strong", {}, node),
      h("span", { class: `mark ${state === "running" ? "good" : "bad"}` }, state),
      h("div", { class: "acts" }, ACTS.map(([act, name]) => h("button", { disabled: !may[act], onClick: () => this.#play(app, node, act), "aria-label": `${name} ${node}` }, name))),
    );
  }

  async #play(app, node, act) {
    this.#said = `${act} ${node}…`;
    app.draw();
    try {
      this.nodes = await app.log.play(node, act);
      this.#said = `${node} is ${this.nodes.find((one) => one.node === node).state} now.`;
    } catch (error) {
      this.#said = `Not done: ${reason(error)}`;
    }
    app.draw();
  }
}
