/**
 * The answers and notices that a gateway sends, as objects: their fields in camelCase, checked, and set to
 * their defaults where they were left out. What each field means: shared/tidelog/wire/messages. Generated
 * from there by `make pages`.
 */

import { bytes, flag, integer, integers, list, or, shape, text, texts } from "./shapes.js";

export const errorInfo = shape({
  code: text,
  message: or("", text),
  unknown_outcome: or(false, flag),
  detail: or({}, texts),
  id: or("", text),
});

const tokenInfo = shape({
  token_id: text,
  principal: text,
  created_ms: or(0, integer),
  expires_ms: or(-1, integer),
});

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
  authentication: or(false, flag),
  authorization: or(false, flag),
  principal: or("", text),
  superuser: or(false, flag),
});

const topicShare = shape({ topic_id: text, partitions: list(integer), topic: or("", text) });

const memberWork = shape({
  idle_ms: or(-1, integer),
  topic_id: or("", text),
  partition: or(-1, integer),
  offset: or(-1, integer),
  paused: or([], list(topicShare)),
  quota_ms: or(0, integer),
});

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
  heard_ms: or(-1, integer),
  leaving_ms: or(-1, integer),
  work: or(null, memberWork),
  joined_ms: or(-1, integer),
  advanced_ms: or(-1, integer),
});

const groupPosition = shape({
  topic_id: text,
  partition: integer,
  offset: integer,
  leader_epoch: or(-1, integer),
  metadata: or("", text),
  committed_ms: or(-1, integer),
  earlier_offset: or(-1, integer),
  earlier_ms: or(-1, integer),
});

const groupEvent = shape({
  event: text,
  time_ms: integer,
  member: text,
  node: or("", text),
  code: or("", text),
  times: or(1, integer),
  timeout_ms: or(0, integer),
  advanced: or(false, flag),
});

const movedPosition = shape({
  topic_id: text,
  partition: integer,
  before: integer,
  after: integer,
  time_ms: integer,
  passed_ms: or(-1, integer),
});

export const describeGroupAnswer = shape({
  group: text,
  state: text,
  generation: integer,
  assignor: text,
  coordinator: text,
  members: or([], list(groupMember)),
  positions: or([], list(groupPosition)),
  events: or([], list(groupEvent)),
  moved: or([], list(movedPosition)),
  time_ms: or(-1, integer),
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

export const done = shape({});

export const fetchOffsetsAnswer = shape({ positions: or([], list(groupPosition)) });

export const groupHeartbeatAnswer = shape({ generation: integer, assignment: or([], list(topicShare)) });

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

export const joinGroupAnswer = shape({
  generation: integer,
  heartbeat_ms: integer,
  assignment: or([], list(topicShare)),
});

const groupInfo = shape({
  group: text,
  state: text,
  members: or(0, integer),
  coordinator: or("", text),
  positions: or(null, list(groupPosition)),
});

export const listGroupsAnswer = shape({ groups: or([], list(groupInfo)), more: or(false, flag) });

const transactionInfo = shape({
  app: text,
  state: text,
  producer_id: integer,
  producer_epoch: integer,
  staged: or("", text),
  partitions: or(0, integer),
  since_ms: or(-1, integer),
  until_ms: or(-1, integer),
  parts: or([], list(topicShare)),
  pending: or([], list(topicShare)),
});

export const listTransactionsAnswer = shape({
  transactions: or([], list(transactionInfo)),
  batches: or([], list(integer)),
  more: or(false, flag),
});

const stableOffset = shape({
  offset: integer,
  producer_id: integer,
  producer_epoch: integer,
  age_ms: integer,
});

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

const gatewayInfo = shape({ node: text, url: text });

export const metadataAnswer = shape({
  cluster: text,
  index: integer,
  topics: list(topicInfo),
  servers: list(serverInfo),
  gateways: or([], list(gatewayInfo)),
});

const refusedClient = shape({
  cause: text,
  address: text,
  name: or("", text),
  principal: or("", text),
  token: or("", text),
  times: or(1, integer),
  first_ms: or(-1, integer),
  last_ms: or(-1, integer),
});

export const metricsAnswer = shape({
  page: text,
  version: or("", text),
  time_ms: or(-1, integer),
  refused: or([], list(refusedClient)),
});

export const offsetAnswer = shape({
  offset: integer,
  leader_epoch: or(-1, integer),
  timestamp_ms: or(-1, integer),
  stable: or(null, stableOffset),
  bytes: or(-1, integer),
});

const playedNode = shape({ node: text, state: text });

const playedMessage = shape({
  time_ms: integer,
  sender: text,
  receiver: text,
  op: or("", text),
  answer: or(false, flag),
  words: or("", text),
});

export const playAnswer = shape({ nodes: or([], list(playedNode)), messages: or([], list(playedMessage)) });

export const producerId = shape({
  producer_id: integer,
  count: or(1, integer),
  ticket: or("", text),
  window: or(0, integer),
});

export const producerTicket = shape({ ticket: or("", text) });

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

export const quorumAnswer = shape({
  active: text,
  term: integer,
  commit_index: integer,
  controllers: list(controllerInfo),
  gateways: or([], list(text)),
  disks_needed: or([], list(text)),
  gateway_urls: or({}, texts),
});

export const readAnswer = shape({
  leader_epoch: integer,
  high_watermark: or(-1, integer),
  log_start: or(0, integer),
  payload: bytes,
  compacted_to: or(0, integer),
  tombstones_to: or(0, integer),
  needed: or(0, integer),
});

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

export const topicCreated = shape({ topic_id: text });

export const transactionEnded = shape({ committed: or(false, flag), pending: or([], list(topicShare)) });

export const welcome = shape({
  version: integer,
  cluster: text,
  node: text,
  role: text,
  max_message_bytes: integer,
  max_in_flight: integer,
  nonce: or(new Uint8Array(), bytes),
  proof: or(new Uint8Array(), bytes),
  capabilities: or([], list(text)),
  limits: or({}, integers),
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
