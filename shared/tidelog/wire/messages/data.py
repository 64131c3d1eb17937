"""Producing and reading, client to gateway and gateway to replica server; and what a server says of its copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import ABSENT, Done, ErrorInfo, Message, Payload


@dataclass(frozen=True, slots=True)
class ProducePart:
    """Part: one batch. ``id`` is chosen by the sender, unique on its connection, and named by the ack."""

    id: int
    topic_id: str
    partition: int
    acks: int
    timeout_ms: int = field(metadata={ABSENT: -1})
    """How long the sender waits for the ack; 0: not at all. Absent or -1: for the gateway's ``ack_timeout_s``, which
    is 5 s unless set."""
    size: int
    leader_epoch: int = -1
    """-1 from a client; the gateway sets what it knows, and a leader of another epoch refuses."""
    expected_offset: int = -1
    """Not -1: append only if the log ends exactly here (``UNEXPECTED_OFFSET`` otherwise)."""
    transaction: str = ""
    """A batch of a transaction: the name of its application. Only with acks all."""


@dataclass(frozen=True, slots=True)
class Produce(Message):
    """One-way: batches, each acked by its own id in a later ``Produced``. Batches of one partition are appended
    and acked in the order in which they were sent."""

    OP: ClassVar[str] = "produce"
    parts: tuple[ProducePart, ...]
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ProduceAck:
    """Part: the fate of one batch. ``offset`` is the batch's base offset."""

    id: int
    offset: int = -1
    leader_epoch: int = -1
    durability: str = ""
    """What was reached: ``received``, ``leader`` or ``all``, then ``/`` and the flush policy: ``all/fsync``."""
    duplicate: bool = False
    """The batch had been written by an earlier try; ``offset`` is that one's."""
    error: ErrorInfo | None = None
    throttle_ms: int = 0
    """Of gateways to clients: for how long nothing more should be sent for this partition, since its leader is slow
    and the principal has used up its share. Batches that are sent in spite of that wait at the gateway."""


@dataclass(frozen=True, slots=True)
class Produced(Message):
    """One-way: acks, as many as are ready."""

    OP: ClassVar[str] = "produced"
    acks: tuple[ProduceAck, ...]


@dataclass(frozen=True, slots=True)
class ReadAnswer(Message):
    """Answer: whole batches that hold ``offset`` and what follows, below the HW. Empty when ``max_wait_ms`` passed
    without news. The first batch may begin before ``offset``: the reader skips."""

    leader_epoch: int
    high_watermark: int = -1
    """-1: a new leader does not know it yet; the payload is committed all the same. So it never goes back."""
    log_start: int = 0
    payload: Payload = b""
    compacted_to: int = 0
    """How far the log was compacted when this was read, for a replica that fills a hole: below it every record is
    gone that a later one below it replaces or deletes."""
    tombstones_to: int = 0
    """Below it tombstones may be gone, too."""
    needed: int = 0
    """Bytes of the first batch, where that is more than the ``hard_limit`` of the read allows."""


@dataclass(frozen=True, slots=True)
class Read(Message):
    """Read committed batches from a position (KIP-320: ``last_epoch`` is the epoch of the record before it).

    ``consistency``: ``eventual``: what is known to be committed; ``bounded``: everything committed until
    ``max_staleness_ms`` ago, or ``STALE_REPLICA``; ``linearizable``: everything committed before the request came;
    only a leader can tell. With ``any_replica`` a follower or learner may answer."""

    OP: ClassVar[str] = "read"
    ANSWER: ClassVar[type[Message]] = ReadAnswer
    topic_id: str
    partition: int
    offset: int
    last_epoch: int = -1
    leader_epoch: int = -1
    max_bytes: int = 1 << 20
    max_wait_ms: int = 0
    consistency: str = "eventual"
    max_staleness_ms: int = -1
    any_replica: bool = False
    isolation: str = "committed"
    """``committed``: below the last stable offset, and of an aborted transaction there is nothing but the offsets;
    ``uncommitted``: everything below the HW."""
    hard_limit: bool = False
    """The answer never has more than ``max_bytes``: it is empty where the first batch is larger. Otherwise a batch
    comes in any case. For gateways; a gateway ignores what its client says here."""


@dataclass(frozen=True, slots=True)
class StableOffset:
    """Part: the last stable offset of a partition, where it is below the HW: readers of what is committed wait there
    for a transaction."""

    offset: int
    producer_id: int
    """Of the transaction that begins there."""
    producer_epoch: int
    """-1: the marker of the transaction is in the leader's log, and not committed yet."""
    age_ms: int
    """For so long the leader has seen the last stable offset there. It counts anew in each leader epoch."""


@dataclass(frozen=True, slots=True)
class OffsetAnswer(Message):
    """Answer: an offset, and the epoch and timestamp (-1: none) of the record there or before it. ``stable``: told
    with the HW (``latest``, ``uncommitted``), where the last stable offset is below it."""

    offset: int
    leader_epoch: int = -1
    timestamp_ms: int = -1
    stable: StableOffset | None = None
    bytes: int = -1
    """Size of the log on the disk of the server that answers, without indexes; told with ``earliest``."""


@dataclass(frozen=True, slots=True)
class ListOffset(Message):
    """``at``: ``earliest`` (log start), ``latest`` (HW), ``timestamp`` (first record at or after ``timestamp_ms``,
    which has to be given; HW if there is none). A replica server answers a timestamp with the beginning of the first
    batch that has such a record; a gateway finds the record in it. The HW is told when the leader has proved that it
    still leads."""

    OP: ClassVar[str] = "list_offset"
    ANSWER: ClassVar[type[Message]] = OffsetAnswer
    topic_id: str
    partition: int
    at: str
    timestamp_ms: int = -1
    leader_epoch: int = -1
    isolation: str = "committed"
    """With ``committed`` the last stable offset takes the place of the HW."""


@dataclass(frozen=True, slots=True)
class DigestEntry:
    """Part: the hash chain of one log up to the last end of a batch at or below the ``offset`` asked."""

    offset: int
    boundary: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Part: a leader epoch, and the offset at which it begins in a log."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class DigestAnswer(Message):
    """Answer: this replica's log. Below ``comparable_from`` it was compacted: replicas may differ there. Everything
    below ``durable`` is on its stable storage, as the topic's flush policy has it. ``epochs``: the last 64.
    ``role_epoch``: the leader epoch in which this replica leads, or follows with a log that is known to agree with
    the leader's up to the high watermark; -1: there is none."""

    log_start: int
    log_end: int
    high_watermark: int
    leader_epoch: int = -1
    comparable_from: int = 0
    entries: tuple[DigestEntry, ...] = ()
    durable: int = -1
    epochs: tuple[EpochStart, ...] = ()
    role_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Digest(Message):
    """Hash chain of the log of replica server ``node`` at each of ``offsets``."""

    OP: ClassVar[str] = "digest"
    ANSWER: ClassVar[type[Message]] = DigestAnswer
    node: str
    topic_id: str
    partition: int
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyRead(Message):
    """Answer: batches of this replica's log, as they are on its disk. ``next_offset``: where to go on; the offset of
    the request if nothing is synced there, or the log changed while it was read. ``bytes``: the size of the batches.
    The payload holds the fingerprint of each batch (``tidelog.batch.fingerprints``)."""

    log_start: int
    high_watermark: int
    next_offset: int
    bytes: int
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadCopy(Message):
    """Have replica server ``node`` read batches of its copy from its disk, checking each, from ``offset`` on and
    below its high watermark: about ``max_bytes`` (1 MiB at most), and a batch at least, if there is one."""

    OP: ClassVar[str] = "read_copy"
    ANSWER: ClassVar[type[Message]] = CopyRead
    node: str
    topic_id: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class ScrubStatus(Message):
    """Answer: how far the scrubber of a replica server is. ``round``: the number of the round that began last, 0 for
    none; ``running``: it has not ended, or copies are still compared with those of other servers; ``left``:
    partitions that are still to be checked; ``segments`` and ``bytes``: checked in it so far."""

    round: int
    running: bool
    left: int = 0
    segments: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScrubServer(Message):
    """How far the scrubber of replica server ``node`` is. With ``begin`` it first starts a new round, and gives up
    one that is under way."""

    OP: ClassVar[str] = "scrub_server"
    ANSWER: ClassVar[type[Message]] = ScrubStatus
    node: str
    begin: bool = False


@dataclass(frozen=True, slots=True)
class DifferingCopies:
    """Part: copies of a partition that differ. ``odd``: those that differ from a majority of the replicas; empty if
    no majority agrees. ``compared``: all that were compared. ``start`` to ``end``: the offsets between which the
    first difference lies. ``below``: it lies below ``start``, the log start of some replica, and no server repairs it
    by itself."""

    topic_id: str
    partition: int
    odd: tuple[str, ...]
    compared: tuple[str, ...]
    start: int
    end: int
    below: bool = False


@dataclass(frozen=True, slots=True)
class UnreadablePlace:
    """Part: a batch in a log that no reader can decode, though its CRC is right. ``producer_id`` is at most
    2^63 - 1, whatever the batch says."""

    topic_id: str
    partition: int
    base_offset: int
    last_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class MetricsAnswer(Message):
    """Answer: a server's metrics in Prometheus' text format (docs/metrics.md), its version, its wall clock (ms).
    ``unreadable``: of a replica server, where its scrubber saw batches that no reader can decode; the first few of
    each partition. ``differing``: partitions whose copies differ, with a copy on this server."""

    page: str
    version: str = ""
    time_ms: int = -1
    unreadable: tuple[UnreadablePlace, ...] = ()
    differing: tuple[DifferingCopies, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeMetrics(Message):
    """What the replica server ``node`` counts, or the active controller of that name; "": who is asked."""

    OP: ClassVar[str] = "describe_metrics"
    ANSWER: ClassVar[type[Message]] = MetricsAnswer
    node: str = ""


@dataclass(frozen=True, slots=True)
class ProducerId(Message):
    """Answer: the ids ``producer_id`` to ``producer_id + count - 1`` are the asker's alone, at epoch 0. An older
    gateway gives one id, whatever is asked for."""

    producer_id: int
    count: int = 1
    ticket: str = field(default="", repr=False)
    """Shows that the asker may write under each of these ids; to be presented with ``UseProducer``. "": the cluster
    is below feature level 4, and needs none."""
    window: int = 0
    """Batches that may be in flight under an id on one partition; one more is refused with ``OVERLOADED``. 0: a
    gateway of an earlier release, which means ``PRODUCER_WINDOW``."""


@dataclass(frozen=True, slots=True)
class ProducerTicket(Message):
    """Answer: a ticket for the same ids, signed by the cluster's newest key. It takes the place of the one that was
    presented, and is valid for longer. "": the gateway needs none."""

    ticket: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class UseProducer(Message):
    """Present the ticket of a producer id. For the life of this connection, or until ``ReleaseProducer``, batches may
    be written under the id at that epoch. Produces that follow on the same connection need not wait for the answer.
    Raises ``INVALID_TICKET``, ``UNKNOWN_TICKET_KEY`` and ``OVERLOADED`` (too many ids on one connection)."""

    OP: ClassVar[str] = "use_producer"
    ANSWER: ClassVar[type[Message]] = ProducerTicket
    producer_id: int
    producer_epoch: int
    ticket: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReleaseProducer(Message):
    """Nothing more is written under this id on this connection. It makes room for another id."""

    OP: ClassVar[str] = "release_producer"
    ANSWER: ClassVar[type[Message]] = Done
    producer_id: int


@dataclass(frozen=True, slots=True)
class InitProducer(Message):
    """A producer wants to be idempotent; or a program with many producers wants ``count`` ids (1 to
    ``MAX_TASKS``)."""

    OP: ClassVar[str] = "init_producer"
    ANSWER: ClassVar[type[Message]] = ProducerId
    count: int = 1


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Push batches from a position, as long as there is credit (bytes). ``sub`` is the client's number for it."""

    OP: ClassVar[str] = "subscribe"
    ANSWER: ClassVar[type[Message]] = Done
    sub: int
    topic_id: str
    partition: int
    offset: int
    credit: int
    last_epoch: int = -1
    read_from: str = "leader"
    """``leader``, or ``any`` replica that the gateway thinks is best."""
    consistency: str = "eventual"
    max_staleness_ms: int = -1
    isolation: str = "committed"


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """One-way: the client has room for so many more bytes."""

    OP: ClassVar[str] = "credit"
    sub: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Unsubscribe(Message):
    """Nothing is delivered on ``sub`` after the answer."""

    OP: ClassVar[str] = "unsubscribe"
    ANSWER: ClassVar[type[Message]] = Done
    sub: int


@dataclass(frozen=True, slots=True)
class Delivery(Message):
    """One-way: whole batches on a subscription; the first may begin before the position. With ``error`` it is the
    subscription's last message."""

    OP: ClassVar[str] = "delivery"
    sub: int
    high_watermark: int = -1
    error: ErrorInfo | None = None
    payload: Payload = b""
