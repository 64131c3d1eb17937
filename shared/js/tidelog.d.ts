/** Types of Tidelog's client for browsers and Node. docs/javascript.md explains it. */

/** What a value, a key or a header may be given as; a text is its UTF-8. */
export type Data = Uint8Array | ArrayBuffer | ArrayBufferView | string;

/** A place in a partition: the offset wanted next, and the leader epoch of the record before it (-1: not known). */
export interface Position {
  leaderEpoch: number;
  offset: number;
}

/** A place in every partition: a name, an offset, a time, or partition -> offset or position. */
export type Where =
  | "earliest"
  | "latest"
  | number
  | Date
  | Map<number, number | Position>
  | Record<number, number | Position>;

/** A record as a consumer gets it. */
export interface LogRecord {
  topic: string;
  partition: number;
  offset: number;
  leaderEpoch: number;
  timestampMs: number;
  /** A view of the batch that the record came in; so is `value`. */
  key: Uint8Array | null;
  value: Uint8Array | null;
  headers: [name: string, content: Uint8Array][];
}

/** Where a record is. `offset` is -1 where it is not known: with acks `none`, and for some very late retries. */
export interface Ack {
  partition: number;
  offset: number;
  leaderEpoch: number;
  /** `received`, `leader` or `all`, `/`, the topic's flush policy: `all/fsync`. */
  durability: string;
  timestampMs: number;
}

export interface Codec {
  /** The whole frame, of which the size of the content is known and checked. */
  decompress?: (frame: Uint8Array) => Uint8Array;
  /** One frame that declares the size of its content. */
  compress?: (data: Uint8Array) => Uint8Array;
}

export interface ConnectOptions {
  /** Longest wait for the first gateway. Default 10. */
  connectTimeoutS?: number;
  /** How long requests wait, with reconnections. Default 30. */
  requestTimeoutS?: number;
  /** Says who we are (docs/security.md). */
  token?: string;
  codecs?: { zstd?: Codec; lz4?: Codec };
  /** The class to use where the platform has none, as in Node before version 22. */
  WebSocket?: unknown;
}

/** Connect to any of the gateways (default `ws://127.0.0.1:9292`), and to another when it is lost. */
export function connect(urls?: string | Iterable<string>, options?: ConnectOptions): Promise<Log>;

export interface ProducerOptions {
  /** `none`, `leader` or `all` (default). */
  acks?: "none" | "leader" | "all";
  compression?: "none" | "zstd" | "lz4";
  /** Longest that a batch waits for company while earlier ones are in flight. Default 0.005. */
  lingerS?: number;
  /** A batch is sent when it has this much; where it could not be sent anyway, since `maxInFlight` are before
   * it, it goes on to fill, to as much as half of them, and takes their places. Default 131072. */
  batchBytes?: number;
  /** From `submit` on; then the record has failed, perhaps with unknown outcome. Default 30. */
  deliveryTimeoutS?: number;
  requestTimeoutS?: number;
  /** Batches of one partition on their way at a time. Default 5; when idempotent, at most as many as the cluster
   * allows, which are 5. */
  maxInFlight?: number;
  /** Records that are not acknowledged yet; `submit` waits when there are more. Default 32 MiB. */
  bufferBytes?: number;
  /** A retry never writes a record twice. Default: yes, unless acks is `none`. */
  idempotent?: boolean | null;
  backoffS?: number;
}

export interface SendOptions {
  key?: Data | null;
  headers?: Record<string, Data> | Iterable<[string, Data]> | null;
  /** Default: by the key, as Kafka does it; without a key one partition for a whole batch, then the next. */
  partition?: number | null;
  /** Default: now. */
  timestampMs?: number | null;
  /** Append it there or not at all (`UNEXPECTED_OFFSET`). Name the partition, or a key. */
  expectedOffset?: number | null;
}

/** A record that was accepted and is not acknowledged yet, perhaps. */
export class Pending {
  readonly partition: number;
  readonly isSettled: boolean;
  wait(): Promise<Ack>;
  result(): Ack;
}

export class Producer {
  readonly topic: string;
  /** Acknowledgements that asked for a pause, since a partition's leader is slow, and the sum of these pauses. */
  readonly throttledAcks: number;
  readonly throttledS: number;
  send(value: Data | null, options?: SendOptions): Promise<Ack>;
  submit(value: Data | null, options?: SendOptions): Promise<Pending>;
  flush(): Promise<void>;
  /** Rejects with `DeliveryFailed` if records failed that nobody waited for. */
  close(): Promise<void>;
  abandon(): void;
  failure(): DeliveryFailed | null;
}

export interface ConsumeOptions {
  start?: Where;
  end?: Where | null;
  partitions?: Iterable<number> | null;
  /** Newest first, from below `start` down to `end`. */
  reverse?: boolean;
  /** Bytes that may wait in this process, all partitions together. Default 32 MiB. */
  bufferBytes?: number;
  /** Of these at most so many for one partition. Default 4 MiB. */
  partitionBytes?: number;
  backoffS?: number;
  readFrom?: "leader" | "any";
  consistency?: "eventual" | "bounded" | "linearizable";
  maxStalenessS?: number | null;
  /** At a batch that cannot be decoded: `raise` throws `UnreadableBatch`, `skip` passes over it and counts it. Default `raise`. */
  onUnreadable?: "raise" | "skip";
}

/** What all consumers are. Who leaves the loop has closed it. */
export interface RecordStream extends AsyncIterable<LogRecord> {
  readonly topic: string;
  readonly topicId: string;
  readonly positions: Map<number, Position>;
  /** Batches that were passed over since they cannot be decoded, and their offsets. */
  readonly skippedBatches: number;
  readonly skippedOffsets: number;
  open(): Promise<void>;
  nextRecords(): Promise<LogRecord[]>;
  close(): Promise<void>;
}

export class Consumer implements RecordStream {
  readonly topic: string;
  readonly topicId: string;
  readonly positions: Map<number, Position>;
  /** Batches that were passed over since they cannot be decoded, and their offsets. */
  readonly skippedBatches: number;
  readonly skippedOffsets: number;
  readonly bufferedBytes: number;
  readonly paused: number[];
  open(): Promise<void>;
  nextRecords(): Promise<LogRecord[]>;
  pause(...partitions: number[]): Promise<void>;
  resume(...partitions: number[]): Promise<void>;
  seek(where: Where, ...partitions: number[]): Promise<void>;
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<LogRecord, void, void>;
}

export class BackwardConsumer implements RecordStream {
  readonly topic: string;
  readonly topicId: string;
  readonly positions: Map<number, Position>;
  /** Batches that were passed over since they cannot be decoded, and their offsets. */
  readonly skippedBatches: number;
  readonly skippedOffsets: number;
  open(): Promise<void>;
  nextRecords(): Promise<LogRecord[]>;
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<LogRecord, void, void>;
}

/** A partition that a member of a group owns. */
export interface Share {
  topicId: string;
  topic: string;
  partition: number;
}

export interface GroupOptions {
  /** Name of the consumer group. */
  group: string;
  /** Where to begin where the group has come nowhere yet. Default `earliest`. */
  start?: "earliest" | "latest" | number | Date;
  /** Name of a static member: who comes back under it within the session timeout has what it had. */
  instance?: string;
  assignor?: "" | "sticky" | "range";
  /** Without a heartbeat for so long the member is out. Default 45. */
  sessionTimeoutS?: number;
  /** A member that does not give up in this time what it must give up is out. Default 60. */
  rebalanceTimeoutS?: number;
  /** What is done is committed so often, and before partitions are given up. null: only `commit` commits. Default 5. */
  autoCommitS?: number | null;
  /** These are read from now on. */
  onAssigned?: (shares: Share[]) => unknown;
  /** These are given up: the last chance to bring something to an end. */
  onRevoked?: (shares: Share[]) => unknown;
  /** These are gone already; others may process them by now. */
  onLost?: (shares: Share[]) => unknown;
  bufferBytes?: number;
  partitionBytes?: number;
  backoffS?: number;
  readFrom?: "leader" | "any";
  consistency?: "eventual" | "bounded" | "linearizable";
  maxStalenessS?: number | null;
  /** At a batch that cannot be decoded: `raise` throws `UnreadableBatch`, `skip` passes over it and counts it. Default `raise`. */
  onUnreadable?: "raise" | "skip";
}

/** A member of a consumer group. Who leaves the loop has left the group. */
export class GroupConsumer implements AsyncIterable<LogRecord> {
  readonly group: string;
  readonly topics: string[];
  /** What this member owns and is not giving up. */
  readonly assignment: Share[];
  /** The member's generation; -1 before it has joined. */
  readonly generation: number;
  /** Where what was handed out ends, which is what `commit` commits. */
  readonly positions: (Share & Position)[];
  /** Of what is owned, that of which nothing is handed out now. */
  readonly paused: Share[];
  /** Batches that were passed over since they cannot be decoded, and their offsets. */
  readonly skippedBatches: number;
  readonly skippedOffsets: number;
  open(): Promise<void>;
  nextRecords(): Promise<LogRecord[]>;
  /** All that was handed out so far is done: a partition that is to be given up may go. */
  commit(): Promise<void>;
  /** Hand nothing of these out until they are resumed or go to another member; none named: of all that is owned now. */
  pause(...partitions: Pick<Share, "topic" | "partition">[]): Promise<void>;
  /** Hand these out again, none named: all. */
  resume(...partitions: Pick<Share, "topic" | "partition">[]): Promise<void>;
  /** Go on there: with these or all that are owned, or with those that `where` names. It is what is committed next. */
  seek(
    where: "earliest" | "latest" | number | Date | (Pick<Share, "topic" | "partition"> & { offset: number; leaderEpoch?: number })[],
    ...partitions: Pick<Share, "topic" | "partition">[]
  ): Promise<void>;
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<LogRecord, void, void>;
}

export interface GroupInfo {
  group: string;
  /** `empty`, `moving` (partitions are on their way from member to member) or `stable`. */
  state: string;
  members: number;
  coordinator: string;
}

export interface GroupPosition {
  topicId: string;
  partition: number;
  offset: number;
  leaderEpoch: number;
  metadata: string;
  committedMs: number;
}

export interface GroupShare {
  topicId: string;
  topic: string;
  partitions: number[];
}

export interface GroupMember {
  member: string;
  generation: number;
  instance: string;
  node: string;
  topics: string[];
  assignment: GroupShare[];
  leaving: GroupShare[];
  target: GroupShare[];
  sessionTimeoutMs: number;
  away: boolean;
}

export interface Group {
  group: string;
  state: string;
  generation: number;
  assignor: string;
  coordinator: string;
  members: GroupMember[];
  positions: GroupPosition[];
}

export interface PartitionInfo {
  partition: number;
  replicas: string[];
  isr: string[];
  leader: string;
  leaderEpoch: number;
  epoch: number;
  /** -1: not asked for. */
  logStart: number;
  highWatermark: number;
  elr: string[];
  learners: string[];
  successor: string;
  target: string[];
  readOnly: boolean;
  paused: boolean;
  /** Null: nobody waits, or offsets were not asked for. */
  stable: StableOffset | null;
}

export interface TopicInfo {
  topicId: string;
  name: string;
  config: Record<string, string>;
  partitions: PartitionInfo[];
}

export interface ServerInfo {
  node: string;
  url: string;
  brokerEpoch: number;
  fenced: boolean;
  rack: string;
  draining: boolean;
}

export interface Status {
  cluster: string;
  index: number;
  topics: TopicInfo[];
  servers: ServerInfo[];
}

/** Where readers of what is committed wait for a transaction. */
export interface StableOffset {
  offset: number;
  producerId: number;
  /** -1: the marker of the transaction is in the leader's log, and not committed yet. */
  producerEpoch: number;
  ageMs: number;
}

export interface OffsetAnswer {
  offset: number;
  leaderEpoch: number;
  timestampMs: number;
  /** Null: nobody waits, or it was not asked for. */
  stable: StableOffset | null;
}

export interface HistoryEntry {
  timeMs: number;
  epoch: number;
  leaderEpoch: number;
  event: string;
  cause: string;
  leader: string;
  isr: string[];
  evidence: Record<string, string>;
}

export interface ControllerInfo {
  node: string;
  url: string;
  role: "leader" | "follower" | "candidate" | "unknown";
  voter: boolean;
  match: number;
  lost: boolean;
}

export interface Quorum {
  active: string;
  term: number;
  commitIndex: number;
  controllers: ControllerInfo[];
  /** Names of the gateways that are connected to the controller which answered. */
  gateways: string[];
}

export interface PlannedMove {
  name: string;
  partition: number;
  replicas: string[];
  target: string[];
  reason: string;
}

export interface Digest {
  logStart: number;
  logEnd: number;
  highWatermark: number;
  leaderEpoch: number;
  comparableFrom: number;
  entries: { offset: number; boundary: number; chain: Uint8Array }[];
  /** Everything below it is on stable storage. */
  durable: number;
  /** Where the last leader epochs begin in this log. */
  epochs: { epoch: number; start: number }[];
  /** The leader epoch in which the replica leads or follows; -1: in none, or its log is not known yet. */
  roleEpoch: number;
}

/** A connected client; may be used by many at a time. */
/** A rule: whether a principal may do an operation on a resource (docs/security.md). */
export interface Acl {
  principal: string;
  operation: string;
  resource: string;
  deny?: boolean;
}

/** What each gateway lets a principal have, all its connections together; -1, or left out: as much as it likes. */
export interface Quota {
  principal: string;
  bytesInS?: number;
  bytesOutS?: number;
  requestsS?: number;
  connections?: number;
}

/** A token without anything that would help to use it. `expiresMs` -1: never. */
export interface TokenInfo {
  tokenId: string;
  principal: string;
  createdMs: number;
  expiresMs: number;
}

export interface Access {
  tokens: TokenInfo[];
  acls: Required<Acl>[];
  quotas: Required<Quota>[];
  /** Principals, as rules name them, whose right to administer the cluster includes `security`. */
  heirs: string[];
}

export class Log {
  /** The gateway that we are connected to; null while there is none. */
  readonly gateway: { url: string; node: string; cluster: string } | null;
  createTopic(
    name: string,
    options?: { partitions?: number; replicationFactor?: number; config?: Record<string, unknown> },
  ): Promise<TopicInfo>;
  deleteTopic(name: string): Promise<void>;
  configureTopic(name: string, config: Record<string, unknown>): Promise<void>;
  growTopic(name: string, partitions: number): Promise<void>;
  topics(): Promise<TopicInfo[]>;
  describe(topic: string, options?: { offsets?: boolean }): Promise<TopicInfo>;
  status(): Promise<Status>;
  history(topic: string, partition: number): Promise<HistoryEntry[]>;
  histories(topic: TopicInfo, partitions: Iterable<number>): Promise<Map<number, HistoryEntry[]>>;

  producer(topic: string, options?: ProducerOptions): Promise<Producer>;
  consume(topic: string | Iterable<string>, options: GroupOptions): GroupConsumer;
  consume(topic: string, options: ConsumeOptions & { reverse: true }): BackwardConsumer;
  consume(topic: string, options?: ConsumeOptions & { reverse?: false }): Consumer;
  listOffset(topic: string, partition: number, at?: "earliest" | "latest" | Date): Promise<OffsetAnswer>;
  listOffsets(
    topic: TopicInfo,
    at: "earliest" | "latest" | Date,
    partitions: Iterable<number>,
  ): Promise<Map<number, OffsetAnswer>>;

  groups(): Promise<GroupInfo[]>;
  describeGroup(group: string): Promise<Group>;
  deleteGroup(group: string): Promise<void>;
  fetchOffsets(group: string, topic: string): Promise<Map<number, Position>>;
  resetGroup(
    group: string,
    topic: string,
    positions: Map<number, number | Position> | Record<number, number | Position>,
  ): Promise<void>;

  /** A new bearer token of a principal, which nobody else knows. Without `lifetimeS` it never expires. */
  createToken(principal: string, options?: { lifetimeS?: number | null }): Promise<string>;
  /** A new token of the same principal; the former ends `graceS` later. */
  rotateToken(tokenId: string, options?: { graceS?: number; lifetimeS?: number | null }): Promise<string>;
  /** It ends now, and so do the connections that were opened with it. */
  revokeToken(tokenId: string): Promise<void>;
  revokeTokensOf(principal: string): Promise<void>;
  /** Have the cluster sign the tickets of producer ids with a new key; those of the key before stay valid. */
  rotateTicketKeys(): Promise<void>;
  alterAcls(changes: { add?: Iterable<Acl>; remove?: Iterable<Acl> }): Promise<void>;
  /** Nobody decides about tokens and rules any more but superusers and whom a rule allows `security`. */
  dropInheritedSecurity(): Promise<void>;
  alterQuotas(quotas: Iterable<Quota>): Promise<void>;
  access(): Promise<Access>;

  setReadOnly(topic: string, partitions?: Iterable<number>, options?: { readOnly?: boolean }): Promise<void>;
  pause(topic: string, partitions?: Iterable<number>): Promise<void>;
  resume(topic: string, partitions?: Iterable<number>): Promise<void>;
  transfer(topic: string, partition: number, server?: string): Promise<PartitionInfo>;
  setLearners(topic: string, partition: number, learners: Iterable<string>): Promise<void>;
  reassign(topic: string, partition: number, replicas: Iterable<string>): Promise<void>;
  cancelReassignment(topic: string, partition: number): Promise<void>;
  planRebalance(options?: { emptyDrained?: boolean }): Promise<PlannedMove[]>;
  rebalance(options?: { emptyDrained?: boolean }): Promise<void>;
  cancelRebalance(): Promise<void>;
  waitingMoves(): Promise<PlannedMove[]>;
  drain(server: string, drain?: boolean): Promise<void>;
  digest(topicId: string, partition: number, node: string, offsets?: Iterable<number>): Promise<Digest>;
  quorum(): Promise<Quorum>;
  metrics(node?: string): Promise<{ page: string; version: string; timeMs: number }>;
  addController(node: string, url: string): Promise<void>;
  removeController(node: string): Promise<void>;
  /** With the nodes of `tidelog dev` only: what happens to one; the nodes as they are then. */
  play(node?: string, act?: "" | "kill" | "pause" | "cut" | "heal"): Promise<{ node: string; state: string }[]>;
  /** Likewise: hear from now on what the services say to each other; no more, and what it was. */
  playedMessages(act: "record" | "stop"): Promise<PlayedMessage[]>;

  /** What producers have accepted is acknowledged first, or reported; consumers are closed. */
  close(): Promise<void>;
}

/** What one service said to another; `op` is that of the request, of an answer, too. */
export interface PlayedMessage {
  timeMs: number;
  sender: string;
  receiver: string;
  op: string;
  answer: boolean;
  words: string;
}

/** Base of all errors of Tidelog; docs/errors.md lists the codes. */
export class TidelogError extends Error {
  readonly code: string;
  /** What was asked may have been done all the same. */
  unknownOutcome: boolean;
  readonly detail: Record<string, string | number>;
  /** The same request may succeed later, unchanged. */
  readonly retriable: boolean;
  readonly refreshMetadata: boolean;
  /** How long to wait before the next try, in seconds, where the server says so. */
  readonly pauseS: number;
}
export class BrokerError extends TidelogError {}
export class ProtocolError extends TidelogError {}
export class CorruptBatch extends TidelogError {}
/** A batch of the log that cannot be decoded, and where it is. */
export class UnreadableBatch extends CorruptBatch {
  readonly topic: string;
  readonly partition: number;
  readonly baseOffset: number;
  readonly lastOffset: number;
  /** Where reading goes on behind the batch. */
  readonly nextOffset: number;
  /** 0: its producer was not idempotent. */
  readonly producerId: number | bigint;
  /** Its CRC is wrong: another read may get a sound copy. Such a batch is never skipped. */
  readonly isDamaged: boolean;
}
export class Unreachable extends TidelogError {}
export class TimedOut extends TidelogError {}
export class Closed extends TidelogError {}
export class ConfigError extends TidelogError {}
export class DeliveryFailed extends TidelogError {
  /** How many records. */
  readonly failed: number;
}

/** Meaning of each code. */
export const CODES: Record<string, { text: string; retriable: boolean; refreshMetadata: boolean }>;

/** Kafka's partition of a key in a topic of so many. */
export function partitionOf(key: Uint8Array, partitions: number): number;
