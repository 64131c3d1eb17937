/** The kinds of fields of messages, and the reading of a received map as an object. */

import { ProtocolError } from "../errors.js";

export const integer = kind("an integer", Number.isSafeInteger);
export const text = kind("a text", (value) => typeof value === "string");
export const flag = kind("true or false", (value) => typeof value === "boolean");
export const bytes = kind("a byte string", (value) => value instanceof Uint8Array);

/** A map of texts whose keys are not names of the protocol: settings, evidence, details. */
export const texts = mapOf(text);

/** A map of integers whose keys are not names of the protocol: limits. */
export const integers = mapOf(integer);

function mapOf(reader) {
  return {
    read(value, where) {
      if (!isMap(value)) throw new ProtocolError(`${where} is no map`);
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, reader.read(item, `${where}.${key}`)]));
    },
  };
}

/** Return a field of a request, or undefined if it equals the default, which senders leave out. */
export function unless(fallback, value) {
  return value === fallback ? undefined : value;
}

/** Return a list as a field of a request, or undefined if it is empty, since senders leave it out. */
export function some(list) {
  return list.length ? list : undefined;
}

function kind(what, is) {
  return {
    read(value, where) {
      if (!is(value)) throw new ProtocolError(`${where} is not ${what}`);
      return value;
    },
  };
}

/** Return a reader of a field that may be left out, and is `fallback` then. */
export function or(fallback, reader) {
  return { ...reader, fallback };
}

/** Return a reader of an array of what `reader` reads. It throws `ProtocolError`. */
export function list(reader) {
  return {
    read(value, where) {
      if (!Array.isArray(value)) throw new ProtocolError(`${where} is no array`);
      return value.map((item, i) => reader.read(item, `${where}[${i}]`));
    },
  };
}

/**
 * Return a reader of a map with these fields, by their names on the wire. It ignores unknown fields, and throws
 * `ProtocolError` if one is missing or wrong.
 */
export function shape(fields) {
  const table = Object.entries(fields).map(([name, reader]) => [name, camel(name), reader]);
  return {
    read(content, where) {
      if (!isMap(content)) throw new ProtocolError(`${where} is no map`);
      const made = {};
      for (const [name, ours, reader] of table) {
        const value = content[name];
        if (value !== undefined) made[ours] = reader.read(value, `${where}.${name}`);
        else if ("fallback" in reader) made[ours] = copy(reader.fallback);
        else throw new ProtocolError(`${where} lacks ${name}`);
      }
      return made;
    },
  };
}

/** Return a copy of a default value, since the caller that gets an answer may change it. */
function copy(fallback) {
  if (Array.isArray(fallback)) return [];
  if (fallback instanceof Uint8Array) return fallback.slice();
  return fallback !== null && typeof fallback === "object" ? {} : fallback;
}

function isMap(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof Uint8Array);
}

function camel(name) {
  return name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
}
