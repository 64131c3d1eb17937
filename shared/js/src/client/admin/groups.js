/** What a client can ask of consumer groups without being a member. `Log` has all of it. */

import { mapOf, positionOf } from "../positions.js";
import { Securing } from "./access.js";
import * as messages from "../../wire/messages.js";
import { unless } from "../../wire/shapes.js";

export class Grouping extends Securing {
  /** Every group: `{group, state, members, coordinator}`. */
  async groups() {
    return (await this.ask({ op: "list_groups" }, messages.listGroupsAnswer)).groups;
  }

  /** Who is in a group, who has what, and how far it has come. Rejects with `UNKNOWN_GROUP`. */
  async describeGroup(group) {
    return this.ask({ op: "describe_group", group }, messages.describeGroupAnswer);
  }

  /** Forget a group without members, and its positions. Rejects with `UNKNOWN_GROUP`, `GROUP_NOT_EMPTY`. */
  async deleteGroup(group) {
    await this.ask({ op: "delete_group", group });
  }

  /**
   * How far a group has come in a topic: a Map of partition to position, without those where it has come nowhere. Rejects
   * with `UNKNOWN_TOPIC`.
   */
  async fetchOffsets(group, topic) {
    const { topicId } = await this.describe(topic);
    const { positions } = await this.ask({ op: "fetch_offsets", group }, messages.fetchOffsetsAnswer);
    const found = positions.filter((position) => position.topicId === topicId);
    return new Map(found.map(({ partition, offset, leaderEpoch }) => [partition, { leaderEpoch, offset }]));
  }

  /**
   * Have the group go on there: a Map (or object) of partition to offset or position. Only while the group has no members.
   * Rejects with `GROUP_NOT_EMPTY`, `UNKNOWN_TOPIC`.
   */
  async resetGroup(group, topic, positions) {
    const { topicId } = await this.describe(topic);
    const given = [...mapOf(positions)].map(([partition, at]) => [partition, positionOf(at)]);
    const request = {
      op: "commit_offsets",
      group,
      positions: given.map(([partition, { offset, leaderEpoch }]) => {
        return { topic_id: topicId, partition, offset, leader_epoch: unless(-1, leaderEpoch) };
      }),
    };
    await this.ask(request);
  }
}
