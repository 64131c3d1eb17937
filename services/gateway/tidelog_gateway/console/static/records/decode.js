/** Bytes as people read them: text, JSON, CBOR or hexadecimal. CBOR is read leniently: floats, tags and all. */

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
/** Control characters that no text has; tab and line ends are none. */
const UNREADABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/;
const MAX_DEPTH = 64;

export const FORMATS = ["auto", "text", "json", "cbor", "hex"];

/** `{format, text}`; `auto` finds the format. What is not of the format that is asked for is shown as hex. */
export function show(bytes, format = "auto") {
  if (bytes === null || bytes === undefined) return { format: "null", text: "" };
  const tries = format === "auto" ? ["json", "text", "cbor"] : [format];
  for (const one of tries) {
    const text = READERS[one]?.(bytes);
    if (text !== undefined) return { format: one, text };
  }
  return { format: "hex", text: hex(bytes) };
}

const READERS = {
  text(bytes) {
    const text = textOf(bytes);
    return text === undefined || UNREADABLE.test(text) ? undefined : text;
  },
  json(bytes) {
    const text = textOf(bytes);
    if (text === undefined || !/^\s*[[{]/.test(text)) return undefined;
    try {
      return JSON.stringify(JSON.parse(text), null, 1);
    } catch {
      return undefined;
    }
  },
  cbor(bytes) {
    try {
      return JSON.stringify(decodeCbor(bytes), plain, 1);
    } catch {
      return undefined;
    }
  },
};

/** Bytes as UTF-8; undefined where they are none. */
export function textOf(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return undefined;
  }
}

/** The JSON or CBOR that the bytes are; undefined where they are neither. */
export function documentOf(bytes) {
  try {
    return JSON.parse(textOf(bytes));
  } catch {
    try {
      return decodeCbor(bytes);
    } catch {
      return undefined;
    }
  }
}

function plain(_key, value) {
  if (typeof value === "bigint") return value.toString();
  return value instanceof Uint8Array ? `h'${hex(value)}'` : value;
}

/** Two digits for each byte. */
export function hex(bytes) {
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The one item that the bytes are. Throws `RangeError` for what is no CBOR. */
export function decodeCbor(bytes) {
  const reader = { bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.length), at: 0 };
  const value = item(reader, 0);
  if (reader.at !== bytes.length) throw new RangeError("bytes after the end");
  return value;
}

const BREAK = Symbol("break");

function item(reader, depth) {
  if (depth > MAX_DEPTH) throw new RangeError("nested too deep");
  const first = take(reader, 1)[0];
  const kind = first >> 5;
  const info = first & 31;
  if (kind === 7) return simple(reader, info);
  const size = info === 31 ? Infinity : sizeOf(reader, info);
  switch (kind) {
    case 0:
      return size;
    case 1:
      return typeof size === "bigint" ? -1n - size : -1 - size;
    case 2:
    case 3:
      return string(reader, kind, size, depth);
    case 4:
      return items(reader, size, depth);
    case 5:
      return map(reader, size, depth);
    default:
      return item(reader, depth + 1);
  }
}

function items(reader, size, depth) {
  const found = [];
  while (found.length < size) {
    const value = item(reader, depth + 1);
    if (value === BREAK) break;
    found.push(value);
  }
  return found;
}

function map(reader, size, depth) {
  const made = Object.create(null);
  for (let i = 0; i < size; i++) {
    const key = item(reader, depth + 1);
    if (key === BREAK) break;
    made[typeof key === "string" ? key : JSON.stringify(key, plain)] = item(reader, depth + 1);
  }
  return made;
}

function string(reader, kind, size, depth) {
  if (size === Infinity) {
    const parts = items(reader, size, depth);
    return kind === 3 ? parts.join("") : Uint8Array.from(parts.flatMap((part) => [...part]));
  }
  const bytes = take(reader, Number(size));
  return kind === 3 ? strict.decode(bytes) : bytes;
}

function simple(reader, info) {
  switch (info) {
    case 20:
    case 21:
      return info === 21;
    case 22:
    case 23:
      return null;
    case 25:
      return half(skip(reader, 2).getUint16(reader.at - 2));
    case 26:
      return skip(reader, 4).getFloat32(reader.at - 4);
    case 27:
      return skip(reader, 8).getFloat64(reader.at - 8);
    case 31:
      return BREAK;
    default:
      throw new RangeError("no simple value that is known");
  }
}

function half(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
}

function sizeOf(reader, info) {
  if (info < 24) return info;
  switch (info) {
    case 24:
      return skip(reader, 1).getUint8(reader.at - 1);
    case 25:
      return skip(reader, 2).getUint16(reader.at - 2);
    case 26:
      return skip(reader, 4).getUint32(reader.at - 4);
    case 27: {
      const size = skip(reader, 8).getBigUint64(reader.at - 8);
      return size <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(size) : size;
    }
    default:
      throw new RangeError("no size that is known");
  }
}

function skip(reader, count) {
  take(reader, count);
  return reader.view;
}

function take(reader, count) {
  if (!(count <= reader.bytes.length - reader.at)) throw new RangeError("cut short");
  reader.at += count;
  return reader.bytes.subarray(reader.at - count, reader.at);
}
