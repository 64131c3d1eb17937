/**
 * Core of a consumer that reads backwards: which part of a log to read next, and which of its batches to hand out.
 * Without I/O. The rules are those of the Python client (`tidelog/client/core/backward_consumer.py`).
 *
 * Each partition has a *cursor* with a position: every record at or above the position was handed out, or was never
 * wanted. A log can only be read forwards, in whole batches, from an offset on. A cursor therefore reads a *window*: it
 * begins some offsets below the position and holds at most so many bytes. If the answer reaches the position, the
 * window's batches are handed out from the last to the first, and the position moves to the window's beginning. If
 * the answer ends before the position, the window was too wide for its bytes, and a smaller one is tried; a window of
 * one offset always succeeds. The width of the next window follows from the bytes per offset of the last.
 *
 * Leader epochs never rise on the way back. If the log was truncated since the position was read, and written anew,
 * the records below the position have a later epoch: the error is LOG_TRUNCATED. If retention removed records above
 * the requested bound, the remaining ones are handed out first. Then OFFSET_OUT_OF_RANGE names the first offset left.
 */

import { split } from "../wire/batch.js";
import { Fetched, located } from "./consumer.js";
import { BrokerError, TidelogError } from "../errors.js";

/** A window is at most this many times as wide as the one above it. */
const GROWTH = 4;

class BackwardCursor {
  /** Batches of the last window that were not taken yet, the newest last. */
  batches = [];
  failed = null;
  /** Number of offsets of the next window. */
  width = 1;
  maxBytes = 1;

  constructor(partition, start, bound, exact, room) {
    this.partition = partition;
    this.position = start.offset;
    /** Highest leader epoch that the record below the position may have; -1 if any is right. */
    this.epoch = start.leaderEpoch;
    /** Whether the position is known to be in the log's present history. */
    this.checked = start.leaderEpoch < 0;
    this.taken = start;
    this.bound = bound;
    /** Whether it is an error if the log begins above the bound. Otherwise reading ends where the log begins. */
    this.exact = exact;
    /** Most bytes of a window: the smaller of what the reader wants and what a server returns at a time. */
    this.room = room;
  }

  /** Whether the next window should be read now. */
  get wants() {
    return !this.batches.length && !this.failed && (this.position > this.bound || !this.checked);
  }

  look() {
    const { partition } = this;
    if (!this.checked) return { partition, offset: this.position, maxBytes: 1, lastEpoch: this.epoch };
    const offset = Math.max(this.bound, this.position - this.width);
    return { partition, offset, maxBytes: this.maxBytes, lastEpoch: -1 };
  }
}

/**
 * The cursors of one consumer. `starts`: Map of partition to the position below which reading begins; `bounds`: Map of
 * partition to the lowest offset to read, `exact` if it is an error when the log begins above it. A window has at
 * most `windowBytes`, or one batch.
 */
export class BackwardCore {
  #cursors = new Map();
  #ready = [];

  constructor({ topic, starts, bounds, exact, windowBytes }) {
    this.topic = topic;
    for (const partition of [...starts.keys()].sort((a, b) => a - b)) {
      const cursor = new BackwardCursor(partition, starts.get(partition), bounds.get(partition), exact, windowBytes);
      this.#cursors.set(partition, cursor);
      if (cursor.position < cursor.bound && !exact) {
        this.#fail(cursor, outOfRange(`the log starts at ${cursor.bound}`, { log_start: cursor.bound }));
      }
    }
  }

  /** Map of partition to the position down to which the application has taken every record. */
  get positions() {
    return new Map([...this.#cursors].map(([partition, cursor]) => [partition, cursor.taken]));
  }

  /** Return the reads to make now. Each must be answered before the next call. */
  looks() {
    return [...this.#cursors.values()].filter((cursor) => cursor.wants).map((cursor) => cursor.look());
  }

  /**
   * Handle the answer to a read: committed batches from its offset on. If they reach the position they become ready
   * to be taken; otherwise the next window is smaller.
   */
  onBatches(look, payload) {
    const cursor = this.#cursors.get(look.partition);
    if (look.lastEpoch >= 0) {
      cursor.checked = true;
      return;
    }
    try {
      const batches = [...split(payload)].filter(([header]) => header.baseOffset < cursor.position);
      if (!batches.length || batches.at(-1)[0].endOffset < cursor.position) this.#tooWide(cursor, look, batches);
      else this.#takeWindow(cursor, batches);
    } catch (error) {
      if (!(error instanceof TidelogError)) throw error;
      this.#fail(cursor, error);
    }
  }

  #tooWide(cursor, look, batches) {
    if (look.offset + 1 >= cursor.position) throw outOfRange(`no record below ${cursor.position} is committed`);
    if (batches.length) cursor.room = Math.min(cursor.room, sizeOf(batches));
    cursor.width = Math.floor(cursor.width / 2);
    cursor.maxBytes = cursor.room;
  }

  #takeWindow(cursor, batches) {
    const newest = batches.at(-1)[0].leaderEpoch;
    if (cursor.epoch >= 0 && cursor.epoch < newest) {
      const why = `the record below ${cursor.position} was of leader epoch ${cursor.epoch}, it is of ${newest} now`;
      throw new BrokerError(why, { code: "LOG_TRUNCATED", detail: { leader_epoch: newest } });
    }
    const low = Math.max(cursor.bound, batches[0][0].baseOffset);
    const size = sizeOf(batches);
    const covered = cursor.position - low;
    for (const [header, data] of batches) {
      const first = Math.max(header.baseOffset, low);
      cursor.batches.push(new Fetched(cursor.partition, header, data, first, Math.min(header.endOffset, cursor.position)));
    }
    cursor.position = low;
    cursor.epoch = batches[0][0].leaderEpoch;
    cursor.width = Math.max(1, Math.min(GROWTH * covered, Math.floor((cursor.room * covered) / size)));
    cursor.maxBytes = Math.min(cursor.room, Math.floor((GROWTH * size * cursor.width) / covered));
    this.#ready.push(cursor);
  }

  /**
   * Handle an error that a repeated read would not mend: it ends the partition, unless retention has only removed a
   * part of the window.
   */
  onError(look, error) {
    const cursor = this.#cursors.get(look.partition);
    const start = error.detail.log_start;
    const overtaken = error.code === "OFFSET_OUT_OF_RANGE" && typeof start === "number" && start > look.offset;
    if (!overtaken || (start >= cursor.position && (cursor.exact || !cursor.checked))) this.#fail(cursor, error);
    else if (cursor.exact) cursor.width = Math.min(cursor.width, cursor.position - start); // a later look tells of the rest
    else cursor.bound = Math.min(start, cursor.position);
  }

  /**
   * Remove and return the next batch, from the newest to the oldest of each partition; null if no batch is ready.
   * Throws the error that ended a partition after everything above it was taken.
   */
  take() {
    const cursor = this.#ready.shift();
    if (!cursor) {
      const failed = !this.looks().length && [...this.#cursors.values()].find((one) => one.failed);
      if (failed) throw failed.failed;
      return null;
    }
    const item = cursor.batches.pop();
    if (cursor.batches.length) this.#ready.push(cursor);
    const inside = item.first > item.header.baseOffset;
    cursor.taken = { leaderEpoch: inside ? item.header.leaderEpoch : -1, offset: item.first };
    return item;
  }

  /**
   * Stop reading a partition because the application cannot use the batch that was taken last from it. The
   * application has seen the error.
   */
  fail(fetched, error) {
    const cursor = this.#cursors.get(fetched.partition);
    cursor.taken = { leaderEpoch: -1, offset: fetched.end };
    cursor.batches = [];
    cursor.failed = error;
    this.#ready = this.#ready.filter((one) => one !== cursor);
  }

  /** Whether every partition was read down to its bound without an error, and all batches were taken. */
  get isFinished() {
    return ![...this.#cursors.values()].some((cursor) => cursor.batches.length || cursor.wants || cursor.failed);
  }

  #fail(cursor, error) {
    cursor.failed = located(error, this.topic, cursor.partition, cursor.position);
  }
}

function sizeOf(batches) {
  return batches.reduce((sum, [, data]) => sum + data.length, 0);
}

function outOfRange(why, detail = {}) {
  return new BrokerError(why, { code: "OFFSET_OUT_OF_RANGE", detail });
}
