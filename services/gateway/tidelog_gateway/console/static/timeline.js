/** What happened, newest first, with its cause in words; any of it can be gone to. */

import { h } from "./dom.js";
import { clock } from "./format.js";

const SHOWN = 200;
const BAD = new Set(["offline", "records_lost", "records_possibly_lost", "copy_lost", "server_fenced"]);
const WARNING = new Set(["isr_shrunk", "sealing", "isr_refused", "server_draining", "transfer_withdrawn"]);

/** How bad it is: `bad`, `warning` or `plain`. */
export function levelOf(record) {
  if (record.type !== "event") return "warning";
  if (BAD.has(record.kind)) return "bad";
  return WARNING.has(record.kind) || record.cause === "unclean_election" ? "warning" : "plain";
}

export class TimelinePanel {
  #wanted = "";
  #shown = SHOWN;

  view(app) {
    const { events } = app.history;
    const found = matching(events, this.#wanted);
    const newest = found.slice(-this.#shown).reverse();
    const onInput = (event) => {
      this.#wanted = event.target.value;
      app.draw();
    };
    const onMore = () => {
      this.#shown += SHOWN;
      app.draw();
    };
    return [
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Timeline"),
        h("label", { class: "small" }, "Contains ", h("input", { type: "search", onInput, placeholder: "orders/0, elected, r2…" })),
      ),
      events.length ? null : h("p", { class: "quiet" }, app.told === "following" ? "Nothing has happened yet." : "There is no timeline to show."),
      h("ol", { class: "events", reversed: true }, newest.map(({ event, i }) => entry(app, event.record, i))),
      found.length > newest.length ? h("button", { onClick: onMore }, "Show more") : null,
    ];
  }
}

/** The events whose words have all of these in them, with their numbers. */
export function matching(events, wanted) {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const numbered = events.map((event, i) => ({ event, i }));
  if (!words.length) return numbered;
  return numbered.filter(({ event: { record } }) => {
    const text = `${record.words ?? ""} ${record.kind ?? record.type} ${record.cause ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** The events with their numbers, without those of the cluster's own topics. */
export function ofUsers(events) {
  return events.map((event, i) => ({ event, i })).filter(({ event: { record } }) => !record.topic?.startsWith("__"));
}

/** One event of a list; its button shows the moment after it. */
export function entry(app, record, i) {
  const shown = !app.live && app.moment === i + 1;
  const later = app.moment <= i;
  return h(
    "li",
    { key: i, class: `${levelOf(record)}${later ? " later" : ""}` },
    h("button", { class: "link", onClick: () => app.show(i + 1), "aria-pressed": String(shown), title: "Show the cluster as it was then" }, h("time", {}, clock(record.time_ms))),
    h("span", { class: "kind" }, (record.kind ?? record.type).replaceAll("_", " ")),
    h("span", {}, wordsOf(record)),
  );
}

function wordsOf(record) {
  return record.type === "gap" ? `events ${record.from} to ${record.event} are missing` : record.words;
}
