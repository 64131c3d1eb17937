/**
 * Record batches, the unit of everything that Tidelog stores and moves. Byte by byte: docs/batch-format.md.
 *
 * A header is read and checked before the body behind it; no input needs more memory than its header may declare.
 * Offsets and timestamps are Numbers: one beyond 2^53 - 1 is refused, never rounded.
 */

import * as cbor from "./cbor.js";
import { crc32c } from "./crc32c.js";
import { CorruptBatch, TidelogError } from "../errors.js";
import * as lz4 from "./lz4.js";

export const HEADER_BYTES = 64;
const SPARSE_HEADER_BYTES = 88;
const MAGIC = 0x544c;
const VERSION = 1;
export const MAX_BODY_BYTES = 64 << 20;
/** Most records of a batch. */
export const MAX_RECORDS = 1 << 18;
/** Most CBOR items of a body. */
const MAX_ITEMS = 1 << 21;
export const CODECS = ["none", "zstd", "lz4"];
/** Most blocks of a zstd frame that does not declare its size: such a frame cannot unfold to more than 64 MiB. */
const MAX_ZSTD_BLOCKS = 512;
const CODEC_MASK = 0b111;
const CONTROL = 1 << 4;
const TRANSACTIONAL = 1 << 3;
const SPARSE = 1 << 5;
const CHECKED_FROM = 16;

/**
 * Decode the header of the batch at `at`, with the checks that need nothing behind it. Throws `CorruptBatch` if it is
 * cut short, or is no header.
 */
export function readHeader(data, at = 0) {
  refuseIf(data.length - at < HEADER_BYTES, () => `batch is shorter than its ${HEADER_BYTES}-byte header`);
  const view = new DataView(data.buffer, data.byteOffset + at, HEADER_BYTES);
  const attributes = view.getUint16(24);
  const header = {
    leaderEpoch: view.getUint32(8),
    crc32c: view.getUint32(12),
    headerLength: view.getUint8(19),
    batchLength: view.getUint32(20),
    attributes,
    producerEpoch: view.getUint16(26),
    recordCount: view.getUint32(28),
    producerId: exact(view.getBigUint64(48)),
    baseSequence: view.getUint32(56),
    bodyLength: view.getUint32(60),
    isControl: Boolean(attributes & CONTROL),
    isSparse: Boolean(attributes & SPARSE),
  };
  const { headerLength, batchLength, recordCount } = header;
  refuseIf(view.getUint16(16) !== MAGIC, () => `batch has magic ${hex(view.getUint16(16))}, not ${hex(MAGIC)}`);
  refuseIf(view.getUint8(18) !== VERSION, () => `batch has version ${view.getUint8(18)}; this program knows ${VERSION}`);
  refuseIf(
    headerLength !== (header.isSparse ? SPARSE_HEADER_BYTES : HEADER_BYTES),
    () => `batch has header length ${headerLength}, attributes ${hex(attributes)}`,
  );
  refuseIf(batchLength < headerLength, () => `batch length ${batchLength} is less than its header`);
  refuseIf(!recordCount, () => "batch has record count 0");
  header.baseOffset = small(view, 0, "base offset");
  header.endOffset = header.baseOffset + recordCount;
  return header;
}

/** Check one whole batch except the inside of its body, and return its header. Throws `CorruptBatch`. */
export function checkBatch(data) {
  const header = readHeader(data);
  const { attributes, batchLength, bodyLength, recordCount } = header;
  refuseIf(batchLength !== data.length, () => `batch declares length ${batchLength} but has ${data.length} bytes`);
  const crc = crc32c(data.subarray(CHECKED_FROM));
  refuseIf(crc !== header.crc32c, () => `batch declares CRC ${hex(header.crc32c)} but has ${hex(crc)}`);
  const known = !(attributes & ~(CODEC_MASK | TRANSACTIONAL | CONTROL | SPARSE)) && (attributes & CODEC_MASK) < CODECS.length;
  refuseIf(!known, () => `batch has unknown attributes or codec: ${hex(attributes)}`);
  refuseIf(bodyLength > MAX_BODY_BYTES, () => `batch body of ${bodyLength} bytes is larger than ${MAX_BODY_BYTES}`);
  const stored = data.length - header.headerLength;
  refuseIf(
    !(attributes & CODEC_MASK) && bodyLength !== stored,
    () => `batch declares body length ${bodyLength} but has ${stored}`,
  );
  refuseIf(recordCount > MAX_RECORDS, () => `batch declares ${recordCount} records; at most ${MAX_RECORDS} are allowed`);
  refuseIf(
    recordCount > bodyLength && !header.isSparse,
    () => `batch declares ${recordCount} records in ${bodyLength} bytes`,
  );
  const view = new DataView(data.buffer, data.byteOffset, HEADER_BYTES);
  const firstTimestamp = small(view, 32, "first timestamp");
  const maxTimestamp = small(view, 40, "max timestamp");
  refuseIf(firstTimestamp > maxTimestamp, () => `batch has timestamps ${firstTimestamp}, max ${maxTimestamp}`);
  return { ...header, firstTimestamp, maxTimestamp };
}

/** Return whether the CRC of one whole batch fits its bytes. */
export function hasRightCrc(data) {
  return crc32c(data.subarray(CHECKED_FROM)) === readHeader(data).crc32c;
}

/**
 * Yield the consecutive batches in `data` as `[header, bytes]`. Throws `CorruptBatch` at a batch that is bad or cut
 * short.
 */
export function* split(data) {
  let at = 0;
  while (at < data.length) {
    const header = readHeader(data, at);
    const end = at + header.batchLength;
    refuseIf(end > data.length, () => `batch declares length ${header.batchLength} but ${data.length - at} bytes follow`);
    yield [header, data.subarray(at, end)];
    at = end;
  }
}

/**
 * Encode records into a batch, with base offset and leader epoch 0, which the leader replaces. A record is `{value,
 * key, timestampMs, headers}`, headers being `[name, bytes]` pairs. Throws `RangeError` for records that no batch can
 * hold.
 */
export function encodeBatch(records, { codec = "none", codecs = {}, producerId = 0, baseSequence = 0 } = {}) {
  if (!records.length || records.length > MAX_RECORDS) throw new RangeError(`a batch holds 1 to ${MAX_RECORDS} records`);
  const times = records.map((record) => record.timestampMs);
  const first = times[0];
  const columns = { v: records.map((record) => record.value) };
  if (records.some((record) => record.key !== null)) columns.k = records.map((record) => record.key);
  if (times.some((time) => time !== first)) columns.t = times.map((time) => time - first);
  if (records.some((record) => record.headers.length)) columns.h = records.map((record) => record.headers);
  if (itemsIn(columns) > MAX_ITEMS) throw new RangeError(`a batch holds at most ${MAX_ITEMS} CBOR items: fewer headers`);
  const body = cbor.encode(columns);
  if (body.length > MAX_BODY_BYTES) throw new RangeError(`a batch body of ${body.length} bytes is too large`);
  const stored = codec === "none" ? body : codecs[codec].compress(body);
  const data = new Uint8Array(HEADER_BYTES + stored.length);
  const view = new DataView(data.buffer);
  view.setUint16(16, MAGIC);
  view.setUint8(18, VERSION);
  view.setUint8(19, HEADER_BYTES);
  view.setUint32(20, data.length);
  view.setUint16(24, CODECS.indexOf(codec));
  view.setUint32(28, records.length);
  view.setBigInt64(32, BigInt(first));
  view.setBigInt64(40, BigInt(times.reduce((a, b) => Math.max(a, b))));
  view.setUint32(60, body.length);
  data.set(stored, HEADER_BYTES);
  return numbered(data, producerId, baseSequence);
}

/**
 * Write another producer id, at epoch 0, and another sequence into the batch `data` itself, with a new CRC, and
 * return it.
 */
export function numbered(data, producerId, baseSequence) {
  const view = new DataView(data.buffer, data.byteOffset);
  view.setUint16(26, 0);
  view.setBigUint64(48, BigInt(producerId));
  view.setUint32(56, baseSequence);
  view.setUint32(12, crc32c(data.subarray(CHECKED_FROM)));
  return data;
}

/**
 * Check and decode one whole batch into records; topic and partition are the caller's. Values and keys are views of
 * `data`, or of what it decompresses to. Throws `CorruptBatch`; `UNSUPPORTED` for a codec that `codecs` lacks.
 */
export function decodeBatch(data, { topic = "", partition = 0, codecs = {} } = {}) {
  const header = checkBatch(data);
  if (header.isControl) return [];
  const covered = header.recordCount;
  const body = decompress(header, data.subarray(header.headerLength), codecs);
  const columns = load(body, MAX_ITEMS + (header.isSparse ? covered : 0));
  const places = header.isSparse ? placesLeft(columns.o, covered) : null;
  const count = places ? places.length : covered;
  const values = column(columns, "v", count, isOptionalBytes);
  const keys = column(columns, "k", count, isOptionalBytes, null);
  const deltas = column(columns, "t", count, Number.isSafeInteger, 0);
  const headers = column(columns, "h", count, isPairs, []);
  const records = new Array(count);
  let latest = header.isSparse ? 0 : -1;
  for (let i = 0; i < count; i++) {
    const timestampMs = header.firstTimestamp + deltas[i];
    refuseIf(timestampMs < 0 || !Number.isSafeInteger(timestampMs), () => "timestamps are 0 to 2**63 - 1");
    if (timestampMs > latest) latest = timestampMs;
    const offset = header.baseOffset + (places ? places[i] : i);
    const { leaderEpoch } = header;
    records[i] = { topic, partition, offset, leaderEpoch, timestampMs, key: keys[i], value: values[i], headers: headers[i] };
  }
  const truthful = header.isSparse
    ? latest <= header.maxTimestamp
    : records[0].timestampMs === header.firstTimestamp && latest === header.maxTimestamp;
  refuseIf(!truthful, () => "batch timestamps are not those that its header declares");
  return records;
}

function decompress(header, stored, codecs) {
  const codec = CODECS[header.attributes & CODEC_MASK];
  const length = header.bodyLength;
  if (codec === "none") return stored;
  let body;
  try {
    if (codec === "lz4") {
      body = lz4.decompress(stored, length);
    } else {
      const { declared, end, blocks } = zstdFrame(stored);
      refuseIf(declared < 0 && blocks > MAX_ZSTD_BLOCKS, () =>
        `zstd frame does not declare its size and has more than ${MAX_ZSTD_BLOCKS} blocks`);
      refuseIf(declared >= 0 && declared !== length, () =>
        `zstd frame does not declare the ${length} bytes of the header`);
      refuseIf(end !== stored.length, () => "batch body is not one zstd frame");
      body = codecs.zstd?.decompress && codecs.zstd.decompress(stored);
    }
  } catch (error) {
    if (error instanceof TidelogError) throw error;
    throw new CorruptBatch(`batch body does not decompress: ${error.message}`);
  }
  if (body === undefined) {
    const hint = "give connect the option codecs: {zstd: {decompress}}, see docs/javascript.md";
    throw new TidelogError(`the batch is compressed with ${codec}, which this client has no decompressor for: ${hint}`, {
      code: "UNSUPPORTED",
      detail: { codec },
    });
  }
  refuseIf(body.length !== length, () => `batch body is not one ${codec} frame of ${length} bytes`);
  return body;
}

/**
 * Return a zstd frame's declared content size (-1: not declared), its end, and its number of blocks (RFC 8878,
 * 3.1.1).
 */
function zstdFrame(frame) {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.length);
  if (view.getUint32(0, true) !== 0xfd2fb528) throw new RangeError("no zstd frame");
  const flags = view.getUint8(4);
  const single = (flags >> 5) & 1;
  let at = 5 + (single ? 0 : 1) + [0, 1, 2, 4][flags & 3];
  const width = flags >> 6 ? 1 << (flags >> 6) : single;
  let declared = -1;
  if (width === 1) declared = view.getUint8(at);
  else if (width === 2) declared = view.getUint16(at, true) + 256;
  else if (width === 4) declared = view.getUint32(at, true);
  else if (width === 8) declared = Number(view.getBigUint64(at, true));
  at += width;
  let blocks = 0;
  for (let block = 0; !(block & 1); blocks += 1) {
    block = view.getUint16(at, true) | (view.getUint8(at + 2) << 16);
    at += 3 + (((block >> 1) & 3) === 1 ? 1 : block >> 3);
  }
  return { declared, end: at + ((flags >> 2) & 1 ? 4 : 0), blocks };
}

function load(body, maxItems) {
  let columns;
  try {
    columns = cbor.decode(body, maxItems);
  } catch (error) {
    throw new CorruptBatch(`batch body: ${error.message}`);
  }
  refuseIf(columns === null || typeof columns !== "object" || Array.isArray(columns) || columns instanceof Uint8Array,
    () => "batch body is not exactly one CBOR map");
  return columns;
}

/** Decode column `o` of a compacted batch: the original place of each record in the batch. */
function placesLeft(places, covered) {
  const rises = Array.isArray(places) && places.every((place, i) =>
    Number.isSafeInteger(place) && place < covered && place > (i ? places[i - 1] : -1));
  refuseIf(!rises, () => `batch column o does not rise within the ${covered} records of the batch`);
  return places;
}

function column(columns, name, count, isItem, missing) {
  const items = columns[name];
  if (items === undefined && missing !== undefined) return new Array(count).fill(missing);
  refuseIf(!Array.isArray(items) || items.length !== count, () => `batch column ${name} is not an array of ${count}`);
  refuseIf(!items.every(isItem), () => `batch column ${name} holds something else than it should`);
  return items;
}

function isOptionalBytes(item) {
  return item === null || item instanceof Uint8Array;
}

function isPairs(item) {
  return Array.isArray(item) && item.every((pair) =>
    Array.isArray(pair) && pair.length === 2 && typeof pair[0] === "string" && pair[1] instanceof Uint8Array);
}

function itemsIn(columns) {
  const pairs = (columns.h ?? []).reduce((sum, headers) => sum + headers.length, 0);
  return 1 + Object.values(columns).reduce((sum, items) => sum + 2 + items.length, 0) + 3 * pairs;
}

function small(view, at, what) {
  const value = view.getBigInt64(at);
  refuseIf(value < 0n, () => `batch has ${what} ${value}`);
  if (value > BigInt(Number.MAX_SAFE_INTEGER) - (1n << 32n)) {
    throw new TidelogError(`batch has ${what} ${value}: more than 2^53, which this client has no Number for`, {
      code: "UNSUPPORTED",
    });
  }
  return Number(value);
}

function exact(value) {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
}

function hex(number) {
  return `0x${number.toString(16)}`;
}

function refuseIf(wrong, message) {
  if (wrong) throw new CorruptBatch(message());
}
