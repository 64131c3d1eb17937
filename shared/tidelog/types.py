"""The types of the protocol that every service and client shares.

The terms are those of ``docs/vocabulary.md``. An *offset* names a record, an *index* a Raft entry, a *position* a
byte. Every bound is half-open: an "end" is the next offset. *epoch* is the partition's version (+1 on every change of
leader, ISR or replica set). *leader epoch* changes only with the leader and is written into every batch. *broker
epoch* is one incarnation of one replica server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

NodeId = str
"""Name of a process of the cluster, unique in it: ``c1``, ``r2``, ``g1``."""

Buffer = bytes | bytearray | memoryview
Headers = Mapping[str, bytes] | Sequence[tuple[str, bytes]]
"""Headers of a record, as applications give them."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""Valid names of topics, except ``.`` and ``..``. No path is made from a name: folders use topic ids."""


INTERNAL_PREFIX = "__"
"""Prefix of the cluster's own topics. Clients may read them, and nothing else."""
AUDIT = "__audit"
"""The topic that records changes of the cluster, refusals, and failed authentications."""
TIMELINE = "__timeline"
"""The topic that records every event of the cluster (``tidelog.timeline``)."""
GROUPS = "__groups"
"""The topic that stores the consumer groups: their members, and their committed positions. A group belongs to one
partition of it, by murmur2 of its name; that partition's leader coordinates the group (``docs/groups.md``)."""

TRANSACTIONS = "__transactions"
"""The topic that stores the transactions. An application belongs to one partition of it, by murmur2 of its name; that
partition's leader coordinates its transactions (``docs/transactions.md``)."""

STREAMS = "__streams"
"""The topic that stores the streams. A stream belongs to one partition of it, by murmur2 of its path; that
partition's leader coordinates the stream (``docs/streams.md``)."""

MAX_TASKS = 100_000
"""Most tasks of one numbered batch of an application, and most producer ids per ``init_producer``."""

PRODUCER_WINDOW = 5
"""Batches that an idempotent producer may have in flight on one partition: as many as leaders remember."""
SHARE_IDS = 1 << 17
"""Number of consecutive producer ids in one share: at least ``MAX_TASKS``."""
SHARES = 256


def share_of(producer_id: int) -> int:
    """Return the number of the share that a producer id belongs to: 0 to ``SHARES`` - 1. The cluster gives all ids of
    one principal from one share, and partitions bound the producers that they remember by share."""
    return producer_id // SHARE_IDS % SHARES


T = TypeVar("T")


def later(default: T) -> T:
    """Declare a field of a metadata dataclass that was added after version 0.1, with this default.

    Metadata log and snapshots leave the field out while it has its default, so that an earlier release reads them
    until the cluster's feature level allows another value. The default never changes.
    """
    made: T = field(default=default, metadata={"later": True})
    return made


def later_fields(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass that were declared with ``later``: their defaults by name."""
    return {known.name: known.default for known in fields(kind) if known.metadata.get("later")}


YEAR_2025_MS = 1_735_689_600_000
"""Start, in ms since 1970, of counters that follow the clock so that no value is given twice."""
PRODUCER_IDS_END = 1 << 53
"""Bound of the producer ids that the cluster gives: every language represents smaller numbers exactly."""
REPORTED_IDS_END = 1 << 52
"""Of the producer ids in a log only those below are reported to the controller, so that a client that invents an id
cannot use up the range."""


_OWNER = "owner="


def staged_name(owner: str, name: str) -> str:
    """Return the name of a staged transaction that belongs to ``owner``, a text without a slash; ``name`` itself if
    the owner is "". Coordinators commit the staged transactions of an application for one owner only."""
    return f"{_OWNER}{owner}/{name}" if owner else name


def owner_of(staged: str) -> str:
    """Return the owner that the name of a staged transaction names (``staged_name``); "" if it names none."""
    first, slash, _ = staged.partition("/")
    return first.removeprefix(_OWNER) if slash and first.startswith(_OWNER) else ""


class TopicPartition(NamedTuple):
    """The identity of one partition for ever: a topic that is created again under the same name has another id."""

    topic_id: str
    partition: int


class Acks(IntEnum):
    """The moment at which a produced batch is acked. ``NONE``: at once, without waiting until it is durable;
    ``LEADER``: when it is durable on the leader; ``ALL``: when it is committed (see ``docs/architecture.md``)."""

    NONE = 0
    LEADER = 1
    ALL = 2


class Position(NamedTuple):
    """A position in a partition: the next offset, and the leader epoch of the record before it. ``leader_epoch`` is
    -1 if it is not known; then divergence is not detected (KIP-320)."""

    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic, held in the metadata. On the wire and on the command line they are texts. In requests
    durations, sizes and counts may have units, such as ``7d``, ``64MiB`` and ``10k``; answers have numbers."""

    commit_rule: str = "isr"
    """When a record is committed. ``isr``: durable on every in-sync replica; ``quorum``: durable on a majority of the
    replicas; ``leader``: durable on the leader."""
    min_insync_replicas: int = 1
    """While the ISR is smaller than this, ``all`` produces are refused and the HW does not move."""
    unclean_election: bool = False
    """Whether a replica that may lack committed records may lead if no other is left: records may be lost."""
    flush: str = "fsync"
    """``fsync``: durable before it counts; ``interval``: every ``flush_interval_ms``; ``os``: when the OS likes."""
    flush_interval_ms: int = 1000
    segment_max_bytes: int = 64 << 20
    segment_max_age_ms: int = 604_800_000
    """A segment is closed when its first record was appended this long ago."""
    max_batch_bytes: int = 1 << 20
    replica_max_lag_ms: int = 10_000
    """A follower not caught up for this long leaves the ISR."""
    replica_max_lag_records: int = 0
    """A follower further behind than this, though it could have fetched, leaves the ISR; 0: no bound."""
    cleanup: str = "delete"
    """What frees disk space: ``delete`` (retention), ``compact`` (the last record of each key stays), or
    ``compact,delete``."""
    retention_ms: int = -1
    """Closed segments whose newest record is older than this are deleted; -1: never."""
    retention_bytes: int = -1
    """The oldest closed segments are deleted while the rest holds at least as much; -1: no bound."""
    retention_records: int = -1
    """The oldest closed segments are deleted while the rest holds at least this many records; -1: no bound."""
    compaction_min_lag_ms: int = 0
    """Records younger than this are not compacted."""
    tombstone_retention_ms: int = 86_400_000
    """A record without a value is removed this long after its segment was first compacted. A consumer that is less
    far behind sees every deletion."""
    validate_batches: bool = later(True)
    """The gateway refuses a batch that readers could not decode, before it is acknowledged. Turned off, producers are
    trusted, and the gateway reads headers alone."""
    max_compaction_lag_ms: int = later(0)
    """A record is compacted away at most this long after a later record of its key was appended, plus two retention
    checks and the time of the pass (see ``docs/operations.md``). 0: no bound."""
    retention_waits_for: str = later("")
    """Consumer groups, separated by commas: retention deletes no segment with records that one of them has not read.
    "": retention waits for nobody."""
    retention_waits_max_ms: int = later(604_800_000)
    """Retention waits for groups at most until a segment was written this long, plus ``retention_ms``, ago; 0: no
    bound."""
    retention_waits_max_bytes: int = later(10 << 30)
    """Most bytes of a partition that are kept only because retention waits for groups; 0: no bound."""

    @property
    def awaited_groups(self) -> tuple[str, ...]:
        """Return the names of the consumer groups that retention waits for; an empty tuple if there are none."""
        return tuple(filter(None, self.retention_waits_for.split(",")))

    def texts(self) -> dict[str, str]:
        """Return every setting as text, by name, as on the wire."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition in the cluster's metadata. The controllers decide it, and servers and gateways follow
    it."""

    replicas: tuple[NodeId, ...]
    """In preferred order: the first is the preferred leader."""
    isr: tuple[NodeId, ...]
    leader: NodeId | None
    leader_epoch: int
    epoch: int
    elr: tuple[NodeId, ...] = ()
    """Eligible leader replicas (KIP-966). They left the ISR while it was below ``min_insync_replicas``, so they still
    hold everything committed."""
    learners: tuple[NodeId, ...] = ()
    """Servers that copy the log but are in neither ISR nor commit rule; never among ``replicas``."""
    last_leader: NodeId | None = None
    """The last leader, for an unclean election."""
    unclean_epoch: int = -1
    """Leader epoch that the last unclean election began; -1: there was none. A replica whose log has no epoch from
    there on may have to cut committed records."""
    sealing: bool = False
    """With commit rule ``quorum``: the old epoch is being sealed, and every replica reports how far its log
    reaches."""
    successor: NodeId | None = None
    """The member of the ISR to which leadership is being transferred. The leader takes no more batches, and hands
    over when the successor has everything, or until the transfer is withdrawn in a newer epoch."""
    target: tuple[NodeId, ...] = ()
    """The future replicas of a reassignment in progress, in preferred order. Learners among them join the replicas as
    soon as they have caught up."""
    origin: tuple[NodeId, ...] = ()
    """The replicas when the reassignment began, to which it can be cancelled."""
    departed: tuple[NodeId, ...] = ()
    """Servers that stopped having a copy in this leader epoch. Such a server comes back only in a new leader epoch,
    because its earlier reports to the leader are no longer true."""
    read_only: bool = False
    """The leader takes no batches; reads and copying go on."""
    paused: bool = False
    """Whether the partition is paused: no server opens its log except to seal it, and nothing is written, read or
    copied. It is led again in a new leader epoch."""

    doubtful: tuple[NodeId, ...] = later(())
    """Members of ISR or ELR whose copies have a doubtful tail. They count as away until that is settled."""

    @property
    def rests(self) -> bool:
        """Return whether no replica has anything to do: the partition is paused and is not being sealed."""
        return self.paused and not self.sealing


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic in the cluster's metadata, with its partitions."""

    topic_id: str
    name: str
    config: TopicConfig = field(default_factory=TopicConfig)
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a replica server in the cluster's metadata: its address, its incarnation, and whether it may
    lead."""

    node: NodeId
    url: str
    broker_epoch: int
    fenced: bool
    """Whether the server is fenced: it leads nothing and joins no ISR, because it has not registered yet or its
    session ended."""
    life: str = ""
    """Name of this incarnation in the data directory. A directory that was wiped or restored has another one."""
    rack: str = ""
    """Failure domain: servers that fail together have the same rack; "": a rack of its own."""
    draining: bool = False
    """Whether the server is being drained: it leads nothing that another server can lead, and gets no new
    replicas."""


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token as the cluster knows it (``tidelog.acl``). Times are wall clocks in ms; ``expires_ms`` -1:
    never."""

    token_id: str
    principal: str
    digest: str = field(repr=False)
    created_ms: int = 0
    expires_ms: int = -1

    def is_expired(self, wall_ms: int) -> bool:
        """Return whether the token has expired at ``wall_ms``, milliseconds of the wall clock."""
        return 0 <= self.expires_ms <= wall_ms


@dataclass(frozen=True, slots=True)
class Acl:
    """A rule that lets a principal do an operation on a resource, or denies it (``tidelog.acl``)."""

    principal: str
    operation: str
    resource: str
    deny: bool = False

    def __str__(self) -> str:
        return f"{'deny' if self.deny else 'allow'} {self.principal} {self.operation} {self.resource}"


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a principal at each gateway, over all its connections; -1: no limit."""

    principal: str
    bytes_in_s: int = -1
    """Bytes of records per second that it may produce."""
    bytes_out_s: int = -1
    """Bytes of records per second that it may consume."""
    requests_s: int = -1
    """Messages per second."""
    connections: int = -1

    @property
    def is_none(self) -> bool:
        """Return whether the quota limits nothing."""
        return max(self.bytes_in_s, self.bytes_out_s, self.requests_s, self.connections) < 0


@dataclass(frozen=True, slots=True)
class Access:
    """The access control of the cluster: tokens, access rules and quotas, each in the order of creation."""

    tokens: tuple[Token, ...] = ()
    acls: tuple[Acl, ...] = ()
    quotas: tuple[Quota, ...] = ()
    heirs: tuple[str, ...] = later(())
    """Principals, as rules name them, whose right to administer the cluster is older than the operation ``security``
    and includes it (``tidelog.acl``). Feature level ``SECURITY``."""


@dataclass(frozen=True, slots=True)
class TicketKey:
    """A key that signs tickets for producer ids (``tidelog.tickets``)."""

    key_id: int
    """Index of the entry of the metadata log that made the key, so a later key has a greater id."""
    secret: str = field(repr=False)
    """256 random bits, as 64 hexadecimal digits. Only controllers and gateways know it."""


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """The principal that created a topic, for the bounds per principal (``tidelog.principal_bounds``)."""

    topic_id: str
    principal: str


def changed_partitions(before: TopicState | None, after: TopicState) -> Iterator[int]:
    """Yield, in ascending order, the numbers of the partitions of ``after`` that are new or differ from those of
    ``before`` (None: all are new). Halving the difference keeps the cost of one change among many low, whatever the
    topic's size."""
    known = () if before is None else before.partitions[: len(after.partitions)]
    yield from _differing(known, after.partitions[: len(known)], 0)
    yield from range(len(known), len(after.partitions))


def _differing(before: Sequence[object], after: Sequence[object], first: int) -> Iterator[int]:
    """Yield the indexes, from ``first`` on, at which two sequences of equal length differ."""
    if before == after:
        return
    if len(after) == 1:
        yield first
        return
    middle = len(after) // 2
    yield from _differing(before[:middle], after[:middle], first)
    yield from _differing(before[middle:], after[middle:], first + middle)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole metadata after the Raft entry with index ``index``, as replica servers and gateways receive it."""

    index: int = 0
    cluster: str = ""
    servers: tuple[ServerState, ...] = ()
    topics: tuple[TopicState, ...] = ()
    access: Access = field(default_factory=Access)
    level: int = 1
    """Feature level (``tidelog.feature_levels``)."""
    ticket_keys: tuple[TicketKey, ...] = ()
    """The keys of producer tickets, oldest first. The controllers send them to gateways only; a replica server has
    none."""
