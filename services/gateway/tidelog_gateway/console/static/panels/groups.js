/** Consumer groups: all of them with their lag, and of one who has what and how far it is behind. */

import { many } from "../cluster/cluster.js";
import { Lags } from "../cluster/lags.js";
import { h } from "../page/dom.js";
import { unknown } from "../page/failures.js";
import { clock, whole } from "../page/format.js";
import { Series } from "../page/plot.js";
import { facts, fold, table } from "../page/table.js";
import { GroupAdministration } from "./group-administration.js";
import { figure } from "./rates.js";

/** Groups are asked for again after 20 times as long as it took, and not sooner than this. */
const LEAST_MS = 2000;
const SPARING = 20;
const TURN_MS = 500;
/** Groups that are shown at first, and that come with each press of the button. */
const SHOWN = 20;
/** The same for the partitions of a group. */
const PARTITIONS = 50;
const STATES = ["moving", "stable", "empty"];

export class GroupsPanel {
  #name = null;
  #groups = null;
  #error = null;
  #lags = new Lags();
  #lag = new Series("records behind");
  #turn = null;
  #asking = false;
  #due = 0;
  #wanted = "";
  #shown = SHOWN;
  #partitions = PARTITIONS;
  #administration = new GroupAdministration();

  /** Show all groups, or one of them, until `close`. */
  open(app, [name]) {
    this.close();
    this.#name = name || null;
    this.#error = null;
    this.#due = 0;
    this.#partitions = PARTITIONS;
    this.#lag = new Series("records behind");
    this.#administration.open();
    this.#turn = setInterval(() => this.#look(app), TURN_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
  }

  async #look(app) {
    if (document.hidden || this.#asking || performance.now() < this.#due || !app.log?.gateway || !app.cluster) return;
    this.#asking = true;
    const [name, began] = [this.#name, performance.now()];
    try {
      if (name === null) this.#groups = await app.log.groups();
      const [shown, others] = name === null ? this.#parts() : [[name], []];
      await this.#lags.look(app.log, app.cluster.topics, shown, others, () => app.draw());
      this.#error = null;
      const found = this.#lags.of(name);
      if (found?.group && name === this.#name) this.#lag.add(Date.now(), found.lag);
    } catch (error) {
      this.#error = error;
    }
    this.#asking = false;
    if (name === this.#name) this.#due = performance.now() + Math.max(LEAST_MS, SPARING * (performance.now() - began));
    app.draw();
  }

  view(app) {
    this.#look(app);
    const past = app.live ? null : h("p", { class: "quiet" }, "Groups are shown as they are now: the timeline does not tell of them.");
    return this.#name === null ? this.#list(app, past) : this.#one(app, past);
  }

  // --- all ---

  /** Those with the name that is wanted, the largest known lag first, then by state. */
  #candidates() {
    const found = (this.#groups ?? []).filter(({ group }) => group.includes(this.#wanted));
    const lagOf = ({ group }) => this.#lags.of(group)?.lag ?? -1;
    return found.sort((a, b) => lagOf(b) - lagOf(a) || STATES.indexOf(a.state) - STATES.indexOf(b.state));
  }

  /** The names of the groups that are shown, and of all others. */
  #parts() {
    const names = [...new Set([...this.#candidates(), ...this.#groups].map(({ group }) => group))];
    const count = Math.min(this.#shown, this.#candidates().length);
    return [names.slice(0, count), names.slice(count)];
  }

  #list(app, past) {
    const change = (act) => (event) => {
      act(event.target);
      this.#due = 0;
      app.draw();
    };
    return [
      h("div", { class: "row" }, h("h1", {}, "Consumer groups"), h("label", { class: "small" }, "Name contains ", h("input", { type: "search", onInput: change(({ value }) => (this.#wanted = value)) }))),
      past,
      this.#error ? unknown(this.#error) : null,
      this.#groups ? this.#table(change) : null,
    ];
  }

  #table(change) {
    const found = this.#candidates();
    if (!found.length) {
      if (this.#wanted) return h("p", { class: "quiet" }, "No group has that in its name.");
      const command = h("code", {}, "tidelog consume TOPIC --group NAME");
      return h("p", { class: "quiet" }, "There are no consumer groups yet, or these rights reach none. A group is there as soon as a consumer reads with its name: ", command, ". docs/groups.md has the rest.");
    }
    const shown = found.slice(0, this.#shown);
    const known = found.filter(({ group }) => this.#lags.of(group)).length;
    const link = ({ group }) => h("a", { href: `#/groups/${encodeURIComponent(group)}` }, group);
    return [
      table(
        "Groups",
        [["Group"], ["State"], ["Members", "number"], ["Lag", "number"], ["Coordinator"]],
        shown.map((one) => [one.group, [link(one), stateMark(one.state, this.#lags.of(one.group)?.lag), one.members, lagWords(this.#lags.of(one.group)), one.coordinator || "none"]]),
      ),
      fold(shown.length, found.length, SHOWN, `${whole(shown.length)} of ${many(found.length, "group")}, the largest known lag first. It is known of ${whole(known)}; the others are asked for in turn.`, change(() => (this.#shown += SHOWN))),
    ];
  }

  // --- one ---

  #one(app, past) {
    const found = this.#lags.of(this.#name);
    return [
      h("div", { class: "row" }, h("h1", {}, this.#name), h("a", { href: "#/groups", class: "small" }, "All groups")),
      past,
      this.#error || found?.error ? unknown(this.#error ?? found.error) : null,
      found?.group ? this.#facts(found) : null,
      found ? this.#administration.view(app, this.#name, found.group ?? null, found.partitions ?? []) : null,
      found?.group ? this.#details(app, found) : null,
    ];
  }

  #facts(found) {
    const { state, members, assignor, generation, coordinator } = found.group;
    return facts([["State", stateMark(state, found.lag)], ["Members", whole(members.length)], ["Lag", lagWords(found)], ["Assignor", assignor], ["Generation", generation], ["Coordinator", coordinator || "none"]]);
  }

  #details(app, { group: { members }, partitions }) {
    const shares = (list) => list.map((share) => `${share.topic || share.topicId} ${share.partitions.join(" ")}`).join("; ") || "–";
    const number = (value) => (value === undefined ? "?" : whole(value));
    const shown = partitions.slice(0, this.#partitions);
    const names = new Map(members.map((one) => [one.instance || one.member, nameOf(one)]));
    return [
      figure("Records behind, all partitions together", [this.#lag], whole),
      h("h2", {}, "Partitions"),
      partitions.length
        ? table(
            "Partitions",
            [["Partition"], ["Member"], ["Committed offset", "number"], ["End offset", "number"], ["Lag", "number"], ["Committed at"]],
            shown.map((one) => [`${one.topicId}/${one.partition}`, [`${one.topic}/${one.partition}`, names.get(one.member) ?? "none", one.offset === undefined ? "none" : whole(one.offset), number(one.end), number(one.lag), one.committedMs > 0 ? clock(one.committedMs) : "–"]]),
          )
        : h("p", { class: "quiet" }, "The group has no committed offset, and no member has a partition."),
      fold(shown.length, partitions.length, PARTITIONS, `${whole(shown.length)} of ${many(partitions.length, "partition")}, the largest lag first.`, () => ((this.#partitions += PARTITIONS), app.draw())),
      h("h2", {}, "Members"),
      members.length
        ? table(
            "Members",
            [["Member"], ["Program"], ["Has"], ["Gives up"]],
            members.map((one) => [one.member, [nameOf(one), one.node || "–", shares(one.assignment), shares(one.leaving)]]),
          )
        : h("p", { class: "quiet" }, "No consumer is in the group. It keeps its offsets until they are deleted, or expire."),
    ];
  }
}

/** The name of a static member, or the beginning of a random one. */
function nameOf({ member, instance, away }) {
  return `${instance || member.slice(0, 8)}${away ? " (away)" : ""}`;
}

/** The state of a group; it stands out if nobody works on its lag. */
function stateMark(state, lag) {
  if (state === "empty" && !lag) return state;
  return h("span", { class: `mark ${state === "stable" ? "good" : "warning"}` }, state);
}

function lagWords(found) {
  if (!found) return "…";
  if (found.error) return "?";
  return `${found.whole ? "" : "≥ "}${whole(found.lag)}`;
}
