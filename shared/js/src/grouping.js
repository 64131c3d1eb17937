/** What a client can ask of consumer groups without being a member. `Log` has all of it. */

import { Moving } from "./moving.js";
import { mapOf, positionOf } from "./places.js";
import * as words from "./words.js";

export class Grouping extends Moving {
  /** Every group: `{group, state, members, coordinator}`. */
  async listGroups() {
    return (await this.ask({ op: "list_groups" }, words.listGroupsAnswer)).groups;
  }

  /** Who is in a group, who has what, and how far it has come. Rejects with `UNKNOWN_GROUP`. */
  async describeGroup(group) {
    return this.ask({ op: "describe_group", group }, words.describeGroupAnswer);
  }

  /** Forget a group without members, and its positions. Rejects with `UNKNOWN_GROUP`, `GROUP_NOT_EMPTY`. */
  async deleteGroup(group) {
    await this.ask({ op: "delete_group", group });
  }

  /** How far a group has come: `{topicId, partition, offset, leaderEpoch, ...}` of each partition that it has begun. */
  async fetchOffsets(group) {
    return (await this.ask({ op: "fetch_offsets", group }, words.fetchOffsetsAnswer)).positions;
  }

  /**
   * Set positions in a topic by hand: a Map (or object) of partition to offset or position. Only while the group has no
   * members. Rejects with `GROUP_NOT_EMPTY`, `UNKNOWN_TOPIC`.
   */
  async commitOffsets(group, topic, positions) {
    const { topicId } = await this.describe(topic);
    const given = [...mapOf(positions)].map(([partition, at]) => [partition, positionOf(at)]);
    const request = {
      op: "commit_offsets",
      group,
      positions: given.map(([partition, { offset, leaderEpoch }]) => {
        return { topic_id: topicId, partition, offset, leader_epoch: words.unless(-1, leaderEpoch) };
      }),
    };
    await this.ask(request);
  }
}
