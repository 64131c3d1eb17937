/**
 * What the replica servers count, asked through this gateway now and then, and what two looks say of the time between
 * them: who copies from whom, how long commits and fetches take, how far followers are behind.
 */

import { byLabel, grownBy, parse, quantile } from "./measures.js";

/** Grows with every page that is made. */
const CPU = "process_cpu_seconds_total";

export class Flows {
  /** By node: `{at, values, before, asked, error}`; `before`: the look before, `{at, values}`, where there was one. */
  #known = new Map();
  /** The client whose user may not see metrics; null: none is known. */
  #refused = null;

  /**
   * Ask these servers, each once at a time; `onAnswer()` after each answer. A client that may not see metrics is not
   * asked again: each refusal would push out one that its user may ask about.
   */
  ask(log, nodes, onAnswer) {
    for (const node of this.#known.keys()) if (!nodes.includes(node)) this.#known.delete(node);
    if (log === this.#refused) return;
    for (const node of nodes) if (!this.#known.get(node)?.asked) this.#ask(log, node, onAnswer);
  }

  async #ask(log, node, onAnswer) {
    const known = this.#known.get(node) ?? {};
    this.#known.set(node, { ...known, asked: true });
    try {
      const values = parse((await log.metrics(node)).page);
      this.take(node, Date.now(), values);
    } catch (error) {
      if (error.code === "FORBIDDEN") this.#refused = log;
      this.#known.set(node, log.gateway ? { error } : { ...known, asked: false }); // without a gateway it says nothing of the server
    }
    onAnswer();
  }

  /** A look. A server that began anew has nothing to be compared with; one that is shown again as it was tells nothing. */
  take(node, at, values) {
    const known = this.#known.get(node);
    const old = known?.values;
    const is = (name) => old?.get(name) === values.get(name);
    const again = old && values.has(CPU) && is(CPU);
    if (again) this.#known.set(node, { ...known, asked: false });
    else this.#known.set(node, { at, values, before: old && is("process_start_time_seconds") ? { at: known.at, values: old } : undefined });
  }

  /** It was asked, whether it has answered or not. */
  has(node) {
    return this.#known.has(node);
  }

  /** Why a server's figures are not known; undefined where they are. */
  error(node) {
    return this.#known.get(node)?.error;
  }

  /** Per second from leader to follower: `{leader, follower, fetches, notices, bytes, behind, seconds}`. */
  links() {
    return [...this.#known].flatMap(([leader, { at, values, before }]) => {
      if (!values) return [];
      const behind = byLabel(values, "tidelog_replication_lag_records", "follower");
      const seconds = byLabel(values, "tidelog_replication_lag_seconds", "follower");
      const rates = ["fetches", "notices", "fetched_bytes"].map((what) =>
        before ? grownBy(before.values, values, `tidelog_replica_${what}_total`, "follower", (at - before.at) / 1000) : new Map(),
      );
      const [fetches, notices, bytes] = rates;
      const followers = [...new Set([...behind.keys(), ...fetches.keys()])].sort();
      return followers.map((follower) => ({
        ...{ leader, follower, fetches: fetches.get(follower) ?? 0, notices: notices.get(follower) ?? 0 },
        ...{ bytes: bytes.get(follower) ?? 0, behind: behind.get(follower) ?? 0, seconds: seconds.get(follower) ?? 0 },
      }));
    });
  }

  /** By server that has told: the gateways that are connected to it. */
  served() {
    return new Map([...this.#known].filter(([, { values }]) => values).map(([node, { values }]) => [node, [...byLabel(values, "tidelog_replica_connections", "peer", 'role="gateway"').keys()].sort()]));
  }

  /** The value below which `part` of what all servers' histogram saw between the last two looks lies. */
  quantile(name, part) {
    const before = new Map();
    const after = new Map();
    for (const { values, before: old } of this.#known.values()) {
      if (!values || !old) continue;
      add(before, old.values, name);
      add(after, values, name);
    }
    return quantile(before, after, name, part);
  }
}

function add(sums, values, name) {
  for (const [key, value] of values) if (key.startsWith(`${name}_bucket{`)) sums.set(key, (sums.get(key) ?? 0) + value);
}
