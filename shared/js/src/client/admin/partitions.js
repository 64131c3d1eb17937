/**
 * Administration of partitions: where they are, which server leads them, and whether they serve. `Log` has all of
 * these methods.
 */

import { now, sleep } from "../../clock.js";
import { BrokerError, TimedOut } from "../../errors.js";
import * as messages from "../../wire/messages.js";
import { some, unless } from "../../wire/shapes.js";

/** Longest wait for the end of a transfer; the controllers give it up earlier. */
const TRANSFER_TIMEOUT_S = 30;
/** First pause between two checks of a condition; it doubles. */
const POLL_S = 0.01;
const POLL_MAX_S = 0.2;

export class Moving {
  #ask;

  constructor(ask) {
    this.#ask = ask;
  }

  /** Send a request of the protocol and resolve with its answer. */
  ask(request, shape = messages.done, options = {}) {
    return this.#ask(request, shape, options);
  }

  /** Increase the number of a topic's partitions to this total. Rejects with `UNKNOWN_TOPIC`, `INVALID_CONFIG`. */
  async growTopic(name, partitions) {
    await this.ask({ op: "grow_topic", name, partitions }, messages.done, { again: false });
  }

  /**
   * Make these partitions (none: all) refuse records (`TOPIC_READ_ONLY`), or with `readOnly` false accept them again;
   * reads go on. Rejects with `UNKNOWN_TOPIC`, `FORBIDDEN` for the cluster's own topics.
   */
  async setReadOnly(topic, partitions = [], { readOnly = true } = {}) {
    const request = { op: "set_read_only", name: topic, partitions: some([...partitions]) };
    await this.ask({ ...request, read_only: unless(true, readOnly) });
  }

  /**
   * Close these partitions (none: all) on their servers, which keep the data. Produces and reads are refused with
   * `TOPIC_PAUSED`.
   */
  async pause(topic, partitions = []) {
    await this.ask({ op: "pause_topic", name: topic, partitions: some([...partitions]) });
  }

  /** End a pause of these partitions (none: all), so that leaders are elected again. */
  async resume(topic, partitions = []) {
    await this.ask({ op: "pause_topic", name: topic, partitions: some([...partitions]), pause: false });
  }

  /**
   * Make an in-sync server the leader of a partition; none: the preferred replica. Resolves when it leads. Rejects
   * with `UNKNOWN_TOPIC`, `UNKNOWN_SERVER`, `NOT_REPLICA`, `NOT_IN_SYNC`, `OFFLINE`; with `TimedOut` if it did not
   * get to the end of the log in time and the former leader stays.
   */
  async transfer(topic, partition, server = "") {
    const asked = await this.#partition(topic, partition);
    const wanted = server || asked.replicas[0];
    const request = { op: "transfer_leader", name: topic, partition, server: unless("", server) };
    await this.ask(request, messages.done, { again: false });
    const deadline = now() + TRANSFER_TIMEOUT_S;
    let found;
    return this.poll(
      async () => {
        found = await this.#partition(topic, partition);
        return found.leader === wanted && found;
      },
      () => {
        const givenUp = found.epoch >= asked.epoch + 2 && found.successor !== wanted;
        if (!givenUp && now() <= deadline) return;
        const leader = found.leader || "nobody";
        throw new TimedOut(`${wanted} did not get to the end of the log of ${topic}/${partition}: ${leader} leads`);
      },
    );
  }

  /**
   * Begin to move a partition to these replicas, the preferred leader first; `describe` shows them as `target` until
   * the move is done.
   */
  async reassign(topic, partition, replicas) {
    await this.ask({ op: "reassign", name: topic, partition, replicas: [...replicas] });
  }

  /** Return a partition to the replicas that it had before its reassignment; a queued reassignment is dropped. */
  async cancelReassignment(topic, partition) {
    await this.ask({ op: "cancel_reassignment", name: topic, partition }, messages.done, { again: false });
  }

  /**
   * Resolve with reassignments that would spread the replicas over racks and servers; none is begun. `weights`:
   * `{topic, partition, weight}` of one replica of each partition, in `unit` (`B` or `B/s`): the plan evens out their
   * sums, and a partition that is not listed weighs 0. Without weights it counts replicas.
   */
  async planRebalance({ emptyDrained = false, weights = [], unit = "" } = {}) {
    return (await this.ask({ op: "plan_rebalance", ...goals(emptyDrained, weights, unit) }, messages.rebalancePlan)).moves;
  }

  /**
   * Queue the reassignments of `planRebalance`, with the same options; a few per server are carried out at a time.
   * Resolves when all are queued.
   */
  async rebalance({ emptyDrained = false, weights = [], unit = "" } = {}) {
    await this.ask({ op: "rebalance", ...goals(emptyDrained, weights, unit) });
  }

  /** Drop all queued reassignments; those that have begun go on. */
  async cancelRebalance() {
    await this.ask({ op: "rebalance", cancel: true });
  }

  /** Resolve with the queued reassignments of rebalances, in their order. */
  async waitingMoves() {
    return (await this.ask({ op: "plan_rebalance" }, messages.rebalancePlan)).waiting;
  }

  /**
   * Hand over the leaderships of a server wherever another server can lead. It gets new replicas only if too few
   * other servers run. `drain` false: end that.
   */
  async drain(server, drain = true) {
    await this.ask({ op: "drain_server", server, drain: unless(true, drain) });
  }

  /**
   * Remove a server that is gone for good from the cluster. Rejects with `UNKNOWN_SERVER`, and with `SERVER_IN_USE`
   * unless it is down and has no copies.
   */
  async forgetServer(server) {
    await this.ask({ op: "forget_server", server }, messages.done, { again: false });
  }

  /**
   * Call `look` again and again until it resolves with something, and resolve with that; `orThrow` is called between
   * and may throw.
   */
  async poll(look, orThrow) {
    for (let pause = POLL_S; ; pause = Math.min(2 * pause, POLL_MAX_S)) {
      const found = await look();
      if (found) return found;
      orThrow();
      await sleep(pause);
    }
  }

  async #partition(topic, partition) {
    const found = (await this.describe(topic)).partitions[partition];
    if (found) return found;
    throw new BrokerError(`${topic} has no partition ${partition}`, { code: "UNKNOWN_TOPIC" });
  }
}

/** Return the fields of a request that say what a rebalance evens out. */
function goals(emptyDrained, weights, unit) {
  const weighed = weights.map(({ topic, partition, weight }) => ({ name: topic, partition, weight }));
  return { empty_drained: unless(false, emptyDrained), weights: some(weighed), unit: unless("", unit) };
}
