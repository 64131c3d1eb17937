/** What people type into fields, as what it means. Everything here throws `RangeError`, whose words say what to type. */

/** A text's UTF-8; what begins with 0x is hexadecimal. */
export function bytesOf(text) {
  if (!/^0x/i.test(text)) return new TextEncoder().encode(text);
  const digits = text.slice(2).replace(/\s/g, "");
  if (digits.length % 2 || /[^0-9a-f]/i.test(digits)) throw new RangeError("after 0x come pairs of hexadecimal digits");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function offsetOf(text) {
  const offset = Number(text);
  if (!text.trim() || !Number.isSafeInteger(offset) || offset < 0) throw new RangeError("an offset is a whole number from 0 on");
  return offset;
}

/** A Date; of nothing undefined. */
export function timeOf(text) {
  if (!text) return undefined;
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) throw new RangeError(`"${text}" is no time`);
  return time;
}

/** `name: value` lines as pairs, in their order; a name may come more than once. */
export function pairsOf(text, mark = ":") {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return lines.map((line) => {
    const at = line.indexOf(mark);
    if (at < 1) throw new RangeError(`"${line}" has no ${mark} between name and value`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

/** Names or numbers with commas or spaces between them, in their order. */
export function listOf(text) {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** Numbers of a topic's partitions with commas between them; of nothing none. */
export function partitionsOf(topic, text) {
  return listOf(text).map((number) => partitionOf(topic, number));
}

/** The number of one of a topic's partitions. */
export function partitionOf(topic, text) {
  const last = topic.partitions.length - 1;
  if (/^\d+$/.test(text) && Number(text) <= last) return Number(text);
  throw new RangeError(`"${text}" is no partition of ${topic.name}: type a number from 0 to ${last}`);
}
