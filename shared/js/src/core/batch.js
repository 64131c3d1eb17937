/** A batch on its way: the records of one partition that leave together and share one fate. */

import { HEADER_BYTES, encodeBatch, numbered } from "../wire/batch.js";

/** Bytes that a record costs in a batch besides key, value and headers, at most (CBOR heads, time). */
const RECORD_OVERHEAD = 16;
/** Bytes that a batch costs besides its records, at most. */
export const BATCH_OVERHEAD = HEADER_BYTES + 64;

/** Upper bound of the bytes of a record in an uncompressed batch. */
export function recordSize({ value, key, headers }) {
  let size = RECORD_OVERHEAD + (value?.length ?? 0) + (key?.length ?? 0);
  for (const [name, content] of headers) size += RECORD_OVERHEAD + 4 * name.length + content.length;
  return size;
}

/** Open (takes records), then sealed (encoded when it is first sent), then settled: acked or failed. */
export class Batch {
  records = [];
  size = BATCH_OVERHEAD;
  /** Of those that may be on their way: more for one that grew. */
  places = 1;
  /** Records of the batch, from when it is sealed. */
  count = 0;
  /** null: no sequence given yet, or taken back. */
  baseSequence = null;
  /** How many batches of the lane got a sequence before this one. */
  ordinal = 0;
  /** A try ended without anyone knowing how: it may be in the log, whatever is answered to later tries. */
  uncertain = false;
  /** A try under this sequence was lost with its link. */
  astray = false;
  /** The last answer, when that was an error that may pass. */
  answer = null;
  settled = false;
  offset = -1;
  leaderEpoch = -1;
  durability = "";
  error = null;
  /** Records whose failure the application has been told of. */
  reported = 0;
  /** The shell's: what it wakes when the batch settles. */
  waiter = null;
  /** The encoded batch, from when it is first sent. */
  data = null;

  constructor(partition, openedAt, deadline, expectedOffset = -1) {
    /** Not -1: it may be appended there only. */
    this.expectedOffset = expectedOffset;
    this.partition = partition;
    this.openedAt = openedAt;
    this.deadline = deadline;
  }

  /** Give (or take back) the place in the producer's sequence. */
  number(producerId, baseSequence) {
    this.baseSequence = baseSequence;
    this.answer = null;
    if (this.data && baseSequence !== null) numbered(this.data, producerId, baseSequence);
  }

  /** Make `data`; the records themselves are let go. */
  encode(codec, codecs, producerId) {
    if (this.data) return;
    this.data = encodeBatch(this.records, { codec, codecs, producerId, baseSequence: this.baseSequence ?? 0 });
    this.records = [];
  }

  /** Acked (null) or failed, for good. */
  settle(error) {
    this.settled = true;
    this.error = error;
    this.count ||= this.records.length;
    this.records = [];
    this.data = null;
  }
}
