/**
 * A consumer that shares partitions with the other members of its group.
 *
 * One task keeps the membership alive (`#run`): it joins, heartbeats, commits now and then. What the answers change is done
 * beside it, so that it never waits for an application or a partition: `#begin` finds out where the group has come to, and
 * `#giveUp` brings to an end what goes. A partition that is owned is a `Share`, a new one each time that it is assigned; it
 * has a consumer of its own, which reads ahead; its batches wait in `HandedOut`.
 *
 * **At least once.** A record counts as done when the application asks for the next, or commits; only what is done is
 * committed: from time to time, before a partition is given up, and at the end (`autoCommitS` null: by `commit` alone). A
 * partition whose record or batch is in the application's hands is given up when that is done.
 */

import { now, sleep } from "../clock.js";
import { Coordinator, LEAVE_TIMEOUT_S } from "../net/coordinator.js";
import { HandedOut } from "./handed-out.js";
import { BrokerError, Closed, TidelogError } from "../errors.js";
import { Membership, Share } from "../core/group-member.js";
import { positionOf } from "./positions.js";

const LOST = ["UNKNOWN_MEMBER", "FENCED_GENERATION"];

/** Iterate over it for records. Made by `Log.consume(topic, {group})`. Who leaves the loop has left the group. */
export class GroupConsumer {
  #connection;
  #options;
  #coordinator;
  #membership;
  #places;
  /** By key: all that is owned, with what is being given up. */
  #shares = new Map();
  #handedOut;
  #kick = new AbortController();
  #running = null;
  #commits = Promise.resolve();
  #committedAt = now();
  /** Counts how often everything was lost. */
  #life = 0;
  #closed = false;
  #failure = null;

  /** `places` opens the consumer of one partition at a position, and locates places in it. */
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

  /** The records of what this member owns, without end. */
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

  /** The records of the next batch. Not to be mixed with iteration in the middle of a batch. */
  async nextRecords() {
    this.#handedOut.comeBack();
    return this.#handedOut.nextBatch();
  }

  /** What this member owns and is not giving up: `[{topicId, topic, partition}]`. */
  get assignment() {
    return this.#kept.map(named);
  }

  /** The member's generation; -1 before it has joined. */
  get generation() {
    return this.#membership.generation;
  }

  /** Where what was handed out ends, which is what `commit` commits: `[{topicId, topic, partition, leaderEpoch, offset}]`. */
  get positions() {
    return this.#kept.filter((share) => share.done).map((share) => ({ ...named(share), ...this.#handedOut.reached(share) }));
  }

  /** Batches that were passed over since they cannot be decoded (`onUnreadable: "skip"`). */
  get skippedBatches() {
    return this.#handedOut.skippedBatches;
  }

  /** Offsets of these batches that were to be read. */
  get skippedOffsets() {
    return this.#handedOut.skippedOffsets;
  }

  /** Of what is owned, that of which nothing is handed out now. */
  get paused() {
    return this.#kept.filter((share) => share.paused).map(named);
  }

  /** Join; resolves when this is a member. Rejects with `INVALID_GROUP`, `GROUP_FULL`, `FORBIDDEN` ... */
  async open() {
    await this.#allowed();
  }

  /**
   * Commit all that was handed out so far: the application has done it, also what it has in its hands, so a partition that
   * is to be given up may go. Rejects with `FENCED_GENERATION` where some of it is no longer this member's, with
   * `UNKNOWN_MEMBER` where it is no member any more.
   */
  async commit() {
    this.#handedOut.settle();
    await this.#commit([...this.#shares.values()]);
  }

  /**
   * Hand nothing of these (`{topic, partition}`, as in `assignment`) out until they are resumed or go to another member; none
   * named: of all that is owned now. Rejects with `UNKNOWN_TOPIC` for what is not owned.
   */
  async pause(...partitions) {
    await this.open();
    for (const share of this.#chosen(partitions)) this.#handedOut.pause(share);
  }

  /** Hand these out again, none named: all. */
  async resume(...partitions) {
    await this.open();
    for (const share of this.#chosen(partitions)) this.#handedOut.resume(share);
  }

  /**
   * Go on there, with these partitions or all that are owned: `earliest`, `latest`, an offset, a Date; or with those that
   * `where` names: `[{topic, partition, offset, leaderEpoch}]`, as `positions`. It is what is committed next. Also the way
   * on after `OFFSET_OUT_OF_RANGE`, `LOG_TRUNCATED` and `UnreadableBatch` (there: to its `nextOffset`). A partition that goes to another member meanwhile is left out.
   */
  async seek(where, ...partitions) {
    await this.open();
    const chosen = this.#chosen(Array.isArray(where) ? where : partitions);
    const find = async (share, at) => (Array.isArray(where) ? positionOf(where[at]) : this.#places.locate(share, where));
    const found = await Promise.all(chosen.map(find));
    chosen.forEach((share, at) => share.gone || this.#handedOut.move(share, found[at]));
  }

  /** Commit what is done (where that is done by itself), and leave the group. What the application had in its hands is another member's to do again. */
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

  /** Until records may be handed out. */
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

  /** Be a member until the end, or an error that stays. */
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

  /** Begin to give up what is to be given up, and to take what is new. */
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

  /** Find out where the group has come to, and read on from there. */
  async #begin(shares) {
    const kept = () => shares.filter((share) => !share.gone);
    while (kept().length && !(await this.#locate(kept()))) await sleep(this.#options.backoffS);
    if (kept().length) await this.#commit(kept()).catch(ignoreTold); // nothing that comes after is passed over by whoever is next
    if (kept().length) await this.#options.onAssigned(kept().map(named));
    for (const share of kept()) this.#handedOut.feed(share);
  }

  /** Where these begin; false: it cannot be told now. */
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

  /** When the application has done what it has in its hands: commit, and let others have them. */
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

  /** Nothing more of these is handed out. */
  async #drop(shares) {
    for (const share of shares) share.gone = true;
    await Promise.all(shares.map((share) => share.consumer?.close()));
  }

  /** The group knows this member no more: what it had is others' by now, and not to be committed. */
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

  /** Commit what is done of these, one commit after the other. */
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


  /** A gateway is there (called by the connection). */
  onLinkUp() {
    this.#beat();
  }

  /** The gateway is gone (called by the connection): requests find the next one by themselves. */
  onLinkDown() {
    this.#handedOut.wake();
  }
}

/** A partition, as the application is told of it. */
function named({ topicId, topic, partition }) {
  return { topicId, topic, partition };
}

/** What is refused here is another's now, or is told by the next heartbeat. */
function ignoreTold(error) {
  if (!(error instanceof TidelogError)) throw error;
}
