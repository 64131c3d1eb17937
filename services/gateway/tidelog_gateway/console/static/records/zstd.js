/** zstd for the client: browsers have none of their own (their DecompressionStream reads gzip and deflate). */

import { decompress as unfold } from "../vendor/fzstd.js";

/** Largest exponent of a frame's window: 2^26, the 64 MiB that a batch may unfold to. */
const MAX_WINDOW_LOG = 26;
const SINGLE_SEGMENT = 0x20;

/**
 * Return what one zstd frame decompresses to. Throws an `Error` for a frame that is damaged, or that asks for a window
 * larger than any batch (RFC 8878, 3.1.1.1.2): the memory for it would be taken before anything is read.
 */
export function decompress(frame) {
  if (!(frame[4] & SINGLE_SEGMENT) && 10 + (frame[5] >> 3) > MAX_WINDOW_LOG) throw new RangeError("its window is too large");
  return unfold(frame);
}
