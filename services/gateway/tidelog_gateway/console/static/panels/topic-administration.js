/** The forms that create a topic, change its settings, give it partitions, suspend it, and delete it. */

import { many } from "../cluster/cluster.js";
import { TOPIC_SETTINGS } from "../cluster/topic-settings.js";
import { h } from "../page/dom.js";
import { confirmation, Forms } from "../page/forms.js";
import { whole } from "../page/format.js";
import { BYTES, inWords, MILLISECONDS } from "../page/quantities.js";
import { partitionsOf } from "../page/typed.js";

/** Settings of the cluster's own topics that nobody changes. */
const KEPT = ["cleanup", "max_batch_bytes"];
/** The units of settings that have some, by what the setting counts. */
const UNITS = { milliseconds: MILLISECONDS, bytes: BYTES };
/** What the form does that suspends a topic: `does` completes "all partitions of orders …". */
const SUSPENSIONS = {
  pause: {
    words: "Pause",
    does: "are paused. The servers close the logs, and nothing is written, read, copied or cleaned until you resume them. Producers and consumers get TOPIC_PAUSED. What is committed stays.",
    act: (log, name, numbers) => log.pause(name, numbers),
  },
  resume: {
    words: "Resume after a pause",
    does: "are resumed. The servers open the logs, and serve them again.",
    act: (log, name, numbers) => log.resume(name, numbers),
  },
  close: {
    words: "Make read-only",
    does: "become read-only. Producers get TOPIC_READ_ONLY; consumers read on. Acknowledged records stay.",
    act: (log, name, numbers) => log.setReadOnly(name, numbers),
  },
  open: {
    words: "Take records again",
    does: "take records again.",
    act: (log, name, numbers) => log.setReadOnly(name, numbers, { readOnly: false }),
  },
};

export class TopicAdministration {
  #forms = new Forms();
  /** How often settings were changed here: the fields begin anew with each change. */
  #changes = 0;

  /** Forget what the forms say. */
  clear() {
    this.#forms.clear();
  }

  /** The form that creates a topic. */
  create(app) {
    const act = async ({ name, partitions, replicas, ...given }) => {
      const config = Object.fromEntries(Object.entries(given).filter(([, text]) => text.trim()));
      await app.log.createTopic(name, { partitions: Number(partitions), replicationFactor: Number(replicas), config });
      location.hash = `#/topics/${encodeURIComponent(name)}`;
      return `${name} is there.`;
    };
    const live = app.cluster.servers.filter(({ fenced }) => !fenced).length || 3;
    const fields = [
      h("label", {}, "Name ", h("input", { name: "name", required: true, maxlength: 249, autocomplete: "off", spellcheck: "false" })),
      h("label", {}, "Partitions ", h("input", { name: "partitions", type: "number", min: 1, required: true, defaultValue: 1 })),
      h("label", {}, "Replicas ", h("input", { name: "replicas", type: "number", min: 1, required: true, defaultValue: Math.min(3, live) })),
      h(
        "details",
        { class: "whole" },
        h("summary", {}, "Settings; all have defaults"),
        h("div", { class: "settings" }, TOPIC_SETTINGS.map((setting) => field("create", setting, emptyOr(setting)))),
      ),
    ];
    return h("details", { key: "create" }, h("summary", {}, "Create a topic"), this.#forms.form(app, "create", fields, "Create", act));
  }

  /** The settings of a topic; live they can be changed. */
  settings(app, topic) {
    return h("details", { key: `settings ${topic.topicId}` }, h("summary", {}, "Settings"), app.live ? this.#change(app, topic) : values(topic));
  }

  /** The forms that change other things of a topic. */
  others(app, topic) {
    if (topic.internal) return [];
    return [this.#grow(app, topic), this.#suspend(app, topic), this.#delete(app, topic)];
  }

  #change(app, topic) {
    const plan = (given) => {
      const changes = changesOf(topic, given);
      if (!changes.length) return "Nothing was changed.";
      const act = async () => {
        await app.log.configureTopic(topic.name, Object.fromEntries(changes.map(({ name, to }) => [name, to])));
        this.#changes += 1;
        return "Done.";
      };
      return { shown: [h("ul", {}, changes.map(changed)), dangers(topic, changes)], button: `Change ${many(changes.length, "setting")}`, act };
    };
    const isKept = ({ name, fixed }) => fixed || (topic.internal && KEPT.includes(name));
    const fields = [
      h("p", { class: "small quiet whole" }, "Only what you change is sent. An empty field means the default."),
      h(
        "div",
        { class: "whole" },
        h(
          "div",
          { class: "settings", key: `fields ${this.#changes}` },
          TOPIC_SETTINGS.filter(({ name }) => name in topic.config).map((setting) => field("settings", setting, presentOr(setting, topic, isKept(setting)))),
        ),
      ),
    ];
    return this.#forms.planned(app, "settings", fields, "Preview the change", plan);
  }

  #grow(app, topic) {
    const present = topic.partitions.length;
    const plan = ({ partitions }) => {
      const wanted = Number(partitions);
      if (wanted === present) return `${topic.name} has ${many(present, "partition")} already. Type a larger number.`;
      const shown = h("p", {}, `${topic.name} gets ${many(wanted - present, "more partition")}: ${whole(wanted)} in all. Records stay where they are. New records of a key may go to another partition, so they may be read before older ones of that key. Partitions cannot be taken away again.`);
      const act = async () => {
        await app.log.growTopic(topic.name, wanted);
        return `Done: ${topic.name} has ${many(wanted, "partition")}.`;
      };
      return { shown, button: `Add ${many(wanted - present, "partition")}`, act };
    };
    const fields = h("label", {}, "Partitions in all ", h("input", { name: "partitions", type: "number", min: present, required: true, defaultValue: present }));
    return h("details", { key: `grow ${topic.topicId}` }, h("summary", {}, "Add partitions"), this.#forms.planned(app, "grow", fields, "Preview the change", plan));
  }

  #suspend(app, topic) {
    const plan = ({ suspension, numbers }) => {
      const { words, does, act } = SUSPENSIONS[suspension];
      const wanted = partitionsOf(topic, numbers);
      const named = wanted.length ? `Partitions ${wanted.join(", ")} of ${topic.name}` : `All partitions of ${topic.name}`;
      return { shown: h("p", {}, `${named} ${does}`), button: words, act: async () => (await act(app.log, topic.name, wanted), `Done: ${named} ${does.split(".")[0]}.`) };
    };
    const fields = [
      h("label", {}, "What ", h("select", { name: "suspension" }, Object.entries(SUSPENSIONS).map(([value, { words }]) => h("option", { value }, words)))),
      h("label", {}, "Partitions ", h("input", { name: "numbers", placeholder: "all", title: "numbers such as 0, 1; nothing: all", autocomplete: "off" })),
    ];
    return h("details", { key: `suspend ${topic.topicId}` }, h("summary", {}, "Pause, or make read-only"), this.#forms.planned(app, "suspend", fields, "Preview the change", plan));
  }

  #delete(app, topic) {
    const act = async () => {
      await app.log.deleteTopic(topic.name);
      location.hash = "#/topics";
      return `${topic.name} is deleted.`;
    };
    const fields = [h("p", { class: "whole" }, `Deletes ${topic.name} and all its records, on all servers. This cannot be undone.`), confirmation(topic.name)];
    return h("details", { key: `delete ${topic.topicId}` }, h("summary", {}, "Delete this topic"), this.#forms.form(app, "delete", fields, "Delete it for good", act));
  }
}

/** A setting's field for a new topic: nothing is chosen. */
function emptyOr(setting) {
  return { value: "", choices: setting.choices && [["", `default: ${setting.text}`], ...setting.choices.map((one) => [one, one])], disabled: false };
}

/** A setting's field with the topic's value; `isKept`: it stays. */
function presentOr(setting, topic, isKept) {
  const value = topic.config[setting.name];
  const choices = setting.choices?.map((one) => [one, one === setting.text ? `${one} (default)` : one]);
  return { value: wordsOf(value, setting), choices, disabled: isKept };
}

/** `form` makes the ids of the page different. */
function field(form, setting, { value, choices, disabled }) {
  const { name, help, fixed } = setting;
  const about = `${form}-${name}-help`;
  const common = { name, disabled, "aria-describedby": about };
  return h(
    "div",
    { class: "field" },
    h(
      "label",
      {},
      h("span", {}, name),
      choices
        ? h("select", common, choices.map(([one, words]) => h("option", { value: one, selected: one === value }, words)))
        : h("input", { ...common, defaultValue: value, placeholder: defaultWords(setting), autocomplete: "off" }),
    ),
    h("p", { class: "small quiet", id: about }, help, choices ? null : ` ${bounds(setting)}`, fixed ? " Chosen when the topic is created." : null),
  );
}

/** A setting's value with its unit, as it may be typed. */
function wordsOf(text, { noun }) {
  return UNITS[noun] ? inWords(Number(text), UNITS[noun]) : text;
}

/** What may be typed, in words. */
function bounds(setting) {
  const { names, noun, least, most } = setting;
  if (names) return `Names of ${names}, with commas between. Default: none.`;
  const unit = UNITS[noun];
  const words = (number) => (unit ? inWords(number, unit) : whole(number));
  const range = unit || Number.isSafeInteger(most) ? `from ${words(least)} to ${words(most)}` : `${words(least)} or more`;
  return `${unit?.like ?? "A number"}, ${range}. Default: ${defaultWords(setting)}.`;
}

function defaultWords(setting) {
  if (setting.names) return "none";
  return setting.text ? wordsOf(setting.text, setting) : "2 with 3 replicas or more, else 1";
}

/** The text of a setting's default for this topic. */
function defaultOf({ text, names }, topic) {
  if (text || names) return text;
  const replicas = Math.min(...topic.partitions.map((one) => one.replicas.length));
  return replicas >= 3 && topic.config.commit_rule !== "leader" ? "2" : "1";
}

/** `{name, setting, from, to}` for each setting that a form with these values changes. */
export function changesOf(topic, given) {
  return TOPIC_SETTINGS.filter(({ name }) => name in given).flatMap((setting) => {
    const { name } = setting;
    const from = topic.config[name];
    const to = given[name].trim() || defaultOf(setting, topic);
    return to === from || to === wordsOf(from, setting) ? [] : [{ name, setting, from, to }];
  });
}

function changed({ name, setting, from, to }) {
  const words = (text) => (/^\d+$/.test(text) ? wordsOf(text, setting) : text || "nothing");
  return h("li", {}, h("b", {}, name), `: ${words(from)} → ${words(to)}. `, h("span", { class: "quiet small" }, setting.help));
}

/** What may be lost by the changes. */
function dangers(topic, changes) {
  const deletes = changes.some(({ name }) => name.startsWith("retention_") || name === "cleanup");
  return [
    deletes ? h("p", {}, "Records that the new settings do not keep are deleted at the next check of each server, and cannot be brought back.") : null,
    changes.some(({ name, to }) => name === "unclean_election" && to === "true") ? h("p", { class: "bad" }, `Partitions of ${topic.name} without a leader may lose records at once.`) : null,
  ];
}

function values(topic) {
  return h("dl", { class: "settings" }, Object.entries(topic.config).sort().map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value || "–"))));
}
