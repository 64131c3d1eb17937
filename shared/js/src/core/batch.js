/**
 * A batch in a producer: the records of one partition that are sent together, and are acknowledged or fail together.
 */

import { HEADER_BYTES, encodeBatch, numbered } from "../wire/batch.js";

/** Most bytes that a record costs in a batch besides key, value and headers (CBOR heads, time). */
const RECORD_OVERHEAD = 16;
/** Most bytes that a batch costs besides its records. */
export const BATCH_OVERHEAD = HEADER_BYTES + 64;

/** Return an upper bound of the bytes that a record takes in an uncompressed batch. */
export function recordSize({ value, key, headers }) {
  let size = RECORD_OVERHEAD + (value?.length ?? 0) + (key?.length ?? 0);
  for (const [name, content] of headers) size += RECORD_OVERHEAD + 4 * name.length + content.length;
  return size;
}

/**
 * A batch of records of one partition. It is open (it takes records), then closed (it is encoded when it is first
 * sent), then settled (acked or failed).
 */
export class Batch {
  records = [];
  size = BATCH_OVERHEAD;
  /** Places that the batch takes among the batches in flight; more than one if it grew beyond `batchBytes`. */
  places = 1;
  /** Number of records; 0 until the batch is closed. */
  count = 0;
  /** Sequence of the first record; null if the batch was not numbered yet, or its number was taken back. */
  baseSequence = null;
  /** Number of batches of the lane that got a sequence before this one. */
  ordinal = 0;
  /** Whether some try ended with unknown outcome. The batch may then be in the log whatever later tries return. */
  uncertain = false;
  /** Whether a try under this sequence was lost with its link. */
  astray = false;
  /** The error of the last answer, if a retry may succeed; null before an answer. */
  answer = null;
  settled = false;
  offset = -1;
  leaderEpoch = -1;
  durability = "";
  error = null;
  /** Number of records whose failure was reported to the application. */
  reported = 0;
  /** The shell's promise that it resolves when the batch settles. */
  waiter = null;
  /** The encoded batch, from when it is first sent. */
  data = null;

  constructor(partition, openedAt, deadline, expectedOffset = -1) {
    /** If not -1, the batch may be appended at this offset only. */
    this.expectedOffset = expectedOffset;
    this.partition = partition;
    this.openedAt = openedAt;
    this.deadline = deadline;
  }

  /** Set the batch's place in the producer's sequence, or take it back (null). An encoded batch is numbered anew. */
  number(producerId, baseSequence) {
    this.baseSequence = baseSequence;
    this.answer = null;
    if (this.data && baseSequence !== null) numbered(this.data, producerId, baseSequence);
  }

  /** Encode the batch into `data`, once, and drop its records. */
  encode(codec, codecs, producerId) {
    if (this.data) return;
    this.data = encodeBatch(this.records, { codec, codecs, producerId, baseSequence: this.baseSequence ?? 0 });
    this.records = [];
  }

  /** Mark the batch as acked (null) or failed with `error`, for good. */
  settle(error) {
    this.settled = true;
    this.error = error;
    this.count ||= this.records.length;
    this.records = [];
    this.data = null;
  }
}
