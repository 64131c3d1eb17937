/** The values, keys and headers that an application may give. */

const encoder = new TextEncoder();

/** Return a copy of the bytes, or null. A text is encoded as UTF-8. Throws `TypeError` for anything else. */
export function bytesOf(data) {
  if (data === null) return data;
  if (data instanceof Uint8Array) return new Uint8Array(data);
  if (typeof data === "string") return encoder.encode(data);
  if (data instanceof ArrayBuffer) return new Uint8Array(data.slice(0));
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
  throw new TypeError(`keys and values are bytes, texts or null, not ${typeof data}`);
}

/**
 * Return the headers of an object, a Map or an array of pairs as `[name, bytes]` pairs; in pairs a name may come more
 * than once.
 */
export function headersOf(headers) {
  if (headers === null) return [];
  const pairs = Symbol.iterator in headers ? [...headers] : Object.entries(headers);
  return pairs.map(([name, content]) => {
    const bytes = bytesOf(content);
    if (typeof name !== "string" || bytes === null) throw new TypeError("headers map texts to bytes");
    return [name, bytes];
  });
}
