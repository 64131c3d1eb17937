/** What the services said to each other, message by message: listened to for a while, then stepped through. */

import { h } from "../page/dom.js";
import { reason } from "../page/failures.js";
import { clock, whole } from "../page/format.js";

/** Messages that are shown before and after the one that is stepped to. */
const AROUND = 7;

export class Steps {
  #messages = null;
  #at = 0;
  #wanted = "";
  #listening = false;
  #said = "";

  /** The messages with all these words in them. */
  get #found() {
    const words = this.#wanted.toLowerCase().split(/\s+/).filter(Boolean);
    return this.#messages.filter((one) => words.every((word) => inWords(one).toLowerCase().includes(word)));
  }

  view(app) {
    const button = (words, act, disabled) => h("button", { onClick: () => this.#listen(app, act), disabled }, words);
    return h(
      "section",
      { "aria-labelledby": "steps", class: "steps" },
      h("h2", { id: "steps" }, "Message by message"),
      h("p", { class: "quiet small" }, "Listen, do something to a node, stop: then step through what the services said to each other. The cluster goes back to each moment with it."),
      h("div", { class: "acts" }, button("Listen", "record", this.#listening), button("Stop", "stop", !this.#listening), h("span", { class: "small", role: "status" }, this.#said)),
      this.#messages?.length ? this.#stepping(app, this.#found) : null,
    );
  }

  async #listen(app, act) {
    try {
      const messages = await app.log.playedMessages(act);
      this.#listening = act === "record";
      this.#messages = this.#listening ? null : named(messages, app.cluster.topics);
      this.#said = this.#listening ? "Listening…" : `${whole(messages.length)} messages.`;
      this.#at = 0;
    } catch (error) {
      this.#said = `Not done: ${reason(error)}`;
    }
    app.draw();
  }

  #stepping(app, found) {
    const at = Math.min(this.#at, found.length - 1);
    const go = (to) => {
      this.#at = Math.max(0, Math.min(to, found.length - 1));
      const moment = app.history.countUntil(found[this.#at].timeMs);
      app.show(moment < app.history.events.length ? Math.max(1, moment) : null);
    };
    const onInput = ({ target }) => {
      this.#wanted = target.value;
      this.#at = 0;
      app.draw();
    };
    const first = Math.max(0, at - AROUND);
    return [
      h(
        "div",
        { class: "row" },
        h("label", { class: "small" }, "Contains ", h("input", { type: "search", onInput, placeholder: "fetch r1, alter_isr…" })),
        h("button", { onClick: () => go(at - 1), disabled: at <= 0, "aria-label": "One message back" }, "◀"),
        h("button", { onClick: () => go(at + 1), disabled: at >= found.length - 1, "aria-label": "One message on" }, "▶"),
        h("span", { class: "small", role: "status" }, found.length ? `${at + 1} of ${whole(found.length)}` : "No message has that in it."),
      ),
      found.length ? h("input", { type: "range", min: 0, max: found.length - 1, value: at, "aria-label": "Message", "aria-valuetext": inWords(found[at]), onInput: ({ target }) => go(Number(target.value)) }) : null,
      h(
        "ol",
        { class: "events", start: first + 1 },
        found.slice(first, at + AROUND + 1).map((one, i) => step(one, first + i === at, () => go(first + i))),
      ),
    ];
  }
}

function step(one, current, onClick) {
  return h(
    "li",
    { class: current ? "current" : "", "aria-current": current ? "step" : null },
    h("button", { class: "link", onClick }, h("time", {}, clock(one.timeMs))),
    h("span", { class: "kind" }, `${one.sender} → ${one.receiver}`),
    h("span", {}, h("b", {}, what(one)), ` ${one.words}`),
  );
}

function what({ op, answer }) {
  return answer ? `answer${op ? ` to ${op}` : ""}` : op;
}

/** A message in one line. */
export function inWords(one) {
  return `${one.sender} → ${one.receiver} ${what(one)} ${one.words}`;
}

/** The messages with the names of topics for their ids. */
export function named(messages, topics) {
  const names = new Map(topics.map(({ topicId, name }) => [topicId, name]));
  return messages.map((one) => ({ ...one, words: one.words.replaceAll(/[0-9a-f]{32}/g, (id) => names.get(id) ?? id) }));
}
