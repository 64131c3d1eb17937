/** The requests of a group's member to the group's coordinator, as messages of the protocol. */

import { keyOf } from "../core/group-member.js";
import * as messages from "../wire/messages.js";
import { some, unless } from "../wire/shapes.js";

/** Longest time in seconds that leaving may take. */
export const LEAVE_TIMEOUT_S = 5;

export class Coordinator {
  #connection;
  #options;
  #topics;
  #member = randomName();

  constructor(connection, topics, options) {
    this.#connection = connection;
    this.#topics = topics;
    this.#options = options;
  }

  async join() {
    const { sessionTimeoutS, rebalanceTimeoutS, assignor } = this.#options;
    const request = {
      op: "join_group",
      ...this.#who,
      topics: this.#topics,
      assignor: unless("", assignor),
      session_timeout_ms: unless(45_000, Math.round(1000 * sessionTimeoutS)),
      rebalance_timeout_ms: unless(60_000, Math.round(1000 * rebalanceTimeoutS)),
    };
    return this.#connection.call(request, messages.joinGroupAnswer);
  }

  async heartbeat({ generation, owned, heartbeatS }) {
    const request = { op: "group_heartbeat", ...this.#who, generation, owned: some(owned) };
    const timeoutS = Math.max(heartbeatS, this.#options.sessionTimeoutS / 3);
    return this.#connection.call(request, messages.groupHeartbeatAnswer, { timeoutS });
  }

  /**
   * Resolve with the group's committed positions in these partitions: a Map by key, without partitions that have no
   * position.
   */
  async fetchOffsets(shares) {
    const parts = [...new Set(shares.map(({ topicId }) => topicId))].map((topicId) => ({
      topic_id: topicId,
      partitions: shares.filter((share) => share.topicId === topicId).map(({ partition }) => partition),
    }));
    const request = { op: "fetch_offsets", group: this.#options.group, parts };
    const { positions } = await this.#connection.call(request, messages.fetchOffsetsAnswer);
    return new Map(
      positions.map(({ topicId, partition, leaderEpoch, offset }) => [keyOf(topicId, partition), { leaderEpoch, offset }]),
    );
  }

  /** Commit these positions, `[share, position]`, in this generation. Rejects with the error of the coordinator. */
  async commit(positions, generation) {
    const request = {
      op: "commit_offsets",
      ...this.#who,
      positions: positions.map(([{ topicId, partition }, { offset, leaderEpoch }]) => {
        return { topic_id: topicId, partition, offset, leader_epoch: unless(-1, leaderEpoch) };
      }),
      generation: unless(-1, generation),
    };
    await this.#connection.call(request);
  }

  async leave() {
    const { group, member } = this.#who;
    await this.#connection.call({ op: "leave_group", group, member }, messages.done, { timeoutS: LEAVE_TIMEOUT_S });
  }

  get #who() {
    return { group: this.#options.group, member: this.#member, instance: unless("", this.#options.instance) };
  }
}

/** Return a random name that no other client has. */
function randomName() {
  const word = () => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0");
  return word() + word() + word() + word();
}
