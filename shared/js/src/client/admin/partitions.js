/** What a client can do about where partitions are, who leads them, and whether they serve. `Log` has all of it. */

import { now, sleep } from "../../clock.js";
import { BrokerError, TimedOut } from "../../errors.js";
import * as messages from "../../wire/messages.js";
import { some, unless } from "../../wire/shapes.js";

/** Longest wait for the end of a transfer; the controllers give it up before. */
const TRANSFER_TIMEOUT_S = 30;
/** Pauses while something is waited for that nobody tells of; doubling. */
const POLL_S = 0.01;
const POLL_MAX_S = 0.2;

export class Moving {
  #ask;

  constructor(ask) {
    this.#ask = ask;
  }

  /** A request of the protocol and its answer. */
  ask(request, shape = messages.done, options = {}) {
    return this.#ask(request, shape, options);
  }

  /** Give a topic more partitions, so many in all. Rejects with `UNKNOWN_TOPIC`, `INVALID_CONFIG`. */
  async growTopic(name, partitions) {
    await this.ask({ op: "grow_topic", name, partitions }, messages.done, { again: false });
  }

  /**
   * Have these partitions (none: all) take no records (`TOPIC_READ_ONLY`), or with `readOnly` false take them again;
   * reads go on. Rejects with `UNKNOWN_TOPIC`, `FORBIDDEN` for the cluster's own topics.
   */
  async setReadOnly(topic, partitions = [], { readOnly = true } = {}) {
    const request = { op: "set_read_only", name: topic, partitions: some([...partitions]) };
    await this.ask({ ...request, read_only: unless(true, readOnly) });
  }

  /** Have the servers close these partitions (none: all), which keep what they hold (`TOPIC_PAUSED`). */
  async pause(topic, partitions = []) {
    await this.ask({ op: "pause_topic", name: topic, partitions: some([...partitions]) });
  }

  /** End a pause: leaders are elected anew. */
  async resume(topic, partitions = []) {
    await this.ask({ op: "pause_topic", name: topic, partitions: some([...partitions]), pause: false });
  }

  /**
   * Have a server that is in sync lead a partition; none: the preferred replica. Resolves when it does. Rejects with
   * `UNKNOWN_TOPIC`, `UNKNOWN_SERVER`, `NOT_REPLICA`, `NOT_IN_SYNC`, `OFFLINE`; with `TimedOut` where it did not get to
   * the end of the log in time, and all is as before.
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
   * Begin to have these servers as the replicas of a partition, the preferred leader first; `describe` shows the
   * `target` until it is done.
   */
  async reassign(topic, partition, replicas) {
    await this.ask({ op: "reassign", name: topic, partition, replicas: [...replicas] });
  }

  /** Go back to the replicas that there were; one that waits for its turn is dropped. */
  async cancelReassignment(topic, partition) {
    await this.ask({ op: "cancel_reassignment", name: topic, partition }, messages.done, { again: false });
  }

  /** Reassignments that would spread the replicas over racks and servers; none is begun. */
  async planRebalance({ emptyDrained = false } = {}) {
    const request = { op: "plan_rebalance", empty_drained: unless(false, emptyDrained) };
    return (await this.ask(request, messages.rebalancePlan)).moves;
  }

  /** Do what `planRebalance` says, a few reassignments per server at a time; resolves when all of it waits for its turn. */
  async rebalance({ emptyDrained = false } = {}) {
    await this.ask({ op: "rebalance", empty_drained: unless(false, emptyDrained) });
  }

  /** Drop all that waits for its turn; what has begun goes on. */
  async cancelRebalance() {
    await this.ask({ op: "rebalance", cancel: true });
  }

  /** Reassignments of rebalances that wait for their turn, in that order. */
  async waitingMoves() {
    return (await this.ask({ op: "plan_rebalance" }, messages.rebalancePlan)).waiting;
  }

  /** Have a server lead nothing where another can, and get no new replicas; `drain` false: have it take part again. */
  async drain(server, drain = true) {
    await this.ask({ op: "drain_server", server, drain: unless(true, drain) });
  }

  /** Look again and again until there is something; `orThrow` may end it. */
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
