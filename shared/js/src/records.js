/** What an application may give as value, key and headers. */

import { ConfigError } from "./errors.js";

const encoder = new TextEncoder();

/** A copy of the bytes, or null. A text is its UTF-8. Throws `ConfigError`. */
export function bytesOf(data) {
  if (data === null) return data;
  if (data instanceof Uint8Array) return new Uint8Array(data);
  if (typeof data === "string") return encoder.encode(data);
  if (data instanceof ArrayBuffer) return new Uint8Array(data.slice(0));
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
  throw new ConfigError(`keys and values are bytes, texts or null, not ${typeof data}`);
}

/** `[name, bytes]` pairs of an object, a Map or pairs; a name may come more than once in pairs. */
export function headersOf(headers) {
  if (headers === null) return [];
  const pairs = Symbol.iterator in headers ? [...headers] : Object.entries(headers);
  return pairs.map(([name, content]) => {
    const bytes = bytesOf(content);
    if (typeof name !== "string" || bytes === null) throw new ConfigError("headers map texts to bytes");
    return [name, bytes];
  });
}
