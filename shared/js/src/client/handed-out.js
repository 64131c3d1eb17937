/**
 * The records of a member of a group on their way to the application: what was read ahead, batch by batch, and what the
 * application has in its hands, of which it is not known yet whether it is done.
 */

import { deferred } from "../clock.js";

export class HandedOut {
  #open;
  #allowed;
  #ready = [];
  #records = [];
  /** `{share, position, passed, settled, down}`: up to `position` it is done when the application comes back, and up to
   * `passed`, where batches without records end, when it has come to the end of its batch; `settled`: it has said so by
   * `commit`; `down`: it has come back, or lost it. */
  #hand = null;
  /** What the consumers have skipped since it cannot be decoded. */
  skippedBatches = 0;
  skippedOffsets = 0;
  #news = deferred();

  /** `open` makes the consumer of a share at a position; `allowed` resolves when records may be handed out. */
  constructor(open, allowed) {
    this.#open = open;
    this.#allowed = allowed;
  }

  // --- out ---

  /** There is a rest of the batch in hand. */
  get hasRest() {
    return this.#records.length > 0;
  }

  /** The next record, of another batch if need be. */
  async next() {
    while (!this.#records.length) this.#records = (await this.#take()).reverse();
    const record = this.#records.pop();
    Object.assign(this.#hand, { position: after(record), settled: false });
    return record;
  }

  /** The records of the next batch. */
  async nextBatch() {
    const records = await this.#take();
    this.#hand.position = after(records.at(-1));
    return records;
  }

  /** The next batch, and its share in the application's hands. */
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

  /** The application has done what it had in its hands. */
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

  /** The same, by its own word, before it comes back. */
  settle() {
    this.comeBack();
    if (this.#hand) this.#hand.settled = true;
  }

  /** Where what was handed out of a share ends; null: it is not known where it begins. */
  reached(share) {
    return (this.#hand?.share === share && this.#hand.position) || share.done;
  }

  /** Until the application has done what it has in its hands of these, or they are lost. */
  async wait(shares) {
    while (shares.includes(this.#hand?.share) && !this.#hand.settled && !this.#hand.share.lost) await this.#hand.down.promise;
  }

  /** What the application has in its hands is lost. */
  lose() {
    this.#hand?.down.resolve();
  }

  // --- in ---

  /** Bring the batches of one partition, from where it is done on, one ahead of the application. */
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

  /** A batch of it had no records: its end counts as done together with what was handed out before. */
  #pass(share, end) {
    const before = this.#ready.find((next) => next.share === share) ?? (this.#hand?.share === share ? this.#hand : null);
    if (before) before.passed = end;
    else share.done = end;
  }

  /** Hand nothing of it out until it is resumed. */
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

  /** Read on elsewhere. */
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

  /** Something has changed, since it was asked for. */
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
