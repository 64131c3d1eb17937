/** Transactions that hang: open in the log of a partition, where readers wait for them, and known to no coordinator. */

import { many } from "../cluster/cluster.js";
import { h } from "../page/dom.js";
import { Forms } from "../page/forms.js";
import { duration, whole } from "../page/format.js";
import { table } from "../page/table.js";

/** Names that the field of topics proposes. */
const PROPOSED = 500;

export class Hanging {
  #forms = new Forms();

  /** Forget what was planned. */
  close() {
    this.#forms.clear();
  }

  /** The form that looks for those in a topic, and ends them. */
  view(app) {
    const topics = app.cluster.topics.filter(({ internal }) => !internal).slice(0, PROPOSED);
    const fields = [
      h("label", {}, "Topic ", h("input", { name: "topic", list: "waiting-topics", required: true, autocomplete: "off", spellcheck: "false" })),
      h("datalist", { id: "waiting-topics" }, topics.map(({ name }) => h("option", { key: name, value: name }))),
      h("label", {}, "Outcome ", h("select", { name: "outcome" }, h("option", { value: "abort" }, "abort: its records never become visible"), h("option", { value: "commit" }, "commit: its records become visible"))),
      h("p", { class: "whole quiet small" }, "A transaction hangs when it is open in the log of a partition and no coordinator has it; readers of committed records wait there for ever. Its program may know that it is committed, and other partitions may show it: choose the same here. This cannot be undone."),
    ];
    return h("details", { key: "hanging" }, h("summary", {}, "Find and settle hanging transactions"), this.#forms.planned(app, "hanging", fields, "Look", (given) => planSettling(app.log, given)));
  }
}

/** What would be settled, as `Forms.planned` wants it. */
async function planSettling(log, { topic, outcome }) {
  const { partitions } = await log.describe(topic, { offsets: true });
  const waiting = partitions.filter(({ stable }) => stable);
  if (!waiting.length) return `No reader of committed records waits in ${topic}.`;
  const owners = new Map((await log.transactions()).map((one) => [one.producerId, one.app]));
  const hanging = waiting.filter(({ stable }) => !owners.has(stable.producerId) && stable.producerEpoch >= 0);
  if (!hanging.length) {
    const apps = [...new Set(waiting.map(({ stable }) => owners.get(stable.producerId)).filter(Boolean))];
    return `Readers wait in ${many(waiting.length, "partition")} of ${topic} for transactions that will end${apps.length ? `, of ${apps.join(", ")}` : ""}. None hangs.`;
  }
  const act = async () => {
    for (const { partition, stable } of hanging) await log.settleTransaction(topic, partition, stable.producerId, stable.producerEpoch, { commit: outcome === "commit" });
    return `Done: settled in ${many(hanging.length, "partition")}.`;
  };
  const rows = hanging.map(({ partition, stable }) => [String(partition), [`${topic}/${partition}`, whole(stable.offset), duration(stable.ageMs / 1000), String(stable.producerId), stable.producerEpoch]]);
  const shown = table("Hanging transactions", [["Partition"], ["Readers wait at", "number"], ["For"], ["Producer id", "number"], ["Epoch", "number"]], rows);
  return { shown: [h("p", {}, outcome === "commit" ? "The records of these become visible:" : "The records of these never become visible:"), shown], button: outcome === "commit" ? "Commit them" : "Abort them", act };
}
