/**
 * A consumer that shares partitions with the other members of its group.
 *
 * One task keeps the membership alive (`#run`): it joins, heartbeats, acquires and releases what `Membership` says. Each
 * partition that is owned has a consumer of its own, which reads ahead; batches wait in `#ready` for the application.
 *
 * **At least once.** A record counts as done when the application asks for the next; only what is done is committed: from
 * time to time, before a partition is given up, and at the end (`autoCommitS` null: by `commit` alone). A partition whose record or batch is in the
 * application's hands is given up when it comes back.
 */

import { deferred, now, sleep } from "./clock.js";
import { Closed, TidelogError } from "./errors.js";
import { Membership, Share, keyOf } from "./membership.js";
import * as words from "./words.js";

const LOST = ["UNKNOWN_MEMBER", "FENCED_GENERATION"];
/** Longest wait for the end of it all when a member leaves. */
const LEAVE_TIMEOUT_S = 5;

/** Iterate over it for records. Made by `Log.consume(topic, {group})`. Who leaves the loop has left the group. */
export class GroupConsumer {
  #connection;
  #options;
  #member = randomName();
  #membership;
  #read;
  #shares = new Map();
  #ready = [];
  #records = [];
  /** What the application is busy with: `{share, position}`, to which position it is done when it comes back. */
  #hand = null;
  #news = deferred();
  #kick = new AbortController();
  #running = null;
  #commits = Promise.resolve();
  #committedAt = now();
  #closed = false;
  #failure = null;

  /** `read(share, position)` makes the consumer of one partition; `position` null: the group has come nowhere there. */
  constructor(connection, topics, options, read) {
    this.topics = topics;
    this.group = options.group;
    this.#connection = connection;
    this.#options = options;
    this.#membership = new Membership(options.sessionTimeoutS);
    this.#read = read;
  }

  // --- for applications ---

  /** The records of what this member owns, without end. */
  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        this.#comeBack();
        if (this.#records.length && this.#membership.isSilent(now())) {
          await this.#allowed();
          this.#comeBack();
        }
        while (!this.#records.length) this.#records = (await this.#take()).reverse();
        const record = this.#records.pop();
        this.#hand.position = after(record);
        yield record;
      }
    } finally {
      await this.close();
    }
  }

  /** The records of the next batch. Not to be mixed with iteration in the middle of a batch. */
  async nextRecords() {
    this.#comeBack();
    const records = await this.#take();
    this.#hand.position = after(records.at(-1));
    return records;
  }

  /** What this member owns: `[{topicId, topic, partition}]`. */
  get assignment() {
    return [...this.#shares.values()].map(({ topicId, topic, partition }) => ({ topicId, topic, partition }));
  }

  /** Join; resolves when this is a member. Rejects with `INVALID_GROUP`, `GROUP_FULL`, `FORBIDDEN` ... */
  async open() {
    this.#running ??= this.#start();
    await this.#allowed();
  }

  /**
   * Commit all that was handed out so far: the application has done it, also what it has in its hands. Rejects with
   * `FENCED_GENERATION` where some of it is no longer this member's, with `UNKNOWN_MEMBER` where it is no member any more.
   */
  async commit() {
    this.#comeBack();
    await this.#commit([...this.#shares.values()]);
  }

  /** Commit what is done (where that is done by itself), and leave the group. What the application had in its hands is another member's to do again. */
  async close() {
    if (this.#closed) return;
    this.#closed = true;
    this.#connection.detach(this);
    this.#wake();
    this.#kick.abort();
    await Promise.race([this.#running, sleep(LEAVE_TIMEOUT_S)]);
    const shares = [...this.#shares.values()];
    await Promise.all(shares.map((share) => share.consumer.close()));
    if (this.#membership.generation < 0 || this.#connection.closed) return;
    if (this.#options.autoCommitS !== null) await this.#commit(shares).catch(ignoreTold);
    const request = { op: "leave_group", group: this.group, member: this.#member };
    await this.#connection.call(request, words.done, { timeoutS: LEAVE_TIMEOUT_S }).catch(ignoreTold);
  }

  // --- records ---

  /** The application has done what it had in its hands. */
  #comeBack() {
    if (this.#hand?.position) this.#hand.share.done = this.#hand.position;
    if (this.#hand && (this.#hand.share.gone || !this.#membership.isAssigned(this.#hand.share.key))) this.#records = [];
    if (!this.#records.length) this.#hand = null;
    if (this.#membership.toRelease.length) this.#beat();
  }

  /** The next batch of records, and its share in the application's hands. */
  async #take() {
    this.#running ??= this.#start();
    for (;;) {
      await this.#allowed();
      const next = this.#ready.shift();
      if (!next) {
        await this.#news.promise;
        continue;
      }
      const { share, records, error, taken } = next;
      if (share.gone || !this.#membership.isAssigned(share.key)) continue;
      if (error) {
        this.#ready.push(next); // to be told again, when nothing else is left
        throw error;
      }
      this.#hand = { share, position: null };
      taken.resolve();
      return records;
    }
  }

  /** Until records may be handed out. */
  async #allowed() {
    for (;;) {
      if (this.#connection.closed) throw new Closed("the client was closed");
      if (this.#closed) throw new Closed(`the consumer of group ${this.group} is closed`);
      if (this.#failure) throw this.#failure;
      if (!this.#membership.isSilent(now())) return;
      await this.#news.promise;
    }
  }

  /** Bring the batches of one partition, one ahead of the application. */
  async #feed(share) {
    while (!share.gone) {
      const next = { share, taken: deferred() };
      try {
        next.records = await share.consumer.nextRecords();
      } catch (error) {
        next.error = error;
      }
      if (share.gone) return;
      this.#ready.push(next);
      this.#wake();
      if (next.error) return;
      await next.taken.promise;
    }
  }

  // --- the group ---

  #start() {
    this.#connection.attach(this);
    return this.#run().catch((error) => {
      this.#failure = error;
      this.#wake();
    });
  }

  /** Be a member until the end, or an error that stays. */
  async #run() {
    while (!this.#closed) {
      try {
        if (this.#membership.generation < 0) await this.#join();
        else if (now() >= this.#membership.beatDue) await this.#heartbeat();
        await this.#settle();
        await this.#commitNowAndThen();
        if (!this.#closed) await this.#rest();
      } catch (error) {
        if (this.#closed) return;
        await this.#survive(error);
      }
    }
  }

  async #survive(error) {
    const { link, downSince, requestTimeoutS } = this.#connection;
    if (LOST.includes(error.code)) await this.#lose();
    else if (!link && now() >= downSince + requestTimeoutS) throw this.#connection.unreachable();
    else if (error.retriable) await this.#pause(Math.max(this.#options.backoffS, error.pauseS));
    else throw error;
  }

  async #join() {
    const { sessionTimeoutS, rebalanceTimeoutS, instance, assignor } = this.#options;
    const sentAt = now();
    const request = {
      op: "join_group",
      group: this.group,
      member: this.#member,
      topics: this.topics,
      instance: words.unless("", instance),
      assignor: words.unless("", assignor),
      session_timeout_ms: words.unless(45_000, Math.round(1000 * sessionTimeoutS)),
      rebalance_timeout_ms: words.unless(60_000, Math.round(1000 * rebalanceTimeoutS)),
    };
    this.#membership.onJoined(await this.#connection.call(request, words.joinGroupAnswer), sentAt);
    this.#wake();
  }

  async #heartbeat() {
    const sentAt = now();
    this.#membership.onBeat(sentAt);
    const { generation, owned } = this.#membership;
    const request = {
      op: "group_heartbeat",
      group: this.group,
      member: this.#member,
      generation,
      owned: words.some(owned),
      instance: words.unless("", this.#options.instance),
    };
    const timeoutS = Math.max(this.#membership.heartbeatS, this.#options.sessionTimeoutS / 3);
    const answer = await this.#connection.call(request, words.groupHeartbeatAnswer, { timeoutS });
    this.#membership.onAnswer(answer, sentAt);
    this.#wake();
  }

  /** Give up what is to be given up, and take what is new. */
  async #settle() {
    const membership = this.#membership;
    const leaving = membership.toRelease.filter((share) => this.#shareOf(share) !== this.#hand?.share);
    if (leaving.length) {
      const shares = leaving.map((share) => this.#shareOf(share));
      await this.#drop(shares);
      await this.#options.onRevoked(leaving);
      if (this.#options.autoCommitS !== null) await this.#commit(shares).catch(ignoreTold);
      for (const share of leaving) membership.release(share);
    }
    const wanted = membership.toAcquire;
    if (!wanted.length) return;
    const parts = [...new Set(wanted.map(({ topicId }) => topicId))].map((topicId) => ({
      topic_id: topicId,
      partitions: wanted.filter((share) => share.topicId === topicId).map(({ partition }) => partition),
    }));
    const request = { op: "fetch_offsets", group: this.group, parts };
    const { positions } = await this.#connection.call(request, words.fetchOffsetsAnswer);
    const known = new Map(positions.map((position) => [keyOf(position.topicId, position.partition), position]));
    for (const assigned of wanted) {
      const key = keyOf(assigned.topicId, assigned.partition);
      if (membership.isAssigned(key)) this.#acquire(assigned, known.get(key));
    }
    await this.#options.onAssigned(wanted);
  }

  #shareOf({ topicId, partition }) {
    return this.#shares.get(keyOf(topicId, partition));
  }

  #acquire(assigned, found) {
    const position = found ? { leaderEpoch: found.leaderEpoch, offset: found.offset } : null;
    const share = new Share(assigned, this.#read(assigned, position));
    share.committed = position;
    this.#membership.acquire(assigned);
    this.#shares.set(share.key, share);
    this.#feed(share);
  }

  /** Nothing more of these is handed out. */
  async #drop(shares) {
    for (const share of shares) {
      share.gone = true;
      this.#shares.delete(share.key);
    }
    await Promise.all(shares.map((share) => share.consumer.close()));
  }

  /** The group knows this member no more: what it had is others' by now, and not to be committed. */
  async #lose() {
    const { assignment } = this;
    this.#membership.onLost();
    await this.#drop([...this.#shares.values()]);
    if (assignment.length) await this.#options.onLost(assignment);
  }

  /** Commit what is done of these, one commit after the other. */
  #commit(shares) {
    this.#commits = this.#commits.catch(ignoreTold).then(() => this.#commitOnce(shares));
    return this.#commits;
  }

  async #commitOnce(shares, again = true) {
    const due = shares.filter((share) => share.uncommitted && this.#membership.owns(share.key));
    if (!due.length) return;
    const done = due.map((share) => share.done);
    const request = {
      op: "commit_offsets",
      group: this.group,
      positions: due.map(({ topicId, partition }, i) => {
        return { topic_id: topicId, partition, offset: done[i].offset, leader_epoch: words.unless(-1, done[i].leaderEpoch) };
      }),
      member: this.#member,
      generation: words.unless(-1, this.#membership.generation),
      instance: words.unless("", this.#options.instance),
    };
    try {
      await this.#connection.call(request);
    } catch (error) {
      if (error.code !== "FENCED_GENERATION" || !again) throw error;
      await this.#heartbeat(); // it tells the present generation, in which all that is still ours may be committed
      await this.#commitOnce(shares, false);
      return;
    }
    due.forEach((share, i) => (share.committed = done[i]));
  }

  async #commitNowAndThen() {
    if (now() < this.#commitDue) return;
    this.#committedAt = now();
    await this.#commit([...this.#shares.values()]);
  }

  get #commitDue() {
    const { autoCommitS } = this.#options;
    return autoCommitS === null ? Infinity : this.#committedAt + autoCommitS;
  }

  // --- waiting ---

  /** Until something is due, or `#beat`. */
  #rest() {
    return this.#pause(Math.min(this.#membership.beatDue, this.#commitDue) - now());
  }

  async #pause(seconds) {
    await sleep(Math.max(0, seconds), this.#kick.signal);
    if (this.#kick.signal.aborted && !this.#closed) this.#kick = new AbortController();
  }

  /** There is something to be settled. */
  #beat() {
    this.#kick.abort();
  }

  #wake() {
    this.#news.resolve();
    this.#news = deferred();
  }

  /** A gateway is there (called by the connection). */
  onLinkUp() {
    this.#beat();
  }

  /** The gateway is gone (called by the connection): requests find the next one by themselves. */
  onLinkDown() {
    this.#wake();
  }
}

/** A name that nobody else has. */
function randomName() {
  const word = () => Math.floor(Math.random() * 2 ** 32).toString(16).padStart(8, "0");
  return word() + word() + word() + word();
}

function after({ leaderEpoch, offset }) {
  return { leaderEpoch, offset: offset + 1 };
}

/** What is refused here is another's now, or is told by the next heartbeat. */
function ignoreTold(error) {
  if (!(error instanceof TidelogError)) throw error;
}
