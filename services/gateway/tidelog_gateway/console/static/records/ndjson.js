/** Records as lines of JSON, in the form of `tidelog consume --format json`, and as a file for who looks at the page. */

import { textOf } from "./decode.js";

/** Return a record as one line of JSON: what is no UTF-8 is in base64, under a name that ends with `_b64`. */
export function lineOf(record) {
  const { partition, offset, leaderEpoch, timestampMs, key, value, headers } = record;
  return `${JSON.stringify({
    ...{ partition, offset, leader_epoch: leaderEpoch, timestamp: new Date(timestampMs).toISOString().replace("Z", "+00:00") },
    ...named("key", key),
    ...named("value", value),
    headers: headers.map(([name, content]) => ({ name, ...named("value", content) })),
  })}\n`;
}

function named(name, bytes) {
  if (bytes === null) return { [name]: null };
  const text = textOf(bytes);
  if (text !== undefined) return { [name]: text };
  return { [`${name}_b64`]: btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")) };
}

/** Give these lines to the browser as a file of that name. */
export function download(name, lines) {
  const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
