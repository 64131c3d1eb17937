/**
 * What belongs together in the timeline: the loss of a server with all that follows from it, its return, all that one
 * command did, and the same change of several partitions for the same cause. An incident is one line of a list, however
 * many partitions it touched.
 */

import { whole } from "../page/format.js";
import { many } from "./cluster.js";

/** Events belong together only if they are at most so far apart: a session may take this long to end. */
const APART_MS = 60_000;
const RETURNS = new Set(["server_registered", "server_unfenced", "server_undrained", "isr_expanded"]);
const NAMES = {
  leader_elected: ["new leader", "new leaders"],
  isr_shrunk: ["in-sync set shrank", "in-sync sets shrank"],
  isr_expanded: ["in-sync set grew", "in-sync sets grew"],
  offline: ["partition without a leader", "partitions without a leader"],
  created: ["partition", "partitions"],
};

/**
 * Return the incidents of numbered events `{event, i}`, in the order of their last event: `{key, title, events}`. An
 * event that belongs to no other is an incident of its own, with an empty title.
 */
export function incidentsOf(numbered) {
  const open = new Map();
  const found = [];
  const commands = new Set(numbered.map(({ event: { record } }) => record).filter(({ partition }) => partition === undefined).map(({ index }) => index));
  for (const one of numbered) {
    const { record } = one.event;
    const { key, title, ends } = sortOf(record, commands);
    open.delete(ends);
    const last = key === null ? undefined : open.get(key);
    if (last && record.time_ms - last.events.at(-1).event.record.time_ms <= APART_MS) {
      last.events.push(one);
    } else {
      const incident = { key: one.i, title, events: [one] };
      found.push(incident);
      if (key !== null) open.set(key, incident);
    }
  }
  for (const one of found) if (one.events.length === 1) one.title = "";
  return found.sort((a, b) => a.events.at(-1).i - b.events.at(-1).i);
}

/**
 * `{key, title, ends}`: events with the same key (null: none) belong together; `ends` is the key that is over now.
 * `commands`: the indexes of events that are about no partition, such as that of a command about a topic.
 */
function sortOf(record, commands) {
  if (record.type !== "event") return { key: null, title: "" };
  const node = serverOf(record);
  if (node) {
    const back = RETURNS.has(record.kind) || record.cause === "session_resumed";
    return { key: `${back} ${node}`, title: back ? `${node} is back` : `${node} is gone`, ends: `${!back} ${node}` };
  }
  const title = record.kind.replaceAll("_", " ");
  const alike = !commands.has(record.index);
  return { key: alike ? `${record.kind} ${record.cause}` : `command ${record.index}`, title };
}

/** The server whose loss or return an event is about; undefined if it is about none. */
function serverOf({ kind, server, cause, evidence, before, after }) {
  if (kind === "server_fenced" || RETURNS.has(kind)) return server ?? changed(after?.isr, before?.isr);
  if (cause === "session_expired" || cause === "session_resumed" || (cause === "handed_over" && evidence.reason === "shutdown")) return evidence.node;
  return cause === "leader_reported" ? evidence.leader : undefined;
}

/** The only server that is in the one set and not in the other. */
function changed(isr = [], other = []) {
  const more = isr.filter((node) => !other.includes(node));
  return more.length === 1 ? more[0] : undefined;
}

/**
 * In words: the event that is about a server or a topic, then how many of each kind there are of partitions. The event of
 * a new topic counts its partitions itself.
 */
export function summaryOf(events) {
  const records = events.map(({ event }) => event.record);
  const head = records.find(({ partition }) => partition === undefined)?.words;
  const parts = records.filter(({ partition, kind }) => partition !== undefined && !(head && kind === "created"));
  const counts = new Map();
  for (const { kind } of parts) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const counted = [...counts].map(([kind, count]) => inWords(kind, count)).join(", ");
  const causes = new Set(parts.map(({ cause }) => cause));
  if (head) return [head, counted].filter(Boolean).join("; ");
  return causes.size === 1 ? `${counted}: ${parts[0].cause.replaceAll("_", " ")}` : counted;
}

function inWords(kind, count) {
  const [one, more] = NAMES[kind] ?? [];
  if (!one) return `${kind.replaceAll("_", " ")} in ${many(count, "partition")}`;
  return `${whole(count)} ${count === 1 ? one : more}`;
}
