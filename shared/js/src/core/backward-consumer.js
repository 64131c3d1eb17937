/**
 * What a consumer that reads backwards decides: which part of a log to look at next, and what of it to hand out. Without
 * I/O. The same rules as in the Python client (`tidelog/client/core/backward_consumer.py`).
 *
 * Each partition is a *lane* with a position: everything at or above it was handed out or never wanted. Batches can only
 * be read forwards, whole, from an offset on. So a lane looks at a *window*: from so many offsets below its position,
 * with room for so many bytes. Where the answer reaches the position, the window's batches are handed out from the last
 * to the first, and the position moves to where the window began. Where it does not, the window was too wide for its
 * bytes: a smaller one is tried; one of a single offset always succeeds. How wide the next one is follows from how many
 * bytes an offset took in the last.
 *
 * Going back, leader epochs never rise. Where the log was cut since the lane's position was read, and written anew, what
 * stands below the position is of a later epoch: LOG_TRUNCATED. Where retention removed records above the bound that was
 * asked for, what is left is handed out, and then OFFSET_OUT_OF_RANGE says from where on they are missing.
 */

import { split } from "../wire/batch.js";
import { Fetched, located } from "./consumer.js";
import { BrokerError, TidelogError } from "../errors.js";

/** A window is at most so many times as wide as the one above it. */
const GROWTH = 4;

class Lane {
  /** Of the last window, the newest last. */
  batches = [];
  failed = null;
  /** Offsets of the next window. */
  width = 1;
  maxBytes = 1;

  constructor(partition, start, bound, exact, room) {
    this.partition = partition;
    this.position = start.offset;
    /** Leader epoch that the record below the position may have at most; -1: any. */
    this.epoch = start.leaderEpoch;
    /** The position is not one of a line that is gone. */
    this.checked = start.leaderEpoch < 0;
    this.taken = start;
    this.bound = bound;
    /** Down to the bound in any case; else where the log begins by then will do. */
    this.exact = exact;
    /** Bytes that a window may have: as many as are wanted, and as servers give at a time. */
    this.room = room;
  }

  /** It is time to look at the next window. */
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
 * All lanes of one consumer. `starts`: Map of partition to the position below which to begin; `bounds`: Map of partition
 * to the lowest offset, `exact` where it is an error if the log begins above it. A window has `windowBytes` at most, or
 * one batch.
 */
export class BackwardCore {
  #lanes = new Map();
  #ready = [];

  constructor({ topic, starts, bounds, exact, windowBytes }) {
    this.topic = topic;
    for (const partition of [...starts.keys()].sort((a, b) => a - b)) {
      const lane = new Lane(partition, starts.get(partition), bounds.get(partition), exact, windowBytes);
      this.#lanes.set(partition, lane);
      if (lane.position < lane.bound && !exact) {
        this.#fail(lane, outOfRange(`the log starts at ${lane.bound}`, { log_start: lane.bound }));
      }
    }
  }

  /** Per partition: what is below was not taken by the application. */
  get positions() {
    return new Map([...this.#lanes].map(([partition, lane]) => [partition, lane.taken]));
  }

  /** What to read now. Each is to be answered before this is asked again. */
  looks() {
    return [...this.#lanes.values()].filter((lane) => lane.wants).map((lane) => lane.look());
  }

  /** What stands from there on, committed. */
  onBatches(look, payload) {
    const lane = this.#lanes.get(look.partition);
    if (look.lastEpoch >= 0) {
      lane.checked = true;
      return;
    }
    try {
      const batches = [...split(payload)].filter(([header]) => header.baseOffset < lane.position);
      if (!batches.length || batches.at(-1)[0].endOffset < lane.position) this.#tooWide(lane, look, batches);
      else this.#takeWindow(lane, batches);
    } catch (error) {
      if (!(error instanceof TidelogError)) throw error;
      this.#fail(lane, error);
    }
  }

  #tooWide(lane, look, batches) {
    if (look.offset + 1 >= lane.position) throw outOfRange(`no record below ${lane.position} is committed`);
    if (batches.length) lane.room = Math.min(lane.room, sizeOf(batches));
    lane.width = Math.floor(lane.width / 2);
    lane.maxBytes = lane.room;
  }

  #takeWindow(lane, batches) {
    const newest = batches.at(-1)[0].leaderEpoch;
    if (lane.epoch >= 0 && lane.epoch < newest) {
      const why = `the record below ${lane.position} was of leader epoch ${lane.epoch}, it is of ${newest} now`;
      throw new BrokerError(why, { code: "LOG_TRUNCATED", detail: { leader_epoch: newest } });
    }
    const low = Math.max(lane.bound, batches[0][0].baseOffset);
    const size = sizeOf(batches);
    const covered = lane.position - low;
    for (const [header, data] of batches) {
      const first = Math.max(header.baseOffset, low);
      lane.batches.push(new Fetched(lane.partition, header, data, first, Math.min(header.endOffset, lane.position)));
    }
    lane.position = low;
    lane.epoch = batches[0][0].leaderEpoch;
    lane.width = Math.max(1, Math.min(GROWTH * covered, Math.floor((lane.room * covered) / size)));
    lane.maxBytes = Math.min(lane.room, Math.floor((GROWTH * size * lane.width) / covered));
    this.#ready.push(lane);
  }

  /** It cannot be read. An error that may pass is not for here. */
  onError(look, error) {
    const lane = this.#lanes.get(look.partition);
    const start = error.detail.log_start;
    const overtaken = error.code === "OFFSET_OUT_OF_RANGE" && typeof start === "number" && start > look.offset;
    if (!overtaken || (start >= lane.position && (lane.exact || !lane.checked))) this.#fail(lane, error);
    else if (lane.exact) lane.width = Math.min(lane.width, lane.position - start); // a later look tells of the rest
    else lane.bound = Math.min(start, lane.position);
  }

  /**
   * The next batch, from the newest to the oldest per partition; null when nothing waits. Throws the error that ended a
   * partition when everything above it was taken.
   */
  take() {
    const lane = this.#ready.shift();
    if (!lane) {
      const failed = !this.looks().length && [...this.#lanes.values()].find((one) => one.failed);
      if (failed) throw failed.failed;
      return null;
    }
    const item = lane.batches.pop();
    if (lane.batches.length) this.#ready.push(lane);
    const inside = item.first > item.header.baseOffset;
    lane.taken = { leaderEpoch: inside ? item.header.leaderEpoch : -1, offset: item.first };
    return item;
  }

  /**
   * The application cannot use the batch that was taken last of its partition, and was told why: nothing more of the
   * partition is read.
   */
  fail(fetched, error) {
    const lane = this.#lanes.get(fetched.partition);
    lane.taken = { leaderEpoch: -1, offset: fetched.end };
    lane.batches = [];
    lane.failed = error;
    this.#ready = this.#ready.filter((one) => one !== lane);
  }

  /** Every partition was read down to its bound. */
  get isFinished() {
    return ![...this.#lanes.values()].some((lane) => lane.batches.length || lane.wants || lane.failed);
  }

  #fail(lane, error) {
    lane.failed = located(error, this.topic, lane.partition, lane.position);
  }
}

function sizeOf(batches) {
  return batches.reduce((sum, [, data]) => sum + data.length, 0);
}

function outOfRange(why, detail = {}) {
  return new BrokerError(why, { code: "OFFSET_OUT_OF_RANGE", detail });
}
