/** What the Python code says (`vectors.py`), for the tests beside this file. */

import { readFileSync } from "node:fs";

const path = process.env.TIDELOG_VECTORS;
if (!path) throw new Error("write the vectors first: python tests/js/vectors.py FILE; then set TIDELOG_VECTORS=FILE");

export const vectors = JSON.parse(readFileSync(path, "utf-8"), (_, value) => {
  if (value && typeof value === "object" && "$bytes" in value) return fromHex(value.$bytes);
  if (value && typeof value === "object" && "$map" in value) return fromEntries(value.$map);
  return value;
});

export function fromHex(hex) {
  return new Uint8Array(Buffer.from(hex, "hex"));
}

export function toHex(bytes) {
  return Buffer.from(bytes).toString("hex");
}

function fromEntries(entries) {
  const map = Object.create(null);
  for (const [key, value] of entries) map[key] = value;
  return map;
}
