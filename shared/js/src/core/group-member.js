/**
 * A member of a consumer group: what it may own, what it owns, and when it must stop (docs/protocol.md, "Consumer
 * groups"). Without I/O and clock: `now` is given, in seconds.
 *
 * The coordinator *assigns*; the member *owns* what it reads. What is assigned and not owned is to be acquired: its
 * position is asked for then, not before, since whoever had it may have committed until it gave it up. What is owned and
 * not assigned is to be released: nothing more of it is processed, what was processed is committed, and only the
 * heartbeat that no longer names it frees it for others.
 *
 * An answer tells something about the time when its request was sent, no later. So the session is over `sessionTimeoutS`
 * after the last answered heartbeat *was sent*: from then on others may own everything, and nothing is handed out until
 * there is an answer.
 */

/** A partition of a topic as a key. */
export function keyOf(topicId, partition) {
  return `${topicId}/${partition}`;
}

/** A partition that a member owns, from when it is assigned until it is given up or lost, and how far it has come. */
export class Share {
  /** Nothing more of it is handed out. */
  gone = false;
  /** Others may own it by now: nothing more of it is committed. */
  lost = false;
  paused = false;
  /** Reads it, once it is known from where. */
  consumer = null;
  /** Up to here everything was processed; null: it is not known where it begins. */
  done = null;
  /** Up to here it was committed. */
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

  /** The answer to a join that was sent at `sentAt`. */
  onJoined({ generation, heartbeatMs, assignment }, sentAt) {
    this.heartbeatS = heartbeatMs / 1000;
    this.onAnswer({ generation, assignment }, sentAt);
  }

  /** The answer to a heartbeat that was sent at `sentAt`. One that was overtaken by a later one says nothing new. */
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

  /** The group knows this member no more, or in another generation: nothing is owned. */
  onLost() {
    this.generation = -1;
    this.#aliveAt = -Infinity;
    this.#assigned.clear();
    this.#owned.clear();
  }

  /** Assigned, and not owned yet. */
  get toAcquire() {
    return [...this.#assigned].filter(([key]) => !this.#owned.has(key)).map(([, share]) => share);
  }

  /** Owned, and not assigned any more. */
  get toRelease() {
    return [...this.#owned].filter(([key]) => !this.#assigned.has(key)).map(([, share]) => share);
  }

  /** It is read from now on. */
  acquire(share) {
    this.#owned.set(keyOf(share.topicId, share.partition), share);
  }

  /** It was given up: a heartbeat is due that says so. */
  release(share) {
    this.#owned.delete(keyOf(share.topicId, share.partition));
    this.#beatAt = -Infinity;
  }

  /** What a heartbeat names: `[{topic_id, partitions}]`. */
  get owned() {
    const byTopic = new Map();
    for (const { topicId, partition } of this.#owned.values()) {
      if (!byTopic.has(topicId)) byTopic.set(topicId, []);
      byTopic.get(topicId).push(partition);
    }
    return [...byTopic].map(([topicId, partitions]) => ({ topic_id: topicId, partitions: partitions.sort((a, b) => a - b) }));
  }

  /** When the next heartbeat is due. */
  get beatDue() {
    return this.#beatAt + this.heartbeatS;
  }

  /** A heartbeat goes out now. */
  onBeat(now) {
    this.#beatAt = now;
  }

  /** Others may own everything by now. */
  isSilent(now) {
    return now >= this.#aliveAt + this.#sessionTimeoutS;
  }
}
