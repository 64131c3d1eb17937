/**
 * Decompression of one LZ4 frame (the formats: lz4_Frame_format.md and lz4_Block_format.md of the LZ4 project). Its own
 * checksums are not looked at: the CRC of the batch covers every byte. The output is of a size that is known before,
 * and nothing is ever written beyond it.
 */

const MAGIC = 0x184d2204;
const MIN_MATCH = 4;
const RAW_BLOCK = 0x80000000;

/**
 * Return the `length` bytes that the frame decompresses to. Throws `RangeError` for a frame that is not exactly that.
 */
export function decompress(frame, length) {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.length);
  if (view.getUint32(0, true) !== MAGIC) throw new RangeError("no LZ4 frame");
  const flags = view.getUint8(4);
  const has = (bit) => (flags >> bit) & 1;
  if (flags >> 6 !== 1 || has(0)) throw new RangeError("an LZ4 frame of an unknown kind");
  let at = 7 + 8 * has(3);
  const out = new Uint8Array(length);
  let end = 0;
  for (;;) {
    const size = view.getUint32(at, true);
    at += 4;
    if (!size) break;
    const block = part(frame, at, size & ~RAW_BLOCK);
    if (size & RAW_BLOCK) {
      if (block.length > length - end) throw new RangeError("the LZ4 frame holds more than it should");
      out.set(block, end);
      end += block.length;
    } else {
      end = decompressBlock(block, out, end);
    }
    at += block.length + 4 * has(4);
  }
  at += 4 * has(2);
  if (at !== frame.length || end !== length) throw new RangeError(`not one LZ4 frame of ${length} bytes`);
  return out;
}

/** Write what the block decompresses to into `out` from `end` on; returns the new end. */
function decompressBlock(block, out, end) {
  let at = 0;
  const more = (count) => {
    let byte = 255;
    while (byte === 255) {
      if (at >= block.length) throw new RangeError("an LZ4 block is cut short");
      count += byte = block[at++];
    }
    return count;
  };
  while (at < block.length) {
    const token = block[at++];
    const literals = token >> 4 === 15 ? more(15) : token >> 4;
    if (literals > block.length - at || literals > out.length - end) throw new RangeError("LZ4 literals too long");
    out.set(block.subarray(at, at + literals), end);
    at += literals;
    end += literals;
    if (at === block.length) return end;
    if (block.length - at < 2) throw new RangeError("an LZ4 block is cut short");
    const distance = block[at] | (block[at + 1] << 8);
    at += 2;
    const match = MIN_MATCH + ((token & 15) === 15 ? more(15) : token & 15);
    if (!distance || distance > end || match > out.length - end) throw new RangeError("an LZ4 match out of bounds");
    if (distance >= match) out.copyWithin(end, end - distance, end - distance + match);
    else for (let i = end; i < end + match; i++) out[i] = out[i - distance];
    end += match;
  }
  return end;
}

function part(frame, at, size) {
  if (size > frame.length - at) throw new RangeError("an LZ4 block is cut short");
  return frame.subarray(at, at + size);
}
