/** What the fields of messages are, and how a map that came is read as an object. */

import { ProtocolError } from "../errors.js";

export const integer = kind("an integer", Number.isSafeInteger);
export const text = kind("a text", (value) => typeof value === "string");
export const flag = kind("true or false", (value) => typeof value === "boolean");
export const bytes = kind("a byte string", (value) => value instanceof Uint8Array);

/** A map of texts whose keys are no names of ours: settings, evidence, details. */
export const texts = {
  read(value, where) {
    if (!isMap(value)) throw new ProtocolError(`${where} is no map`);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, text.read(item, `${where}.${key}`)]));
  },
};

/** A field of a request: senders leave out what equals the default. */
export function unless(fallback, value) {
  return value === fallback ? undefined : value;
}

/** A list as a field of a request: an empty one is left out. */
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

/** A field that may be left out: it is `fallback` then. */
export function or(fallback, reader) {
  return { ...reader, fallback };
}

/** An array of what `reader` reads. */
export function list(reader) {
  return {
    read(value, where) {
      if (!Array.isArray(value)) throw new ProtocolError(`${where} is no array`);
      return value.map((item, i) => reader.read(item, `${where}[${i}]`));
    },
  };
}

/** A map of these fields, by their names on the wire. What is not known is ignored. */
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

/** Who gets an answer may change it. */
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
