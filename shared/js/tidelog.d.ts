/** Types of Tidelog's client for browsers and Node. docs/javascript.md explains it. */

/** A value, a key or a header as an application may give it; a text is encoded as UTF-8. */
export type Data = Uint8Array | ArrayBuffer | ArrayBufferView | string;

/**
 * A position in a partition: the next offset wanted, and the leader epoch of the record before it (-1: not known).
 */
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

/** A record as a consumer returns it. */
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

/**
 * The place of an acknowledged record. `offset` is -1 if it is not known: with acks `none`, and for some very late
 * retries.
 */
export interface Ack {
  partition: number;
  offset: number;
  leaderEpoch: number;
  /**
   * Durability that was reached: `received`, `leader` or `all`, then `/` and the topic's flush policy, as in
   * `all/fsync`.
   */
  durability: string;
  timestampMs: number;
}

export interface Codec {
  /** Decompresses one whole frame; the size of its content is known and checked. */
  decompress?: (frame: Uint8Array) => Uint8Array;
  /** Compresses data into one frame that declares the size of its content. */
  compress?: (data: Uint8Array) => Uint8Array;
}

export interface ConnectOptions {
  /** Seconds to wait for the first gateway. Default 10. */
  connectTimeoutS?: number;
  /** Seconds that requests wait, with reconnections. Default 30. */
  requestTimeoutS?: number;
  /** The bearer token that identifies this client (docs/security.md). */
  token?: string;
  /**
   * Whether to go on at other gateways, too, which the cluster names, if the given ones cannot be reached
   * (docs/protocol.md). Default true.
   */
  discover?: boolean;
  /**
   * For programs that look after the cluster: a gateway that is full may let them in all the same, to a connection
   * that is reserved for operators (docs/security.md). Default false.
   */
  operator?: boolean;
  codecs?: { zstd?: Codec; lz4?: Codec };
  /** A WebSocket class to use instead of the platform's. */
  WebSocket?: unknown;
}

/** Connect to any of the gateways (default `ws://127.0.0.1:9292`), and to another one when it is lost. */
export function connect(urls?: string | Iterable<string>, options?: ConnectOptions): Promise<Log>;

export interface ProducerOptions {
  /** Durability to wait for: `none`, `leader` or `all` (default). */
  acks?: "none" | "leader" | "all";
  compression?: "none" | "zstd" | "lz4";
  /** Longest time in seconds that a batch waits for more records while earlier ones are in flight. Default 0.005. */
  lingerS?: number;
  /**
   * Bytes at which a batch is sent. While `maxInFlight` batches precede it, it goes on to fill, up to half of their
   * total size, and takes the places of several. Default 131072.
   */
  batchBytes?: number;
  /**
   * Seconds after `submit` at which a record that is not acknowledged fails, perhaps with unknown outcome. Default
   * 30.
   */
  deliveryTimeoutS?: number;
  requestTimeoutS?: number;
  /**
   * Most batches of one partition in flight. Default 5; an idempotent producer has at most as many as the cluster
   * allows, which are 5.
   */
  maxInFlight?: number;
  /** Bytes of records that may be unacknowledged; `submit` waits when there are more. Default 32 MiB. */
  bufferBytes?: number;
  /** Whether a retry never writes a record twice. Default: yes, unless acks is `none`. */
  idempotent?: boolean | null;
  backoffS?: number;
}

export interface SendOptions {
  key?: Data | null;
  headers?: Record<string, Data> | Iterable<[string, Data]> | null;
  /**
   * Partition of the record. Default: by the hash of the key, as with Kafka's clients; without a key one partition
   * for a whole batch, then the next.
   */
  partition?: number | null;
  /** Milliseconds since 1970. Default: now. */
  timestampMs?: number | null;
  /** Append the record at this offset or not at all (`UNEXPECTED_OFFSET`). Name the partition, or a key. */
  expectedOffset?: number | null;
}

/** A record that a producer has accepted, with its acknowledgement or its failure once that is known. */
export class Pending {
  readonly partition: number;
  readonly isSettled: boolean;
  wait(): Promise<Ack>;
  result(): Ack;
}

export class Producer {
  readonly topic: string;
  /**
   * Acknowledgements that asked for a pause because a partition's leader is slow, and the sum of these pauses in
   * seconds.
   */
  readonly throttledAcks: number;
  readonly throttledS: number;
  send(value: Data | null, options?: SendOptions): Promise<Ack>;
  submit(value: Data | null, options?: SendOptions): Promise<Pending>;
  flush(): Promise<void>;
  /**
   * Wait until every record is settled, and end. Rejects with `DeliveryFailed` if records failed and no caller got
   * the error.
   */
  close(): Promise<void>;
  abandon(): void;
  failure(): DeliveryFailed | null;
}

export interface ConsumeOptions {
  start?: Where;
  end?: Where | null;
  partitions?: Iterable<number> | null;
  /** Newest record first, from below `start` down to `end`. */
  reverse?: boolean;
  /** Bytes that may have arrived and not been returned, over all partitions. Default 32 MiB. */
  bufferBytes?: number;
  /** Most of these bytes for one partition. Default 4 MiB. More than the gateway sends ahead, 8 MiB, has no effect. */
  partitionBytes?: number;
  backoffS?: number;
  readFrom?: "leader" | "any";
  consistency?: "eventual" | "bounded" | "linearizable";
  maxStalenessS?: number | null;
  /**
   * At a batch that cannot be decoded: `raise` throws `UnreadableBatch`, `skip` skips and counts it. Default `raise`.
   */
  onUnreadable?: "raise" | "skip";
}

/** The part that all consumers share. Leaving the loop closes the consumer. */
export interface RecordStream extends AsyncIterable<LogRecord> {
  readonly topic: string;
  readonly topicId: string;
  readonly positions: Map<number, Position>;
  /** Number of batches, and of offsets in them, that were skipped because they cannot be decoded. */
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
  /** Number of batches, and of offsets in them, that were skipped because they cannot be decoded. */
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
  /** Number of batches, and of offsets in them, that were skipped because they cannot be decoded. */
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
  /** Place to begin at in a partition without a committed position. Default `earliest`. */
  start?: "earliest" | "latest" | number | Date;
  /** Name of a static member, which may be away for the session timeout without losing its partitions. */
  instance?: string;
  assignor?: "" | "sticky" | "range";
  /** Seconds without a heartbeat after which the member has lost its partitions. Default 45. */
  sessionTimeoutS?: number;
  /** Seconds within which the member must give up partitions, or be removed from the group. Default 60. */
  rebalanceTimeoutS?: number;
  /**
   * Interval in seconds at which finished positions are committed; they are also committed before partitions are
   * given up. null: only `commit` commits. Default 5.
   */
  autoCommitS?: number | null;
  /** Called with partitions that are read from now on. */
  onAssigned?: (shares: Share[]) => unknown;
  /** Called with partitions that are being given up: the last chance to finish work on them. */
  onRevoked?: (shares: Share[]) => unknown;
  /** Called with partitions that other members may process by now. */
  onLost?: (shares: Share[]) => unknown;
  bufferBytes?: number;
  partitionBytes?: number;
  backoffS?: number;
  readFrom?: "leader" | "any";
  consistency?: "eventual" | "bounded" | "linearizable";
  maxStalenessS?: number | null;
  /**
   * At a batch that cannot be decoded: `raise` throws `UnreadableBatch`, `skip` skips and counts it. Default `raise`.
   */
  onUnreadable?: "raise" | "skip";
}

/** A member of a consumer group. Leaving the loop leaves the group. */
export class GroupConsumer implements AsyncIterable<LogRecord> {
  readonly group: string;
  readonly topics: string[];
  /** The partitions that this member owns and is not giving up. */
  readonly assignment: Share[];
  /** The member's generation; -1 before it has joined. */
  readonly generation: number;
  /** The position after the last record that was returned of each partition, which `commit` commits. */
  readonly positions: (Share & Position)[];
  /** The owned partitions that are paused. */
  readonly paused: Share[];
  /** Number of batches, and of offsets in them, that were skipped because they cannot be decoded. */
  readonly skippedBatches: number;
  readonly skippedOffsets: number;
  open(): Promise<void>;
  nextRecords(): Promise<LogRecord[]>;
  /** Commit the position after every record that was returned: a partition that is to be given up may go. */
  commit(): Promise<void>;
  /**
   * Return no records of these partitions until they are resumed or move to another member; none named: of all that
   * are owned now.
   */
  pause(...partitions: Pick<Share, "topic" | "partition">[]): Promise<void>;
  /** Return records of these partitions again; none named: of all. */
  resume(...partitions: Pick<Share, "topic" | "partition">[]): Promise<void>;
  /**
   * Read on from this place in these partitions or in all that are owned, or in those that `where` names. The new
   * positions are committed next.
   */
  seek(
    where: "earliest" | "latest" | number | Date | (Pick<Share, "topic" | "partition"> & { offset: number; leaderEpoch?: number })[],
    ...partitions: Pick<Share, "topic" | "partition">[]
  ): Promise<void>;
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<LogRecord, void, void>;
}

export interface GroupInfo {
  group: string;
  /** `empty`, `moving` (partitions move from member to member) or `stable`. */
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
  /** -1: not requested. */
  logStart: number;
  highWatermark: number;
  elr: string[];
  learners: string[];
  successor: string;
  target: string[];
  readOnly: boolean;
  paused: boolean;
  /** null: no reader waits, or offsets were not requested. */
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

export interface GatewayInfo {
  node: string;
  url: string;
}

export interface Status {
  cluster: string;
  index: number;
  topics: TopicInfo[];
  servers: ServerInfo[];
  /** Gateways that clients may go on at, 64 at most. */
  gateways: GatewayInfo[];
}

/** The offset at which readers of committed records wait for a transaction. */
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
  /** null: no reader waits, or it was not requested. */
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
  /** The URLs under which clients reach gateways, by name. */
  gatewayUrls: Record<string, string>;
}

export interface PlannedMove {
  name: string;
  partition: number;
  replicas: string[];
  target: string[];
  reason: string;
  /** The figures behind the reason. */
  evidence: string;
}

/** What a rebalance evens out: numbers of replicas, or the sums of the weights. */
export interface RebalanceOptions {
  /** Also move replicas away from drained servers. */
  emptyDrained?: boolean;
  /** Weight of one replica of each partition; a partition that is not listed weighs 0. */
  weights?: { topic: string; partition: number; weight: number }[];
  /** Unit of the weights; "" without weights. */
  unit?: "" | "B" | "B/s";
}

export interface Digest {
  logStart: number;
  logEnd: number;
  highWatermark: number;
  leaderEpoch: number;
  comparableFrom: number;
  entries: { offset: number; boundary: number; chain: Uint8Array }[];
  /** Every record below this offset is on stable storage. */
  durable: number;
  /** The first offsets of the last leader epochs in this log. */
  epochs: { epoch: number; start: number }[];
  /** The leader epoch in which the replica leads or follows; -1: in none, or its log is not known yet. */
  roleEpoch: number;
}

/** A rule: whether a principal may do an operation on a resource (docs/security.md). */
export interface Acl {
  principal: string;
  operation: string;
  resource: string;
  deny?: boolean;
}

/** The amounts that each gateway allows a principal over all its connections; -1, or left out: not bounded. */
export interface Quota {
  principal: string;
  bytesInS?: number;
  bytesOutS?: number;
  requestsS?: number;
  connections?: number;
}

/** A token without its secret part. `expiresMs` -1: never. */
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
  /** The gateway refuses clients that show neither a token nor a certificate. */
  authentication: boolean;
  /** The gateway enforces the rules. */
  authorization: boolean;
  /** Principal of the client that asked, as rules name it. */
  principal: string;
  /** The gateway's configuration names this principal among its superusers: rules do not bind it. */
  superuser: boolean;
}

/** A transaction of an application (docs/transactions.md). */
export interface TransactionInfo {
  /** The transactional id. */
  app: string;
  /** `committing` and `aborting`: decided, but some leaders do not know it yet. */
  state: "open" | "prepared" | "committing" | "aborting" | "committed" | "aborted";
  producerId: number;
  producerEpoch: number;
  /** The name of a staged transaction; "": it is not staged. */
  staged: string;
  /** Number of partitions that it has written to. */
  partitions: number;
  /** When it came into this state; -1: not known. */
  sinceMs: number;
  /** When it is aborted unless it has ended before; -1: it is decided. */
  untilMs: number;
  /** The partitions that it has written to; empty in the list of all applications. */
  parts: GroupShare[];
  /** Of a decided transaction: partitions that are not known to have its marker; empty in the list of all. */
  pending: GroupShare[];
}

/** A connected client, from `connect` until `close`; any number of callers may use it at a time. */
export class Log {
  /** The gateway of the open link; null while there is none. */
  readonly gateway: { url: string; node: string; cluster: string } | null;
  createTopic(
    name: string,
    options?: { partitions?: number; replicationFactor?: number; config?: Record<string, unknown>; existOk?: boolean },
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

  /** Every transaction that has not ended, ordered by application. */
  transactions(): Promise<TransactionInfo[]>;
  /** The last transaction of an application, what it has staged, and the newest batches that it has committed. */
  describeTransactions(app: string): Promise<{ transactions: TransactionInfo[]; batches: number[] }>;
  /** Abort the open transaction of an application; false if none is open, or it was committed meanwhile. */
  abortTransaction(app: string): Promise<boolean>;
  /** Drop these staged transactions of an application; those that are committed or unknown are left alone. */
  abort(app: string, staged: Iterable<string>): Promise<void>;
  /** End a hanging transaction, one that no coordinator has, in one partition. */
  settleTransaction(topic: string, partition: number, producerId: number, epoch: number, outcome: { commit: boolean }): Promise<void>;

  /** Create a bearer token of a principal and resolve with it. Without `lifetimeS` it never expires. */
  createToken(principal: string, options?: { lifetimeS?: number | null }): Promise<string>;
  /** Create a new token for the principal of an existing one; the old one expires `graceS` later. */
  rotateToken(tokenId: string, options?: { graceS?: number; lifetimeS?: number | null }): Promise<string>;
  /** Revoke a token at once, and close the connections that were opened with it. */
  revokeToken(tokenId: string): Promise<void>;
  revokeTokensOf(principal: string): Promise<void>;
  /** Make the cluster sign the tickets of producer ids with a new key; tickets of the key before stay valid. */
  rotateTicketKeys(): Promise<void>;
  alterAcls(changes: { add?: Iterable<Acl>; remove?: Iterable<Acl> }): Promise<void>;
  /** Allow only superusers, and principals with the right `security`, to change tokens and rules from now on. */
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
  planRebalance(options?: RebalanceOptions): Promise<PlannedMove[]>;
  rebalance(options?: RebalanceOptions): Promise<void>;
  cancelRebalance(): Promise<void>;
  waitingMoves(): Promise<PlannedMove[]>;
  drain(server: string, drain?: boolean): Promise<void>;
  /** Remove a server that is gone for good: it must be down and have no copies. */
  forgetServer(server: string): Promise<void>;
  digest(topicId: string, partition: number, node: string, offsets?: Iterable<number>): Promise<Digest>;
  quorum(): Promise<Quorum>;
  metrics(node?: string): Promise<{ page: string; version: string; timeMs: number }>;
  addController(node: string, url: string): Promise<void>;
  removeController(node: string): Promise<void>;
  /** Inject a fault into a node of a cluster that `tidelog dev` runs, and resolve with the nodes as they are then. */
  play(node?: string, act?: "" | "kill" | "pause" | "cut" | "heal"): Promise<{ node: string; state: string }[]>;
  /**
   * Begin to record the messages between the services of such a cluster, or end that and resolve with the messages.
   */
  playedMessages(act: "record" | "stop"): Promise<PlayedMessage[]>;

  /**
   * Close the client. Producers first wait until their records are acknowledged or have failed; consumers are closed.
   */
  close(): Promise<void>;
}

/** A message from one service to another; `op` is that of the request, for an answer, too. */
export interface PlayedMessage {
  timeMs: number;
  sender: string;
  receiver: string;
  op: string;
  answer: boolean;
  words: string;
}

/** The base of all errors of Tidelog; docs/errors.md lists the codes. */
export class TidelogError extends Error {
  readonly code: string;
  /** Whether the request may have been executed all the same. */
  unknownOutcome: boolean;
  readonly detail: Record<string, string | number>;
  /** Id under which the gateway keeps the evidence of the refusal for a while (`tidelog why ID`); "": none. */
  id: string;
  /** Whether the same request may succeed later, unchanged. */
  readonly retriable: boolean;
  readonly refreshMetadata: boolean;
  /** Seconds to wait before the next try, if the server asks for a pause. */
  readonly pauseS: number;
}
export class BrokerError extends TidelogError {}
export class ProtocolError extends TidelogError {}
export class CorruptBatch extends TidelogError {}
/** A batch of the log that cannot be decoded, and its place. */
export class UnreadableBatch extends CorruptBatch {
  readonly topic: string;
  readonly partition: number;
  readonly baseOffset: number;
  readonly lastOffset: number;
  /** The offset at which reading goes on behind the batch. */
  readonly nextOffset: number;
  /** 0: the producer was not idempotent. */
  readonly producerId: number | bigint;
  /** Whether the CRC is wrong: another read may get a sound copy. Such a batch is never skipped. */
  readonly isDamaged: boolean;
}
export class Unreachable extends TidelogError {}
export class TimedOut extends TidelogError {}
export class Closed extends TidelogError {}
export class ConfigError extends TidelogError {}
export class DeliveryFailed extends TidelogError {
  /** Number of records. */
  readonly failed: number;
}

/** The meaning of each error code. */
export const CODES: Record<string, { text: string; retriable: boolean; refreshMetadata: boolean }>;

/** Return the partition of a key in a topic of so many partitions, as Kafka's clients do. */
export function partitionOf(key: Uint8Array, partitions: number): number;
