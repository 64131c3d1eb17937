/** Administration of consumer groups by clients that are not members. `Log` has all of these methods. */

import { mapOf, positionOf } from "../positions.js";
import { Securing } from "./access.js";
import * as messages from "../../wire/messages.js";
import { unless } from "../../wire/shapes.js";

export class Grouping extends Securing {
  /** Resolve with every group: `{group, state, members, coordinator}`. */
  async groups() {
    return (await this.ask({ op: "list_groups" }, messages.listGroupsAnswer)).groups;
  }

  /** Resolve with a group's members, their partitions, and its committed positions. Rejects with `UNKNOWN_GROUP`. */
  async describeGroup(group) {
    return this.ask({ op: "describe_group", group }, messages.describeGroupAnswer);
  }

  /** Delete a group without members, and its positions. Rejects with `UNKNOWN_GROUP`, `GROUP_NOT_EMPTY`. */
  async deleteGroup(group) {
    await this.ask({ op: "delete_group", group });
  }

  /**
   * Resolve with the committed positions of a group in a topic: a Map of partition to position, without partitions
   * that have no position. Rejects with `UNKNOWN_TOPIC`.
   */
  async fetchOffsets(group, topic) {
    const { topicId } = await this.describe(topic);
    const { positions } = await this.ask({ op: "fetch_offsets", group }, messages.fetchOffsetsAnswer);
    const found = positions.filter((position) => position.topicId === topicId);
    return new Map(found.map(({ partition, offset, leaderEpoch }) => [partition, { leaderEpoch, offset }]));
  }

  /**
   * Set the committed positions of a group: a Map (or object) of partition to offset or position. Only while the
   * group has no members. Rejects with `GROUP_NOT_EMPTY`, `UNKNOWN_TOPIC`.
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
