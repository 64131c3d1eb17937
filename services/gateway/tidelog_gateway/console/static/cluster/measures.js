/** What a gateway counts (docs/metrics.md), and what two looks at it say of the time between them. */

/** A page in Prometheus' text format as a Map: `name{labels}` to number. */
export function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const at = line.lastIndexOf(" ");
    if (at > 0 && !line.startsWith("#")) values.set(line.slice(0, at), Number(line.slice(at + 1)));
  }
  return values;
}

/** How fast a counter goes, per second; undefined where it began anew or is not there. */
export function rate(before, after, name, seconds) {
  const grown = after.get(name) - before.get(name);
  return grown >= 0 && seconds > 0 ? grown / seconds : undefined;
}

/** All values of a name, whatever its labels, added up. */
export function total(values, name) {
  let sum = 0;
  for (const [key, value] of values) if (key === name || key.startsWith(`${name}{`)) sum += value;
  return sum;
}

/**
 * The value below which the `part` of what a histogram saw between two looks lies: within a bucket as if it were spread
 * evenly. undefined where it saw nothing.
 */
export function quantile(before, after, name, part) {
  const buckets = [...after.keys()]
    .filter((key) => key.startsWith(`${name}_bucket{`))
    .map((key) => ({ upTo: Number(/le="([^"]+)"/.exec(key)[1].replace("+Inf", "Infinity")), count: after.get(key) - (before.get(key) ?? 0) }))
    .sort((a, b) => a.upTo - b.upTo);
  const all = buckets.at(-1)?.count ?? 0;
  if (!(all > 0)) return undefined;
  const i = buckets.findIndex(({ count }) => count >= part * all);
  const from = buckets[i - 1] ?? { upTo: 0, count: 0 };
  if (buckets[i].upTo === Infinity) return from.upTo;
  return from.upTo + ((buckets[i].upTo - from.upTo) * (part * all - from.count)) / (buckets[i].count - from.count || 1);
}

/** Of the samples of a name: a label's values and what was counted of each, whatever the other labels say but `having` (`role="gateway"`). */
export function byLabel(values, name, label, having = "") {
  const found = new Map();
  const pattern = new RegExp(`[{,]${label}="((?:[^"\\\\]|\\\\.)*)"`);
  for (const [key, value] of values) {
    const one = key.startsWith(`${name}{`) && key.includes(having) && pattern.exec(key)?.[1];
    if (one) found.set(one, (found.get(one) ?? 0) + value);
  }
  return found;
}

/** How fast each of them grew between two looks, per second. */
export function grownBy(before, after, name, label, seconds) {
  const old = byLabel(before, name, label);
  const grown = [...byLabel(after, name, label)].map(([one, value]) => [one, Math.max(0, value - (old.get(one) ?? 0)) / seconds]);
  return new Map(seconds > 0 ? grown : []);
}
