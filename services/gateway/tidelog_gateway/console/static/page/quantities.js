/**
 * Durations, sizes and counts as people write them, such as `90d`, `10MiB/s` and `10k`: the units of `tidelog.quantities`,
 * which the tests hold this against.
 */

const TIMES = { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const SIZES = { b: 1, ...Object.fromEntries("kmgtp".split("").flatMap((one, i) => [[one, 1024 ** (i + 1)], [`${one}ib`, 1024 ** (i + 1)], [`${one}b`, 1000 ** (i + 1)]])) };
const SHOWN_TIMES = ["d", "h", "m", "s"];
const SHOWN_SIZES = ["PiB", "TiB", "GiB", "MiB", "KiB", "PB", "TB", "GB", "MB", "kB"];

/** What a number may count: its units with their factors, how to write it, and the units in which it is shown. */
export const MILLISECONDS = { factors: TIMES, like: "Milliseconds, or a time such as 7d", shown: SHOWN_TIMES };
export const SECONDS = { factors: Object.fromEntries(Object.entries(TIMES).map(([unit, factor]) => [unit, factor / 1000])), like: "a number of seconds, or a time such as 12h or 90d", shown: SHOWN_TIMES };
export const BYTES = { factors: SIZES, like: "Bytes, or a size such as 64MiB", shown: SHOWN_SIZES };
export const BYTES_PER_S = {
  factors: { ...SIZES, ...Object.fromEntries(Object.entries(SIZES).map(([unit, factor]) => [`${unit}/s`, factor])) },
  like: "a whole number of bytes per second, or a rate such as 500KiB/s or 64MiB/s",
  shown: SHOWN_SIZES.map((unit) => `${unit}/s`),
};
export const COUNT = { factors: { k: 1e3, m: 1e6, g: 1e9 }, like: "a whole number such as 500 or 10k", shown: [] };

/** The number from 0 on that a text means, in what the unit counts. Throws `RangeError`, which says what is accepted. */
export function quantityOf(text, unit) {
  const [, number, name] = text.trim().match(/^([0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*(?:\/s)?)$/i) ?? [];
  const factor = name === "" ? 1 : unit.factors[name?.toLowerCase()];
  if (factor === undefined) throw new RangeError(`"${text}" is not ${unit.like}`);
  const value = Number(number.replaceAll("_", "")) * factor;
  if (unit !== SECONDS && !Number.isSafeInteger(value)) throw new RangeError(`"${text}" is not ${unit.like}`);
  return value;
}

/** A number in the largest unit of which it is a multiple, as `quantityOf` takes it; with none as it is. */
export function inWords(number, unit) {
  const name = number > 0 ? unit.shown.find((one) => number % unit.factors[one.toLowerCase()] === 0) : undefined;
  return name && unit.factors[name.toLowerCase()] !== 1 ? `${number / unit.factors[name.toLowerCase()]}${name}` : String(number);
}
