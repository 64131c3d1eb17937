/** What is done to a consumer group: its offsets are reset, after a preview, or it is deleted. */

import { many } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { confirmation, Forms } from "../page/forms.js";
import { whole } from "../page/format.js";
import { table } from "../page/table.js";
import { offsetOf, timeOf } from "../page/typed.js";

/** Partitions that a preview lists. */
const SHOWN = 50;
/** Names that a field of topics proposes. */
const PROPOSED = 500;
const PLACES = [
  ["earliest", "earliest: the first record that there is"],
  ["latest", "latest: records that come from now on"],
  ["offset", "an offset"],
  ["time", "the first record from a time on"],
];

export class GroupAdministration {
  #forms = new Forms();
  #place = "earliest";

  /** Begin anew, for another group. */
  open() {
    this.#forms.clear();
    this.#place = "earliest";
  }

  /** The forms. `described`: what is known of the group, or null; `partitions`: where it has offsets or members. */
  view(app, name, described, partitions) {
    const members = described?.members.length ?? 0;
    const note = members ? h("p", { class: "quiet" }, `The group has ${many(members, "member")}. End its consumers before you reset or delete it.`) : null;
    return h("div", { key: "doing", class: "doing" }, this.#reset(app, name, partitions, note), described ? this.#delete(app, name, note) : null);
  }

  #reset(app, name, partitions, note) {
    const known = [...new Set(partitions.filter(({ offset }) => offset !== undefined).map(({ topic }) => topic))].sort();
    const others = app.cluster.topics.filter((topic) => !topic.internal && !known.includes(topic.name)).map((topic) => topic.name);
    const setPlace = (event) => {
      this.#place = event.target.value;
      app.draw();
    };
    const fields = [
      h("label", {}, "Topic ", h("input", { name: "topic", list: "reset-topics", placeholder: known.length ? "all" : "", required: !known.length, autocomplete: "off", spellcheck: "false" })),
      h("datalist", { id: "reset-topics" }, [...known, ...others].slice(0, PROPOSED).map((topic) => h("option", { key: topic, value: topic }))),
      h("label", {}, "Partitions ", h("input", { name: "partitions", placeholder: "all", autocomplete: "off", title: "numbers and ranges, such as 0 3 5-7" })),
      h("label", {}, "To ", h("select", { name: "place", onChange: setPlace }, PLACES.map(([value, words]) => h("option", { value }, words)))),
      this.#place === "offset" ? h("label", { key: "offset" }, "Offset ", h("input", { name: "offset", type: "number", min: 0, required: true })) : null,
      this.#place === "time" ? h("label", { key: "time" }, "Time ", h("input", { name: "time", type: "datetime-local", step: 1, required: true })) : null,
      h("p", { class: "whole quiet small" }, "Without a topic all are reset in which the group has committed offsets. Partitions are numbers and ranges, such as 0 3 5-7. Consumers go on at the new offsets: earlier ones bring records again, later ones skip some."),
    ];
    return h("details", { key: "reset" }, h("summary", {}, "Reset offsets"), note, this.#forms.planned(app, "reset", fields, "Preview", (given) => planReset(app.log, name, known, given)));
  }

  #delete(app, name, note) {
    const act = async () => {
      await app.log.deleteGroup(name);
      location.hash = "#/groups";
      return `${name} is deleted.`;
    };
    const fields = [h("p", { class: "whole quiet small" }, "Its committed offsets are deleted with it; records stay. This cannot be undone."), confirmation(name)];
    return h("details", { key: "delete" }, h("summary", {}, "Delete the group"), note, this.#forms.form(app, "delete", fields, "Delete", act));
  }
}

/** What a reset would do, as `Forms.planned` wants it. `known`: topics in which the group has committed offsets. */
async function planReset(log, group, known, { topic, partitions, place, offset, time }) {
  const numbers = rangesOf(partitions);
  const where = { earliest: "earliest", latest: "latest", offset: offset && offsetOf(offset), time: timeOf(time) }[place];
  const changes = [];
  for (const name of topic ? [topic] : known) {
    const described = await log.describe(name, { offsets: true });
    const missing = numbers?.find((one) => one >= described.partitions.length);
    if (missing !== undefined) throw new RangeError(`${name} has no partition ${missing}`);
    const before = await log.fetchOffsets(group, name);
    const wanted = numbers ?? (topic ? described.partitions.map((one) => one.partition) : [...before.keys()]);
    const after = typeof where === "number" ? new Map(wanted.map((one) => [one, { offset: where }])) : await log.listOffsets(described, where, wanted);
    for (const [partition, { offset: to }] of after) {
      changes.push({ topic: name, partition, from: before.get(partition)?.offset, to, ...described.partitions[partition] });
    }
  }
  if (!changes.length) return "There is nothing to reset: the group has no committed offset there. Name a topic.";
  if (changes.every(({ from, to }) => from === to)) return `Nothing would change: ${many(changes.length, "partition")} stand there already.`;
  const act = async () => {
    for (const name of new Set(changes.map((one) => one.topic))) {
      const of = changes.filter((one) => one.topic === name);
      await log.resetGroup(group, name, new Map(of.map(({ partition, to }) => [partition, to])));
    }
    return `Done: ${many(changes.length, "partition")} reset.`;
  };
  return { shown: shownReset(changes), button: "Reset", act };
}

function shownReset(changes) {
  const words = ({ from, to, logStart, highWatermark }) => {
    if (highWatermark >= 0 && to > highWatermark) return `behind the end, ${whole(highWatermark)}: consumers will fail`;
    if (logStart > to) return `before the log start, ${whole(logStart)}: consumers will fail`;
    if (from === undefined) return "its first offset";
    if (from === to) return "stays";
    return to < from ? `${many(from - to, "record")} again` : `${many(to - from, "record")} skipped`;
  };
  return [
    table(
      "Preview of the reset",
      [["Partition"], ["Committed offset", "number"], ["New offset", "number"], ["Effect"]],
      changes.slice(0, SHOWN).map((one) => [`${one.topic}/${one.partition}`, [`${one.topic}/${one.partition}`, one.from === undefined ? "none" : whole(one.from), whole(one.to), words(one)]]),
    ),
    changes.length > SHOWN ? h("p", { class: "small quiet" }, `And ${many(changes.length - SHOWN, "more partition")}.`) : null,
  ];
}

/** The numbers of partitions in a text such as `0 3 5-7`, ascending. Of nothing undefined; throws `RangeError`. */
function rangesOf(text) {
  const numbers = new Set();
  for (const part of text.split(/[\s,]+/).filter(Boolean)) {
    const [, first, last = first] = part.match(/^(\d{1,6})(?:-(\d{1,6}))?$/) ?? [];
    if (first === undefined || Number(last) < Number(first)) throw new RangeError(`"${part}" is no partition and no range such as 5-7`);
    for (let one = Number(first); one <= Number(last); one++) numbers.add(one);
  }
  return numbers.size ? [...numbers].sort((a, b) => a - b) : undefined;
}
