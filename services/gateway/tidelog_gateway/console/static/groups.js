/** Consumer groups: who has what, and how far behind. */

import { many } from "./cluster.js";
import { h } from "./dom.js";
import { clock, whole } from "./format.js";
import { figure } from "./rates.js";
import { Series } from "./plot.js";

const EVERY_MS = 2000;

export class GroupsPanel {
  #name = null;
  #groups = null;
  #group = null;
  #error = null;
  #lag = new Series("records behind");
  #turn = null;
  #asking = false;

  /** Look at a group, until `close`. */
  open(app, [name]) {
    this.close();
    this.#name = name ?? null;
    this.#group = null;
    this.#error = null;
    this.#lag = new Series("records behind");
    this.#turn = setInterval(() => this.#look(app), EVERY_MS);
    this.#look(app);
  }

  close() {
    clearInterval(this.#turn);
  }

  async #look(app) {
    if (document.hidden || this.#asking || !app.log?.gateway || !app.cluster) return;
    this.#asking = true;
    const name = this.#name;
    try {
      this.#groups = await app.log.groups();
      const group = name === null ? null : await withLags(app, await app.log.describeGroup(name));
      if (name === this.#name) this.#take(group);
    } catch (error) {
      this.#error = error;
    }
    this.#asking = false;
    app.draw();
  }

  #take(group) {
    this.#error = null;
    this.#group = group;
    const lag = group?.positions.reduce((sum, position) => sum + (position.lag ?? 0), 0);
    if (group) this.#lag.add(Date.now(), lag);
  }

  view(app) {
    if (!this.#groups && !this.#error) this.#look(app);
    return [
      h("h1", {}, "Consumer groups"),
      app.live ? null : h("p", { class: "quiet" }, "Groups are shown as they are now: the timeline does not tell of them."),
      this.#error ? h("p", { class: "bad", role: "status" }, `Not known: ${this.#error.message}`) : null,
      this.#groups ? this.#list() : null,
      this.#group ? this.#details() : null,
    ];
  }

  #list() {
    if (!this.#groups.length) return h("p", { class: "quiet" }, "There are no consumer groups yet: one is there as soon as a consumer reads with its name, as in tidelog consume TOPIC --group NAME.");
    const link = ({ group }) => h("a", { href: `#/groups/${encodeURIComponent(group)}`, "aria-current": group === this.#name ? "true" : null }, group);
    return table(
      "Groups",
      ["Group", "State", "Members", "Coordinator"],
      this.#groups.map((one) => [one.group, [link(one), one.state, one.members, one.coordinator || "–"]]),
    );
  }

  #details() {
    const { members, positions, state, assignor, generation } = this.#group;
    const shares = (list) => list.map((share) => `${share.topic || share.topicId} ${share.partitions.join(" ")}`).join("; ") || "–";
    return [
      h("h2", {}, this.#name),
      h("p", {}, `${state}, ${many(members.length, "member")}, assignor ${assignor}, generation ${generation}.`),
      figure("Records behind, all partitions together", [this.#lag], whole),
      h("h3", {}, "Positions"),
      table(
        "Positions",
        ["Partition", "Next offset", "High watermark", "Behind", "Committed at"],
        positions.map((one) => [`${one.topicId}/${one.partition}`, [`${one.topic}/${one.partition}`, whole(one.offset), one.end === undefined ? "?" : whole(one.end), one.lag === undefined ? "?" : whole(one.lag), one.committedMs > 0 ? clock(one.committedMs) : "–"]]),
      ),
      h("h3", {}, "Members"),
      table(
        "Members",
        ["Member", "Program", "Has", "Gives up"],
        members.map((one) => [one.member, [`${one.instance || one.member.slice(0, 8)}${one.away ? " (away)" : ""}`, one.node || "–", shares(one.assignment), shares(one.leaving)]]),
      ),
    ];
  }
}

/** The group with `topic`, `end` (what is committed in the log) and `lag` of each position, where they are known. */
async function withLags(app, group) {
  const named = new Map(app.cluster.topics.map((topic) => [topic.topicId, topic.name]));
  const topics = [...new Set(group.positions.map(({ topicId }) => topicId))].filter((id) => named.has(id));
  const ends = new Map();
  for (const id of topics) {
    const { partitions } = await app.log.describe(named.get(id), { offsets: true });
    for (const { partition, highWatermark } of partitions) if (highWatermark >= 0) ends.set(`${id}/${partition}`, highWatermark);
  }
  const positions = group.positions.map((position) => {
    const end = ends.get(`${position.topicId}/${position.partition}`);
    const lag = end === undefined ? undefined : Math.max(0, end - position.offset);
    return { ...position, topic: named.get(position.topicId) ?? position.topicId, end, lag };
  });
  return { ...group, positions };
}

function table(words, heads, rows) {
  return h(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": words },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map(([key, cells]) => h("tr", { key }, cells.map((cell) => h("td", {}, typeof cell === "object" ? cell : String(cell)))))),
    ),
  );
}
