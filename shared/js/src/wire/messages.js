/**
 * The answers and notices that a gateway sends, as objects: the fields of shared/tidelog/wire/tidelog.cddl with their
 * names in camelCase, checked, and set to their defaults where they were left out. What is not known is ignored.
 */

import { ProtocolError } from "../errors.js";

const integer = kind("an integer", Number.isSafeInteger);
const text = kind("a text", (value) => typeof value === "string");
const flag = kind("true or false", (value) => typeof value === "boolean");
const bytes = kind("a byte string", (value) => value instanceof Uint8Array);

const NOTHING = new Uint8Array();

/** A map of texts whose keys are no names of ours: settings, evidence, details. */
const texts = {
  read(value, where) {
    if (!isMap(value)) throw new ProtocolError(`${where} is no map`);
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, text.read(item, `${where}.${key}`)]));
  },
};

/** The error of an answer, a delivery or an ack. */
export const errorInfo = shape({
  code: text,
  message: or("", text),
  unknown_outcome: or(false, flag),
  detail: or({}, texts),
});

export const welcome = shape({
  version: integer,
  cluster: text,
  node: text,
  role: text,
  max_message_bytes: integer,
  max_in_flight: integer,
  nonce: or(NOTHING, bytes), // between services
  proof: or(NOTHING, bytes),
});

export const done = shape({});
export const topicCreated = shape({ topic_id: text });
export const producerId = shape({ producer_id: integer, count: or(1, integer), ticket: or("", text), window: or(0, integer) });
export const producerTicket = shape({ ticket: or("", text) });

/** Where readers of what is committed wait for a transaction. */
const stableOffset = shape({ offset: integer, producer_id: integer, producer_epoch: integer, age_ms: integer });

const partitionInfo = shape({
  partition: integer,
  replicas: list(text),
  isr: list(text),
  leader: text,
  leader_epoch: integer,
  epoch: integer,
  log_start: or(-1, integer),
  high_watermark: or(-1, integer),
  elr: or([], list(text)),
  learners: or([], list(text)),
  successor: or("", text),
  target: or([], list(text)),
  read_only: or(false, flag),
  paused: or(false, flag),
  sealing: or(false, flag),
  doubtful: or([], list(text)),
  stable: or(null, stableOffset),
  bytes: or(-1, integer),
});

const topicInfo = shape({ topic_id: text, name: text, config: texts, partitions: list(partitionInfo) });

const serverInfo = shape({
  node: text,
  url: text,
  broker_epoch: integer,
  fenced: flag,
  rack: or("", text),
  draining: or(false, flag),
});

export const metadataAnswer = shape({
  cluster: text,
  index: integer,
  topics: list(topicInfo),
  servers: list(serverInfo),
});

const historyEntry = shape({
  time_ms: integer,
  epoch: integer,
  leader_epoch: integer,
  event: text,
  cause: text,
  leader: or("", text),
  isr: or([], list(text)),
  evidence: or({}, texts),
});

export const historyAnswer = shape({ entries: list(historyEntry) });

const controllerInfo = shape({
  node: text,
  url: text,
  role: text,
  voter: or(true, flag),
  match: or(-1, integer),
  lost: or(false, flag),
  rolled_back: or(false, flag),
  refill_to: or(0, integer),
});

const playedMessage = shape({ time_ms: integer, sender: text, receiver: text, op: or("", text), answer: or(false, flag), words: or("", text) });

export const playAnswer = shape({ nodes: or([], list(shape({ node: text, state: text }))), messages: or([], list(playedMessage)) });

export const quorumAnswer = shape({
  active: text,
  term: integer,
  commit_index: integer,
  controllers: list(controllerInfo),
  gateways: or([], list(text)),
  disks_needed: or([], list(text)),
});

export const metricsAnswer = shape({ page: text, version: or("", text), time_ms: or(-1, integer) });

const plannedMove = shape({
  name: text,
  partition: integer,
  replicas: list(text),
  target: list(text),
  reason: or("", text),
  evidence: or("", text),
});

export const rebalancePlan = shape({
  moves: or([], list(plannedMove)),
  waiting: or([], list(plannedMove)),
  unit: or("", text),
});

const tokenInfo = shape({ token_id: text, principal: text, created_ms: or(0, integer), expires_ms: or(-1, integer) });

const acl = shape({ principal: text, operation: text, resource: text, deny: or(false, flag) });

const quota = shape({
  principal: text,
  bytes_in_s: or(-1, integer),
  bytes_out_s: or(-1, integer),
  requests_s: or(-1, integer),
  connections: or(-1, integer),
});

export const accessAnswer = shape({
  tokens: or([], list(tokenInfo)),
  acls: or([], list(acl)),
  quotas: or([], list(quota)),
  heirs: or([], list(text)),
});

export const offsetAnswer = shape({
  offset: integer,
  leader_epoch: or(-1, integer),
  timestamp_ms: or(-1, integer),
  stable: or(null, stableOffset),
  bytes: or(-1, integer),
});

export const readAnswer = shape({
  leader_epoch: integer,
  high_watermark: or(-1, integer),
  log_start: or(0, integer),
  compacted_to: or(0, integer),
  tombstones_to: or(0, integer),
  needed: or(0, integer),
  payload: bytes,
});

const digestEntry = shape({ offset: integer, boundary: integer, chain: bytes });

const epochStart = shape({ epoch: integer, start: integer });

export const digestAnswer = shape({
  log_start: integer,
  log_end: integer,
  high_watermark: integer,
  leader_epoch: or(-1, integer),
  comparable_from: or(0, integer),
  entries: or([], list(digestEntry)),
  durable: or(-1, integer),
  epochs: or([], list(epochStart)),
  role_epoch: or(-1, integer),
});

const topicShare = shape({ topic_id: text, partitions: list(integer), topic: or("", text) });

const groupPosition = shape({
  topic_id: text,
  partition: integer,
  offset: integer,
  leader_epoch: or(-1, integer),
  metadata: or("", text),
  committed_ms: or(-1, integer),
});

export const joinGroupAnswer = shape({
  generation: integer,
  heartbeat_ms: integer,
  assignment: or([], list(topicShare)),
});

export const groupHeartbeatAnswer = shape({ generation: integer, assignment: or([], list(topicShare)) });
export const fetchOffsetsAnswer = shape({ positions: or([], list(groupPosition)) });

const groupInfo = shape({ group: text, state: text, members: or(0, integer), coordinator: or("", text) });

export const listGroupsAnswer = shape({ groups: or([], list(groupInfo)), more: or(false, flag) });

const groupMember = shape({
  member: text,
  generation: integer,
  instance: or("", text),
  node: or("", text),
  topics: or([], list(text)),
  assignment: or([], list(topicShare)),
  leaving: or([], list(topicShare)),
  target: or([], list(topicShare)),
  session_timeout_ms: or(0, integer),
  away: or(false, flag),
});

export const describeGroupAnswer = shape({
  group: text,
  state: text,
  generation: integer,
  assignor: text,
  coordinator: text,
  members: or([], list(groupMember)),
  positions: or([], list(groupPosition)),
});

const produceAck = shape({
  id: integer,
  offset: or(-1, integer),
  leader_epoch: or(-1, integer),
  durability: or("", text),
  duplicate: or(false, flag),
  error: or(null, errorInfo),
  throttle_ms: or(0, integer),
});

/** What comes unasked, by `op`. */
export const NOTICES = {
  produced: shape({ acks: list(produceAck) }),
  delivery: shape({
    sub: integer,
    high_watermark: or(-1, integer),
    error: or(null, errorInfo),
    payload: bytes,
  }),
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

function or(fallback, reader) {
  return { ...reader, fallback };
}

function list(reader) {
  return {
    read(value, where) {
      if (!Array.isArray(value)) throw new ProtocolError(`${where} is no array`);
      return value.map((item, i) => reader.read(item, `${where}[${i}]`));
    },
  };
}

function shape(fields) {
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
