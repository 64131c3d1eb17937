/**
 * Core of a member of a consumer group: what it may own, what it owns, and when it must stop (docs/protocol.md,
 * "Consumer groups"). Without I/O and clock: `now` is given, in seconds.
 *
 * The coordinator *assigns*; the member *owns* what it reads. A partition that is assigned and not owned is to be
 * acquired: the group's position is fetched then, not before, since the member that had the partition may have
 * committed until it gave it up. A partition that is owned and not assigned is to be released: no more of its records
 * are processed, what was processed is committed, and only the heartbeat that no longer names it frees it for others.
 *
 * An answer proves something about the time when its request was sent, no later. So the session is over
 * `sessionTimeoutS` after the last answered heartbeat *was sent*: from then on others may own everything, and no
 * record is handed out until there is an answer.
 */

/** Return the key of a partition of a topic, for Maps. */
export function keyOf(topicId, partition) {
  return `${topicId}/${partition}`;
}

/** A partition that a member owns, from its assignment until it is given up or lost, with its positions. */
export class Share {
  /** Whether no more of its records are returned. */
  gone = false;
  /** Whether others may own it by now, so that its positions are not committed. */
  lost = false;
  paused = false;
  /** The consumer that reads it; null until its beginning is known. */
  consumer = null;
  /** The position after what the application has finished; null until its beginning is known. */
  done = null;
  /** The group's committed position; null if there is none. */
  committed = null;

  constructor({ topicId, topic, partition }) {
    this.topicId = topicId;
    this.topic = topic;
    this.partition = partition;
    this.key = keyOf(topicId, partition);
  }

  get uncommitted() {
    return this.done !== null && this.done.offset !== this.committed?.offset;
  }
}

export class Membership {
  generation = -1;
  heartbeatS = 1;
  #assigned = new Map();
  #owned = new Map();
  #sessionTimeoutS;
  #aliveAt = -Infinity;
  #beatAt = -Infinity;

  constructor(sessionTimeoutS) {
    this.#sessionTimeoutS = sessionTimeoutS;
  }

  /** Apply the answer to a join request that was sent at `sentAt`: assignment, generation and heartbeat interval. */
  onJoined({ generation, heartbeatMs, assignment }, sentAt) {
    this.heartbeatS = heartbeatMs / 1000;
    this.onAnswer({ generation, assignment }, sentAt);
  }

  /**
   * Apply the answer to a heartbeat that was sent at `sentAt`: assignment and generation. An answer of an older
   * generation is ignored.
   */
  onAnswer({ generation, assignment }, sentAt) {
    if (generation < this.generation) return;
    this.generation = generation;
    this.#aliveAt = Math.max(this.#aliveAt, sentAt);
    this.#beatAt = Math.max(this.#beatAt, sentAt);
    this.#assigned.clear();
    for (const { topicId, topic, partitions } of assignment) {
      for (const partition of partitions) this.#assigned.set(keyOf(topicId, partition), { topicId, topic, partition });
    }
  }

  /** Own nothing and be no member any more, because the group no longer knows this member or its generation. */
  onLost() {
    this.generation = -1;
    this.#aliveAt = -Infinity;
    this.#assigned.clear();
    this.#owned.clear();
  }

  /** The partitions that are assigned and not owned yet. */
  get toAcquire() {
    return [...this.#assigned].filter(([key]) => !this.#owned.has(key)).map(([, share]) => share);
  }

  /** The partitions that are owned and not assigned any more. */
  get toRelease() {
    return [...this.#owned].filter(([key]) => !this.#assigned.has(key)).map(([, share]) => share);
  }

  /** Own this partition from now on. */
  acquire(share) {
    this.#owned.set(keyOf(share.topicId, share.partition), share);
  }

  /** No longer own this partition, and make the next heartbeat due at once, which frees it for others. */
  release(share) {
    this.#owned.delete(keyOf(share.topicId, share.partition));
    this.#beatAt = -Infinity;
  }

  /** The owned partitions as a heartbeat names them: `[{topic_id, partitions}]`. */
  get owned() {
    const byTopic = new Map();
    for (const { topicId, partition } of this.#owned.values()) {
      if (!byTopic.has(topicId)) byTopic.set(topicId, []);
      byTopic.get(topicId).push(partition);
    }
    return [...byTopic].map(([topicId, partitions]) => ({ topic_id: topicId, partitions: partitions.sort((a, b) => a - b) }));
  }

  /** The time at which the next heartbeat is due. */
  get beatDue() {
    return this.#beatAt + this.heartbeatS;
  }

  /** Record that a heartbeat is sent now. */
  onBeat(now) {
    this.#beatAt = now;
  }

  /** Return whether the session is over, so that others may own all partitions. */
  isSilent(now) {
    return now >= this.#aliveAt + this.#sessionTimeoutS;
  }
}
