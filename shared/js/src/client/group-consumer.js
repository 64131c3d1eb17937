/**
 * A consumer that shares partitions with the other members of its group.
 *
 * One task keeps the membership (`#run`): it joins, heartbeats and commits at intervals. What its answers change is
 * done beside it, so that it never waits for an application or a partition: `#begin` looks up the group's positions,
 * and `#giveUp` finishes the partitions that are revoked. A partition that is owned is a `Share`, a new one each time
 * that it is assigned; it has a consumer of its own, which reads ahead; its batches wait in `HandedOut`.
 *
 * **At least once.** A record is finished when the application asks for the next one, or commits. Only finished
 * positions are committed: at intervals, before a partition is given up, and at the end (`autoCommitS` null: by
 * `commit` alone). A partition of which the application is processing a record or batch is given up when it has
 * finished that.
 */

import { now, sleep } from "../clock.js";
import { Coordinator, LEAVE_TIMEOUT_S } from "../net/coordinator.js";
import { HandedOut } from "./handed-out.js";
import { BrokerError, Closed, TidelogError } from "../errors.js";
import { Membership, Share } from "../core/group-member.js";
import { positionOf } from "./positions.js";

const LOST = ["UNKNOWN_MEMBER", "FENCED_GENERATION"];

/**
 * An asynchronous iterable over the records of the partitions that this member owns. Made by `Log.consume(topic,
 * {group})`. Leaving the loop leaves the group.
 */
export class GroupConsumer {
  #connection;
  #options;
  #coordinator;
  #membership;
  #places;
  /** Every partition that is owned, by key, with those that are being given up. */
  #shares = new Map();
  #handedOut;
  #kick = new AbortController();
  #running = null;
  #commits = Promise.resolve();
  #committedAt = now();
  /** Number of times that all partitions were lost. */
  #life = 0;
  #closed = false;
  #failure = null;

  /** `places` opens the consumer of one partition at a position, and looks up the positions of places. */
  constructor(connection, topics, options, places) {
    this.topics = topics;
    this.group = options.group;
    this.#connection = connection;
    this.#options = options;
    this.#coordinator = new Coordinator(connection, topics, options);
    this.#membership = new Membership(options.sessionTimeoutS);
    this.#places = places;
    this.#handedOut = new HandedOut((share, position) => places.open(share, position, this.#shares.size), () => this.#allowed());
  }

  // --- for applications ---

  /** Yield the records of the partitions that this member owns, without end. */
  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        this.#handedOut.comeBack();
        if (this.#handedOut.hasRest && this.#membership.isSilent(now())) {
          await this.#allowed();
          this.#handedOut.comeBack();
        }
        yield await this.#handedOut.next();
      }
    } finally {
      await this.close();
    }
  }

  /** Resolve with the records of the next batch. Do not mix with iteration in the middle of a batch. */
  async nextRecords() {
    this.#handedOut.comeBack();
    return this.#handedOut.nextBatch();
  }

  /** The partitions that this member owns and is not giving up: `[{topicId, topic, partition}]`. */
  get assignment() {
    return this.#kept.map(named);
  }

  /** The member's generation; -1 before it has joined. */
  get generation() {
    return this.#membership.generation;
  }

  /**
   * The position after the last record that was returned of each partition, which `commit` commits: `[{topicId,
   * topic, partition, leaderEpoch, offset}]`.
   */
  get positions() {
    return this.#kept.filter((share) => share.done).map((share) => ({ ...named(share), ...this.#handedOut.reached(share) }));
  }

  /** Number of batches that were skipped because they cannot be decoded (`onUnreadable: "skip"`). */
  get skippedBatches() {
    return this.#handedOut.skippedBatches;
  }

  /** Number of offsets in the skipped batches, counting only those that were to be read. */
  get skippedOffsets() {
    return this.#handedOut.skippedOffsets;
  }

  /** The owned partitions that are paused. */
  get paused() {
    return this.#kept.filter((share) => share.paused).map(named);
  }

  /**
   * Join the group; resolves when this is a member. Rejects with `INVALID_GROUP`, `GROUP_FULL`, `FORBIDDEN`, among
   * others.
   */
  async open() {
    await this.#allowed();
  }

  /**
   * Commit the position after every record that was returned. This finishes the record that the application is
   * processing, so a partition that is to be given up may go. Rejects with `FENCED_GENERATION` if some partition is
   * no longer this member's, with `UNKNOWN_MEMBER` if it is no longer a member.
   */
  async commit() {
    this.#handedOut.settle();
    await this.#commit([...this.#shares.values()]);
  }

  /**
   * Return no records of these partitions (`{topic, partition}`, as in `assignment`) until they are resumed or move
   * to another member; none named: of all that are owned now. Rejects with `UNKNOWN_TOPIC` for a partition that is
   * not owned.
   */
  async pause(...partitions) {
    await this.open();
    for (const share of this.#chosen(partitions)) this.#handedOut.pause(share);
  }

  /** Return records of these partitions again; none named: of all. */
  async resume(...partitions) {
    await this.open();
    for (const share of this.#chosen(partitions)) this.#handedOut.resume(share);
  }

  /**
   * Read on from this place (`earliest`, `latest`, an offset, a Date) in these partitions or in all that are owned;
   * or in those that `where` names: `[{topic, partition, offset, leaderEpoch}]`, as `positions`. The new positions
   * are committed next. Use it also to go on after `OFFSET_OUT_OF_RANGE`, `LOG_TRUNCATED` and `UnreadableBatch` (with
   * its `nextOffset`). A partition that moves to another member meanwhile is left out.
   */
  async seek(where, ...partitions) {
    await this.open();
    const chosen = this.#chosen(Array.isArray(where) ? where : partitions);
    const find = async (share, at) => (Array.isArray(where) ? positionOf(where[at]) : this.#places.locate(share, where));
    const found = await Promise.all(chosen.map(find));
    chosen.forEach((share, at) => share.gone || this.#handedOut.move(share, found[at]));
  }

  /**
   * Commit finished positions (if commits are automatic), and leave the group. Another member processes the present
   * record or batch again.
   */
  async close() {
    if (this.#closed) return;
    this.#closed = true;
    this.#connection.detach(this);
    this.#handedOut.wake();
    this.#kick.abort();
    await Promise.race([this.#running, sleep(LEAVE_TIMEOUT_S)]);
    const shares = [...this.#shares.values()];
    await this.#drop(shares);
    if (this.#membership.generation < 0 || this.#connection.closed) return;
    if (this.#options.autoCommitS !== null) await this.#commit(shares).catch(ignoreTold);
    await this.#coordinator.leave().catch(ignoreTold);
  }

  // --- records ---

  get #kept() {
    return [...this.#shares.values()].filter((share) => !share.gone);
  }

  #chosen(partitions) {
    if (!partitions.length) return this.#kept;
    return partitions.map(({ topic, partition }) => {
      const share = this.#kept.find((one) => one.topic === topic && one.partition === partition);
      if (share) return share;
      throw new BrokerError(`this member of ${this.group} does not have ${topic}/${partition}`, { code: "UNKNOWN_TOPIC" });
    });
  }

  /** Wait until records may be returned: this is a member whose session has not timed out. */
  async #allowed() {
    for (;;) {
      if (this.#connection.closed) throw new Closed("the client was closed");
      if (this.#closed) throw new Closed(`the consumer of group ${this.group} is closed`);
      if (this.#failure) throw this.#failure;
      this.#running ??= this.#start();
      if (!this.#membership.isSilent(now())) return;
      await this.#handedOut.news;
    }
  }

  // --- the group ---

  #start() {
    this.#connection.attach(this);
    return this.#run().catch((error) => this.#fail(error));
  }

  #fail(error) {
    this.#failure ??= error;
    this.#handedOut.wake();
  }

  /** Join, heartbeat and commit until `close`, or an error that is not retriable. */
  async #run() {
    while (!this.#closed && !this.#failure) {
      try {
        if (this.#membership.generation < 0) await this.#join();
        else if (now() >= this.#membership.beatDue) await this.#heartbeat();
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
    if (LOST.includes(error.code)) this.#lose();
    else if (!link && now() >= downSince + requestTimeoutS) throw this.#connection.unreachable();
    else if (error.retriable) await this.#pause(Math.max(this.#options.backoffS, error.pauseS));
    else throw error;
  }

  async #join() {
    const sentAt = now();
    this.#membership.onJoined(await this.#coordinator.join(), sentAt);
    this.#settle();
    this.#handedOut.wake();
  }

  async #heartbeat() {
    const sentAt = now();
    const life = this.#life;
    this.#membership.onBeat(sentAt);
    const answer = await this.#coordinator.heartbeat(this.#membership);
    if (life !== this.#life) return; // it tells of what was lost meanwhile
    this.#membership.onAnswer(answer, sentAt);
    this.#settle();
    this.#handedOut.wake();
  }

  /** Begin to give up the partitions that are no longer assigned, and to read the new ones. */
  #settle() {
    if (this.#closed) return;
    const leaving = this.#membership.toRelease.map(({ key }) => this.#shares.get(key)).filter((share) => !share.gone);
    if (leaving.length) this.#giveUp(leaving).catch((error) => this.#fail(error));
    const fresh = this.#membership.toAcquire.map((assigned) => new Share(assigned));
    for (const share of fresh) {
      this.#membership.acquire(share);
      this.#shares.set(share.key, share);
    }
    if (fresh.length) this.#begin(fresh).catch((error) => this.#fail(error));
  }

  /**
   * Look up the group's positions in these partitions, commit `start` where there is none, call `onAssigned`, and
   * read on from the positions.
   */
  async #begin(shares) {
    const kept = () => shares.filter((share) => !share.gone);
    while (kept().length && !(await this.#locate(kept()))) await sleep(this.#options.backoffS);
    if (kept().length) await this.#commit(kept()).catch(ignoreTold); // nothing that comes after is passed over by whoever is next
    if (kept().length) await this.#options.onAssigned(kept().map(named));
    for (const share of kept()) this.#handedOut.feed(share);
  }

  /** Look up the positions at which these partitions begin. Resolves with false after a retriable error. */
  async #locate(shares) {
    try {
      const known = await this.#coordinator.fetchOffsets(shares);
      const find = async (share) => {
        share.committed = known.get(share.key) ?? null;
        const start = share.committed ?? (await this.#places.locate(share, this.#options.start));
        share.done ??= start;
      };
      await Promise.all(shares.map(find));
      return true;
    } catch (error) {
      if (!error.retriable && error.code !== "UNKNOWN_TOPIC") throw error; // its deletion takes it away soon
      return false;
    }
  }

  /**
   * Wait until the application has finished its record or batch of these partitions, call `onRevoked`, commit, and
   * release them. A step is left out if they were lost meanwhile.
   */
  async #giveUp(shares) {
    await this.#drop(shares);
    const isOver = () => this.#closed || shares.some((share) => share.lost);
    await this.#handedOut.wait(shares);
    if (!isOver()) await this.#options.onRevoked(shares.map(named));
    if (!isOver() && this.#options.autoCommitS !== null) await this.#commit(shares).catch(ignoreTold);
    if (isOver()) return;
    for (const share of shares) {
      this.#shares.delete(share.key);
      this.#membership.release(share);
    }
    this.#beat();
  }

  /** Return no more records of these partitions, and close their consumers. */
  async #drop(shares) {
    for (const share of shares) share.gone = true;
    await Promise.all(shares.map((share) => share.consumer?.close()));
  }

  /**
   * Give up all partitions at once, without a commit, because the group no longer knows this member and others may
   * own them. Calls `onLost`.
   */
  #lose() {
    const { assignment } = this;
    const shares = [...this.#shares.values()];
    this.#life++;
    this.#membership.onLost();
    this.#shares.clear();
    for (const share of shares) share.lost = true;
    this.#drop(shares).catch((error) => this.#fail(error));
    this.#handedOut.lose();
    if (assignment.length) this.#tellLost(assignment).catch((error) => this.#fail(error));
    this.#beat();
  }

  async #tellLost(assignment) {
    await this.#options.onLost(assignment);
  }

  /** Commit the finished positions of these partitions, after the commits before it. */
  #commit(shares) {
    this.#commits = this.#commits.catch(ignoreTold).then(() => this.#commitOnce(shares));
    return this.#commits;
  }

  async #commitOnce(shares, again = true) {
    const due = shares.filter((share) => share.uncommitted && this.#shares.get(share.key) === share);
    if (!due.length) return;
    const positions = due.map((share) => [share, share.done]);
    const life = this.#life;
    try {
      await this.#coordinator.commit(positions, this.#membership.generation);
    } catch (error) {
      if (error.code === "UNKNOWN_MEMBER" && life === this.#life) this.#lose();
      if (error.code !== "FENCED_GENERATION" || !again) throw error;
      await this.#heartbeat(); // it tells the present generation, in which all that is still ours may be committed
      await this.#commitOnce(shares, false);
      return;
    }
    for (const [share, position] of positions) share.committed = position;
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

  /** Wait until a heartbeat or a commit is due, or `#beat` is called. */
  #rest() {
    return this.#pause(Math.min(this.#membership.beatDue, this.#commitDue) - now());
  }

  async #pause(seconds) {
    await sleep(Math.max(0, seconds), this.#kick.signal);
    if (this.#kick.signal.aborted && !this.#closed) this.#kick = new AbortController();
  }

  /** End the wait of `#rest`, because something has changed. */
  #beat() {
    this.#kick.abort();
  }


  /** End the wait of the membership's task, because a link is open again (called by the connection). */
  onLinkUp() {
    this.#beat();
  }

  /**
   * Wake the application's task, which may have to give up (called by the connection). Requests wait for the next
   * link by themselves.
   */
  onLinkDown() {
    this.#handedOut.wake();
  }
}

/** Return a partition as the application sees it. */
function named({ topicId, topic, partition }) {
  return { topicId, topic, partition };
}

/**
 * Ignore an error of the cluster: what is refused belongs to another member now, or the next heartbeat reports it.
 * Throws other errors.
 */
function ignoreTold(error) {
  if (!(error instanceof TidelogError)) throw error;
}
