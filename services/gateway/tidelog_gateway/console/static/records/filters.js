/** Which records somebody wants to see: conditions on key, value, headers, JSON and time. All that are given must hold. */

import { documentOf, show, textOf } from "./decode.js";
import { bytesOf, timeOf } from "../page/typed.js";

/** The fields that conditions are typed into; an empty one is no condition. */
export const NO_FILTERS = { key: "", value: "", header: "", path: "", since: "", until: "" };

/** Return whether a record meets the conditions, as a function. Throws `RangeError` for one that cannot be read. */
export function matcher({ key, value, header, path, since, until }) {
  const conditions = [
    ...(since || until ? [within(timeOf(since), timeOf(until))] : []),
    ...(key ? [withKey(bytesOf(key))] : []),
    ...(header ? [withHeader(header)] : []),
    ...(value ? [withValue(value)] : []),
    ...(path ? [withPath(path)] : []),
  ];
  return (record) => conditions.every((holds) => holds(record));
}

function within(since, until) {
  return ({ timestampMs }) => timestampMs >= (since?.getTime() ?? 0) && timestampMs < (until?.getTime() ?? Infinity);
}

function withKey(wanted) {
  return ({ key }) => key?.length === wanted.length && key.every((byte, i) => byte === wanted[i]);
}

function withValue(wanted) {
  const holds = containing(wanted);
  return ({ value }) => value !== null && holds(value);
}

/** `name`, or `name: what its value contains`. */
function withHeader(wanted) {
  const at = wanted.indexOf(":");
  const name = (at < 0 ? wanted : wanted.slice(0, at)).trim();
  const content = at < 0 ? "" : wanted.slice(at + 1).trim();
  const holds = content ? containing(content) : () => true;
  return ({ headers }) => headers.some(([one, bytes]) => one === name && holds(bytes));
}

/** Whether bytes have that in them: in their text, or as they are shown; after 0x in the bytes themselves. */
function containing(wanted) {
  if (/^0x/i.test(wanted)) {
    const bytes = bytesOf(wanted);
    return (within) => contains(within, bytes);
  }
  return (bytes) => textOf(bytes)?.includes(wanted) || show(bytes).text.includes(wanted);
}

function contains(bytes, wanted) {
  for (let at = 0; at + wanted.length <= bytes.length; at++) {
    if (wanted.every((byte, i) => bytes[at + i] === byte)) return true;
  }
  return false;
}

// --- JSON ---

const STEP = /\.?\[\s*(?<index>\d+|\*)\s*\]|\.?\[\s*(?<quoted>"(?:[^"\\]|\\.)*")\s*\]|\.?(?<name>[^\s.[\]=!<>~$"]+)/y;
const CONDITION = /^\s*(?<op>==|!=|<=|>=|=|<|>|~)\s*(?<literal>.+?)\s*$/s;
const HELP = 'such as $.customer.id = 7, items[*].name ~ "lamp" or $.refund';

/** Of JSON or CBOR: a path alone (there is something), or a path, one of = != < <= > >= ~ (contains), and a value. */
function withPath(text) {
  const { steps, op, literal, raw } = parsePath(text);
  return ({ value }) => {
    const document = value === null ? undefined : documentOf(value);
    return document !== undefined && follow(document, steps).some((found) => OPS[op](found, literal, raw));
  };
}

/** Return `{steps, op, literal, raw}`; the op `there` needs no value. Throws `RangeError`. */
export function parsePath(text) {
  const trimmed = text.trim();
  STEP.lastIndex = trimmed.startsWith("$") ? 1 : 0;
  const steps = [];
  let end = STEP.lastIndex;
  for (let found; (found = STEP.exec(trimmed)); end = STEP.lastIndex) {
    const { index, quoted, name } = found.groups;
    if (index !== undefined) steps.push(index === "*" ? EACH : Number(index));
    else steps.push(quoted !== undefined ? JSON.parse(quoted) : name === "*" ? EACH : name);
  }
  const rest = trimmed.slice(end);
  if (!end) throw new RangeError(`"${text}" is no path: ${HELP}`);
  if (!rest.trim()) return { steps, op: "there", literal: undefined, raw: "" };
  const condition = CONDITION.exec(rest);
  if (!condition) throw new RangeError(`"${rest.trim()}" is neither a step of a path nor a condition: ${HELP}`);
  const { op, literal: raw } = condition.groups;
  return { steps, op: op === "==" ? "=" : op, literal: literalOf(raw), raw };
}

const EACH = Symbol("each");

/** JSON where it is JSON; else the text itself. */
function literalOf(raw) {
  try {
    return JSON.parse(raw);
  } catch {
    return raw;
  }
}

/** What stands at a path: several things after `[*]`, and perhaps nothing. */
function follow(document, steps) {
  let found = [document];
  for (const step of steps) {
    const inside = found.filter((one) => one !== null && typeof one === "object");
    if (step === EACH) found = inside.flatMap((one) => Object.values(one));
    else found = inside.filter((one) => Object.prototype.propertyIsEnumerable.call(one, step)).map((one) => one[step]);
  }
  return found;
}

const OPS = {
  there: () => true,
  "=": equal,
  "!=": (found, literal, raw) => !equal(found, literal, raw),
  "<": (found, literal) => comparable(found, literal) && found < literal,
  "<=": (found, literal) => comparable(found, literal) && found <= literal,
  ">": (found, literal) => comparable(found, literal) && found > literal,
  ">=": (found, literal) => comparable(found, literal) && found >= literal,
  "~": (found, literal) => written(found).includes(typeof literal === "string" ? literal : written(literal)),
};

function equal(found, literal, raw) {
  return written(found) === (typeof literal === "string" ? literal : written(literal)) || found === raw;
}

function comparable(found, literal) {
  const kinds = [found, literal].map((one) => (typeof one === "bigint" ? "number" : typeof one));
  return kinds[0] === kinds[1] && ["number", "string"].includes(kinds[0]);
}

/** A text as it is, anything else as JSON. */
function written(value) {
  if (typeof value === "string") return value;
  return JSON.stringify(value, (_key, one) => (typeof one === "bigint" ? one.toString() : one)) ?? "";
}
