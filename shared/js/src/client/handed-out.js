/**
 * The records of a member of a group on their way to the application: batches that were read ahead, and the record or
 * batch that the application is processing.
 */

import { deferred } from "../clock.js";

export class HandedOut {
  #open;
  #allowed;
  #ready = [];
  #records = [];
  /**
   * The batch that the application is processing: `{share, position, passed, settled, down}`. It is finished up to
   * `position` when the application asks for more, and up to `passed`, where batches without records end, when the
   * whole batch is processed; `settled`: the application has committed it; `down`: resolved when it is finished or
   * lost.
   */
  #hand = null;
  /** Number of batches, and of offsets in them, that the consumers have skipped because they cannot be decoded. */
  skippedBatches = 0;
  skippedOffsets = 0;
  #news = deferred();

  /** `open` makes the consumer of a share at a position; `allowed` resolves when records may be returned. */
  constructor(open, allowed) {
    this.#open = open;
    this.#allowed = allowed;
  }

  // --- out ---

  /** Whether records of the present batch are left. */
  get hasRest() {
    return this.#records.length > 0;
  }

  /** Resolve with the next record, after taking another batch if needed. */
  async next() {
    while (!this.#records.length) this.#records = (await this.#take()).reverse();
    const record = this.#records.pop();
    Object.assign(this.#hand, { position: after(record), settled: false });
    return record;
  }

  /** Resolve with the records of the next batch. */
  async nextBatch() {
    const records = await this.#take();
    this.#hand.position = after(records.at(-1));
    return records;
  }

  /**
   * Wait for a batch of a partition that is not paused, make it the present one, and resolve with its records.
   * Rejects with the error that ended a partition.
   */
  async #take() {
    for (;;) {
      await this.#allowed();
      this.#ready = this.#ready.filter(({ share }) => !share.gone);
      const at = this.#ready.findIndex(({ share }) => !share.paused);
      if (at < 0) {
        await this.news;
        continue;
      }
      const [next] = this.#ready.splice(at, 1);
      const { share, records, error, taken, passed } = next;
      if (error) {
        this.#ready.push(next); // to be told again, when nothing else is left
        throw error;
      }
      this.#hand = { share, position: null, passed, settled: false, down: deferred() };
      taken.resolve();
      return records;
    }
  }

  /** Count what the application has processed of the present batch as finished, because it asks for more. */
  comeBack() {
    if (!this.#hand) return;
    const { share, position, passed, down } = this.#hand;
    if (position) share.done = position;
    if (share.gone) this.#records = [];
    else if (!this.#records.length && passed) share.done = passed;
    if (this.#records.length) return;
    this.#hand = null;
    down.resolve();
  }

  /**
   * Count what the application has processed of the present batch as finished, because it commits, before it asks for
   * more.
   */
  settle() {
    this.comeBack();
    if (this.#hand) this.#hand.settled = true;
  }

  /**
   * Return the position after the last record that was returned of a share; null if its beginning is not known yet.
   */
  reached(share) {
    return (this.#hand?.share === share && this.#hand.position) || share.done;
  }

  /** Wait until the application has finished its batch of these shares, or they are lost. */
  async wait(shares) {
    while (shares.includes(this.#hand?.share) && !this.#hand.settled && !this.#hand.share.lost) await this.#hand.down.promise;
  }

  /** End the waits for the present batch, because its partition is lost. */
  lose() {
    this.#hand?.down.resolve();
  }

  // --- in ---

  /**
   * Read the batches of one partition, from its finished position on, and keep one ready ahead of the application.
   * Ends when the share is gone or reads on elsewhere, or with an error, which is kept for the application.
   */
  async feed(share) {
    const consumer = this.#open(share, share.done);
    share.consumer = consumer;
    for (;;) {
      const next = { share, taken: deferred(), passed: null };
      let opened = null;
      try {
        opened = await consumer.nextOpened();
        next.records = opened?.records;
      } catch (error) {
        next.error = error;
      }
      if (share.gone || share.consumer !== consumer) return;
      if (opened?.skippedOffsets) {
        this.skippedBatches += 1;
        this.skippedOffsets += opened.skippedOffsets;
      }
      if (opened && !opened.records.length) {
        this.#pass(share, opened.end);
        continue;
      }
      this.#ready.push(next);
      this.wake();
      if (next.error) return;
      await next.taken.promise;
    }
  }

  /** Count a batch without records as finished together with the batch before it. */
  #pass(share, end) {
    const before = this.#ready.find((next) => next.share === share) ?? (this.#hand?.share === share ? this.#hand : null);
    if (before) before.passed = end;
    else share.done = end;
  }

  /** Return no records of this share until `resume`; the rest of the present batch waits, too. */
  pause(share) {
    share.paused = true;
    if (this.#hand?.share !== share || !this.#records.length) return;
    const { passed } = this.#hand;
    this.#ready.unshift({ share, records: this.#records.reverse(), taken: deferred(), passed });
    this.#records = [];
    this.#hand.passed = null;
  }

  resume(share) {
    share.paused = false;
    this.wake();
  }

  /** Read this share on from another position, and drop its batches that wait. */
  move(share, position) {
    share.done = position;
    this.#ready = this.#ready.filter((next) => next.share !== share);
    if (this.#hand?.share === share) {
      this.#records = [];
      this.#hand.position = position;
      this.#hand.passed = null;
    }
    if (!share.consumer) return; // its beginning is being looked up
    share.consumer.close();
    this.feed(share);
  }

  // --- news ---

  /** A promise that resolves when something changes after this moment. */
  get news() {
    return this.#news.promise;
  }

  wake() {
    this.#news.resolve();
    this.#news = deferred();
  }
}

function after({ leaderEpoch, offset }) {
  return { leaderEpoch, offset: offset + 1 };
}
