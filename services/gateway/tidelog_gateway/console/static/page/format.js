/** Numbers and times as people read them. */

/** Made once: it takes milliseconds. */
const NUMBERS = new Intl.NumberFormat("en");

/** A time, ms since 1970: to the millisecond when it is of today, else with the day. */
export function clock(ms, nowMs = Date.now()) {
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  if (at.toDateString() === new Date(nowMs).toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time.slice(0, 8)}`;
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** `1,234,567`. */
export function whole(number) {
  return NUMBERS.format(Math.round(number));
}

/** Three digits and a unit: `12.3 k`, `4.56 M`. */
export function short(number, unit = "") {
  const [factor, prefix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([least]) => Math.abs(number) >= least) ?? [1, ""];
  const scaled = number / factor;
  const digits = Math.abs(scaled) >= 100 || Number.isInteger(scaled) ? 0 : Math.abs(scaled) >= 10 ? 1 : 2;
  return `${scaled.toFixed(digits)}${prefix || unit ? " " : ""}${prefix}${unit}`;
}

/** A duration in seconds: `850 µs`, `12 ms`, `3.2 s`, `4 min`. */
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 90) return `${Number(seconds.toPrecision(2))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
