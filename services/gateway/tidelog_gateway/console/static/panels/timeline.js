/** What happened, newest first, with its cause in words; any of it can be gone to. What belongs together is one line. */

import { h } from "../page/dom.js";
import { clock, whole } from "../page/format.js";
import { incidentsOf, summaryOf } from "../cluster/incidents.js";

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
  #incidents = new Incidents();

  view(app) {
    const { events } = app.history;
    const wanted = this.#wanted;
    const found = this.#incidents.of(events, wanted, () => matching(events, wanted));
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
      newest.length ? null : h("p", { class: "quiet" }, events.length ? "No event has that in it: try fewer words." : NOTHING[app.told]),
      h("ol", { class: "events", reversed: true }, newest.map((incident) => this.#incidents.line(app, incident))),
      found.length > newest.length ? h("button", { onClick: onMore }, "Show more") : null,
    ];
  }
}

/** Why there is nothing to see, by how the timeline is read (see `Telling`), and what to do. */
export const NOTHING = {
  loading: "Reading the timeline…",
  following: "Nothing has happened yet: create a topic, or stop a server, and it is told here.",
  absent: "There is no past to show: the cluster keeps no timeline (settings.timeline.replication_factor), or these rights do not reach it (read topic:__timeline).",
  forbidden: "There is no past to show: the timeline may not be read with these rights. Ask for the rule read topic:__timeline.",
  broken: "The timeline cannot be read now: see Cluster whether its servers are there. It is read again when the cluster changes.",
};

/** A list of incidents: they are put together once for the same events, and each can be opened. */
export class Incidents {
  #made = {};
  #open = new Set();

  /** Return the incidents of `found()`, which is asked for again when there are more events or other words. */
  of(events, wanted, found) {
    const made = this.#made;
    if (made.events !== events || made.length !== events.length || made.wanted !== wanted) {
      this.#made = { events, length: events.length, wanted, incidents: incidentsOf(found()) };
    }
    return this.#made.incidents;
  }

  /** A line of the list; what is in it is drawn when it is open. */
  line(app, { key, title, events }) {
    const last = events.at(-1);
    if (events.length === 1) return entry(app, last.event.record, last.i);
    const open = this.#open.has(key);
    const onToggle = ({ target }) => {
      if (target.open === this.#open.has(key)) return;
      if (target.open) this.#open.add(key);
      else this.#open.delete(key);
      app.draw();
    };
    const levels = new Set(events.map(({ event }) => levelOf(event.record)));
    const level = ["bad", "warning"].find((one) => levels.has(one)) ?? "plain";
    return h(
      "li",
      { key: `incident ${key}`, class: `${level}${app.moment <= events[0].i ? " later" : ""}` },
      moment(app, events[0].event.record.time_ms, last.i),
      h("span", { class: "kind" }, title),
      h(
        "details",
        { open, onToggle },
        h("summary", {}, `${summaryOf(events)} (${whole(events.length)} events)`),
        open ? h("ol", { class: "events", reversed: true }, events.slice(-SHOWN).reverse().map(({ event, i }) => entry(app, event.record, i))) : null,
      ),
    );
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
  const later = app.moment <= i;
  return h(
    "li",
    { key: i, class: `${levelOf(record)}${later ? " later" : ""}` },
    moment(app, record.time_ms, i),
    h("span", { class: "kind" }, (record.kind ?? record.type).replaceAll("_", " ")),
    h("span", {}, wordsOf(record)),
  );
}

/** A time as a button that shows the cluster after the event `i`. */
function moment(app, timeMs, i) {
  const shown = !app.live && app.moment === i + 1;
  return h("button", { class: "link", onClick: () => app.show(i + 1), "aria-pressed": String(shown), title: "Show the cluster as it was then" }, h("time", {}, clock(timeMs)));
}

function wordsOf(record) {
  return record.type === "gap" ? `events ${record.from} to ${record.event} are missing` : record.words;
}
