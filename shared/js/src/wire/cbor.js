/**
 * The part of CBOR (RFC 8949) that the protocol uses, strictly: integers, texts, byte strings, arrays, maps with text
 * keys, true, false, null; definite lengths. Everything else is refused: tags, floats, indefinite lengths, duplicate
 * keys, deep nesting, more items than were allowed, bad UTF-8.
 *
 * Integers are Numbers. One beyond 2^53 - 1 is read as a BigInt, which no field of the protocol takes. Byte strings are
 * read as views of the data, not copied. Maps are read without prototype: no key is special.
 */

import { ProtocolError } from "../errors.js";

/** Deepest nesting of maps and arrays. */
const MAX_DEPTH = 8;
const SHORT_TEXT = 24;
/** The last short text of each hash: keys and names come again and again, and to look one up takes less than to make it. */
const SHORT_TEXTS = new Array(1024).fill("");

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Encode `value` into bytes. Entries of maps that are undefined are left out. */
export function encode(value) {
  const writer = new Writer(256);
  writer.item(value);
  return writer.bytes();
}

/** Encode a whole message: a header, and behind it the chunks of its payload as one byte string. */
export function encodeMessage(header, payload = []) {
  const size = payload.reduce((sum, chunk) => sum + chunk.length, 0);
  const writer = new Writer(512 + size);
  writer.item(header);
  if (size) {
    writer.head(2, size);
    for (const chunk of payload) writer.raw(chunk);
  }
  return writer.bytes();
}

/** Decode the first item of `data`: `[value, end]`, `end` being the position after it. Throws `ProtocolError`. */
export function decodePrefix(data, maxItems) {
  const reader = new Reader(data, maxItems);
  const value = reader.item(0);
  return [value, reader.at];
}

/** Decode `data`, which must be one item. Throws `ProtocolError`. */
export function decode(data, maxItems = Infinity) {
  const [value, end] = decodePrefix(data, maxItems);
  if (end !== data.length) throw refuse("bytes after the end");
  return value;
}

class Writer {
  #data;
  #view;
  #at = 0;

  constructor(size) {
    this.#data = new Uint8Array(size);
    this.#view = new DataView(this.#data.buffer);
  }

  bytes() {
    return this.#data.subarray(0, this.#at);
  }

  item(value) {
    if (value instanceof Uint8Array) {
      this.head(2, value.length);
      this.raw(value);
    } else if (Array.isArray(value)) {
      this.head(4, value.length);
      for (const item of value) this.item(item);
    } else if (value === null || typeof value === "boolean") {
      this.#room(1);
      this.#data[this.#at++] = value === null ? 0xf6 : value ? 0xf5 : 0xf4;
    } else if (typeof value === "number") {
      if (!Number.isSafeInteger(value)) throw new RangeError(`${value} is not an integer up to 2^53 - 1`);
      if (value < 0) this.head(1, -1 - value);
      else this.head(0, value);
    } else if (typeof value === "string") {
      this.#text(value);
    } else if (typeof value === "object") {
      const entries = Object.entries(value).filter((entry) => entry[1] !== undefined);
      this.head(5, entries.length);
      for (const [key, content] of entries) {
        this.#text(key);
        this.item(content);
      }
    } else {
      throw new TypeError(`${typeof value} has no place in a message`);
    }
  }

  head(kind, size) {
    this.#room(9);
    const data = this.#data;
    const first = kind << 5;
    if (size < 24) {
      data[this.#at++] = first | size;
    } else if (size < 0x100) {
      data[this.#at++] = first | 24;
      data[this.#at++] = size;
    } else if (size < 0x10000) {
      data[this.#at] = first | 25;
      this.#view.setUint16(this.#at + 1, size);
      this.#at += 3;
    } else if (size < 0x100000000) {
      data[this.#at] = first | 26;
      this.#view.setUint32(this.#at + 1, size);
      this.#at += 5;
    } else {
      data[this.#at] = first | 27;
      this.#view.setUint32(this.#at + 1, Math.floor(size / 0x100000000));
      this.#view.setUint32(this.#at + 5, size % 0x100000000);
      this.#at += 9;
    }
  }

  raw(bytes) {
    this.#room(bytes.length);
    this.#data.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  #text(text) {
    const bytes = encoder.encode(text);
    this.head(3, bytes.length);
    this.raw(bytes);
  }

  #room(size) {
    if (this.#at + size <= this.#data.length) return;
    const larger = new Uint8Array(Math.max(2 * this.#data.length, this.#at + size));
    larger.set(this.#data.subarray(0, this.#at));
    this.#data = larger;
    this.#view = new DataView(larger.buffer);
  }
}

class Reader {
  #data;
  #view;
  #left;
  at = 0;

  constructor(data, maxItems) {
    this.#data = data;
    this.#view = new DataView(data.buffer, data.byteOffset, data.length);
    this.#left = maxItems;
  }

  item(depth) {
    if (--this.#left < 0) throw refuse("too many items");
    const first = this.#byte();
    const kind = first >> 5;
    const info = first & 31;
    if (kind === 7) {
      if (info < 20 || info > 22) throw refuse("floats and simple values are not accepted");
      return info === 22 ? null : info === 21;
    }
    if (kind === 6) throw refuse("tags are not accepted");
    const size = info < 24 ? info : this.#size(info);
    switch (kind) {
      case 0:
        return size;
      case 1:
        return Number.isSafeInteger(-1 - Number(size)) ? -1 - size : -1n - BigInt(size);
      case 2:
        return this.#bytes(size);
      case 3:
        return this.#text(size);
      case 4:
        return this.#array(size, depth + 1);
      default:
        return this.#map(size, depth + 1);
    }
  }

  #array(size, depth) {
    this.#check(size, depth);
    const items = new Array(size);
    for (let i = 0; i < size; i++) items[i] = this.item(depth);
    return items;
  }

  #map(size, depth) {
    this.#check(size, depth);
    const map = Object.create(null);
    for (let i = 0; i < size; i++) {
      const key = this.item(depth);
      if (typeof key !== "string") throw refuse("keys are texts");
      if (key in map) throw refuse("duplicate keys");
      map[key] = this.item(depth);
    }
    return map;
  }

  #check(size, depth) {
    if (depth > MAX_DEPTH) throw refuse("nested too deep");
    if (size > this.#left || size > this.#data.length - this.at) throw refuse("too many items");
  }

  #size(info) {
    const width = 1 << (info - 24);
    if (info > 27) throw refuse("indefinite lengths are not accepted");
    if (this.at + width > this.#data.length) throw refuse("cut short");
    const at = this.at;
    this.at += width;
    if (width === 1) return this.#data[at];
    if (width === 2) return this.#view.getUint16(at);
    if (width === 4) return this.#view.getUint32(at);
    const size = this.#view.getUint32(at) * 0x100000000 + this.#view.getUint32(at + 4);
    return Number.isSafeInteger(size) ? size : this.#view.getBigUint64(at);
  }

  #bytes(size) {
    if (size > this.#data.length - this.at) throw refuse("cut short");
    this.at += size;
    return this.#data.subarray(this.at - size, this.at);
  }

  #text(size) {
    const bytes = this.#bytes(size);
    const known = size <= SHORT_TEXT ? shortText(bytes) : null;
    if (known !== null) return known;
    try {
      return decoder.decode(bytes);
    } catch {
      throw refuse("texts are UTF-8");
    }
  }

  #byte() {
    if (this.at >= this.#data.length) throw refuse("cut short");
    return this.#data[this.at++];
  }
}

/** The text of a few bytes of ASCII; null if there are others. */
function shortText(bytes) {
  let hash = 0;
  for (const byte of bytes) {
    if (byte >= 0x80) return null;
    hash = (hash * 31 + byte) & 0x3ff;
  }
  const known = SHORT_TEXTS[hash];
  let same = known.length === bytes.length;
  for (let i = 0; same && i < bytes.length; i++) same = known.charCodeAt(i) === bytes[i];
  if (!same) SHORT_TEXTS[hash] = String.fromCharCode(...bytes);
  return SHORT_TEXTS[hash];
}

function refuse(why) {
  return new ProtocolError(`not the CBOR we accept: ${why}`);
}
