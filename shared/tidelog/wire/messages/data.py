"""Producing and reading (client to gateway, and gateway to replica server); and requests that inspect a server's
copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import ABSENT, Done, ErrorInfo, Message, Payload, StableOffset


@dataclass(frozen=True, slots=True)
class ProducePart:
    """Part of ``Produce``: one batch, with its partition and how it is to be appended and acked."""

    id: int
    """Number that the sender chooses, unique on its connection. The ack of the batch repeats it."""
    topic_id: str
    partition: int
    acks: int
    """When the batch is acked. 0: at once (``received``). 1: when it is durable on the leader. 2: when it is
    committed (all)."""
    timeout_ms: int = field(metadata={ABSENT: -1})
    """How long the sender waits for the ack, in milliseconds; 0: not at all. Absent or -1: the gateway's
    ``ack_timeout_s``, which is 5 s by default."""
    size: int
    """Bytes of this batch in the payload."""
    leader_epoch: int = -1
    """Leader epoch of the partition as the gateway knows it. A leader of another epoch refuses the batch. Clients
    leave it at -1."""
    expected_offset: int = -1
    """Append the batch only if the log ends exactly at this offset; otherwise refuse it with ``UNEXPECTED_OFFSET``.
    -1: append it anywhere."""
    transaction: str = ""
    """Transactional id (``app``) of the transaction that the batch belongs to, which requires acks 2 (all). "": the
    batch belongs to none."""


@dataclass(frozen=True, slots=True)
class Produce(Message):
    """One-way message of a client to a gateway, and of a gateway to a leader: append batches. Each batch is acked or
    refused in a later ``Produced``, by its ``id``. Batches of one partition are appended and acked in the order in
    which they were sent. The payload has the batches, in the order of the parts."""

    OP: ClassVar[str] = "produce"
    parts: tuple[ProducePart, ...]
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ProduceAck:
    """Part of ``Produced``: the outcome of one batch, which is its offset or an error."""

    id: int
    """The ``id`` of the batch in its ``ProducePart``."""
    offset: int = -1
    """Base offset of the batch, which is the offset of its first record; -1 with an error."""
    leader_epoch: int = -1
    """Leader epoch in which the batch was appended; -1 with an error."""
    durability: str = ""
    """Durability that the batch has reached: ``received``, ``leader`` or ``all``, then ``/`` and the topic's flush
    policy, for example ``all/fsync``."""
    duplicate: bool = False
    """Whether an earlier attempt has already written the batch. ``offset`` is then the offset of that attempt."""
    error: ErrorInfo | None = None
    """Why the batch was not acked; None if it was."""
    throttle_ms: int = 0
    """From gateways to clients: send no more batches for this partition for so many milliseconds. Its leader is slow
    and the principal has used up its share. The gateway holds back batches that arrive in spite of that."""


@dataclass(frozen=True, slots=True)
class Produced(Message):
    """One-way message of a leader to a gateway, and of a gateway to its client: the outcomes of batches of earlier
    ``Produce`` messages, as many as are known now."""

    OP: ClassVar[str] = "produced"
    acks: tuple[ProduceAck, ...]


@dataclass(frozen=True, slots=True)
class ReadAnswer(Message):
    """Answer to ``Read``: whole batches below the high watermark, from the one that has ``offset`` on. The payload is
    empty if ``max_wait_ms`` passed without new records. The first batch may begin before ``offset``; the reader skips
    the records before it."""

    leader_epoch: int
    """Leader epoch of the partition at the server that answers."""
    high_watermark: int = -1
    """The high watermark. -1: a new leader does not know it yet, but the payload is committed all the same. So the
    high watermark of a reader never goes back."""
    log_start: int = 0
    """First offset that the log still has."""
    payload: Payload = b""
    compacted_to: int = 0
    """For a replica that repairs a gap in its log: the offset up to which the log was compacted when this was read.
    Below it, a record is gone if a later record below it replaces or deletes it."""
    tombstones_to: int = 0
    """For a replica that repairs a gap in its log: tombstones below this offset may be gone, too."""
    needed: int = 0
    """Bytes of the first batch, if ``hard_limit`` kept it out of the answer; otherwise 0."""


@dataclass(frozen=True, slots=True)
class Read(Message):
    """Request of a client to a gateway, and of a gateway to a replica server: read committed batches of a partition
    from a position on. As in KIP-320, a position is an offset and the leader epoch of the record before it. Replica
    servers send it to each other to repair a log."""

    OP: ClassVar[str] = "read"
    ANSWER: ClassVar[type[Message]] = ReadAnswer
    topic_id: str
    partition: int
    offset: int
    """Offset of the first record wanted."""
    last_epoch: int = -1
    """Leader epoch of the record before ``offset``; -1: not known. If the log has another record there, the read is
    refused with ``LOG_TRUNCATED``."""
    leader_epoch: int = -1
    """Leader epoch of the partition as the sender knows it; -1: not known."""
    max_bytes: int = 1 << 20
    """About how many bytes of batches the answer may have. It has one batch in any case, unless ``hard_limit`` is
    set."""
    max_wait_ms: int = 0
    """How long to wait at the end of the log for new records, in milliseconds, 30 s at most. The answer may come
    earlier, for example when the leader changes."""
    consistency: str = "eventual"
    """What the answer must not miss. ``eventual``: nothing is promised beyond what the server knows to be committed.
    ``bounded``: everything that was committed until ``max_staleness_ms`` ago is there, or the read is refused with
    ``STALE_REPLICA``. ``linearizable``: everything that was committed before the request came is there; only a leader
    can promise that."""
    max_staleness_ms: int = -1
    """Bound for ``bounded``, in milliseconds; -1 otherwise."""
    any_replica: bool = False
    """A follower or learner may answer, too (KIP-392)."""
    isolation: str = "committed"
    """``committed``: read below the last stable offset; of an aborted transaction only the offsets remain.
    ``uncommitted``: read everything below the high watermark."""
    hard_limit: bool = False
    """Never answer more than ``max_bytes``: the answer is empty if the first batch is larger. Without it an answer
    has one batch in any case. Gateways set it; a gateway ignores the value that its client sent."""


@dataclass(frozen=True, slots=True)
class OffsetAnswer(Message):
    """Answer to ``ListOffset``: the offset, the leader epoch of the record before it, and for a time the timestamp of
    the record at it."""

    offset: int
    """The offset that was looked up."""
    leader_epoch: int = -1
    """Leader epoch of the record before that offset; -1: none is known."""
    timestamp_ms: int = -1
    """For a time: the timestamp of the record at that offset, in milliseconds; -1: there is none."""
    stable: StableOffset | None = None
    """The last stable offset, if it is below the high watermark. Present only if the answer is the high watermark
    (``latest`` with ``uncommitted``)."""
    bytes: int = -1
    """Size of the log on the disk of the server that answers, without indexes. Present only with ``earliest``;
    otherwise -1."""


@dataclass(frozen=True, slots=True)
class ListOffset(Message):
    """Request of a client to a gateway, and of any service to a replica server: look up the log start, the end of
    what can be read, or the offset of a time. A leader answers that end only after it has proved that it still
    leads."""

    OP: ClassVar[str] = "list_offset"
    ANSWER: ClassVar[type[Message]] = OffsetAnswer
    topic_id: str
    partition: int
    at: str
    """``earliest``: the log start. ``latest``: the last stable offset, or the high watermark with ``isolation``
    ``uncommitted``. ``timestamp``: the first record at or after ``timestamp_ms``, or as ``latest`` if there is none.
    For a timestamp a replica server answers the beginning of the first batch that has such a record; a gateway then
    finds the record in the batch."""
    timestamp_ms: int = -1
    """Time to look up, in milliseconds; required with ``timestamp``, otherwise -1."""
    leader_epoch: int = -1
    """Leader epoch of the partition as the sender knows it; -1: not known."""
    isolation: str = "committed"
    """How far records count, for ``latest`` and for a time. ``committed``: up to the last stable offset.
    ``uncommitted``: up to the high watermark."""


@dataclass(frozen=True, slots=True)
class DigestEntry:
    """Part of ``DigestAnswer``: the hash chain of the log up to the last end of a batch at or below one of the
    offsets that were asked for."""

    offset: int
    """The offset asked for."""
    boundary: int
    """The last end of a batch at or below ``offset``."""
    chain: bytes
    """Hash chain of the log up to ``boundary``."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Part of ``DigestAnswer``: a leader epoch, and the offset at which it begins in the log."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class DigestAnswer(Message):
    """Answer to ``Digest``: bounds and leader epochs of one replica's log, and its hash chain at the offsets that
    were asked for. Two replicas with the same chain at an offset have the same log up to there."""

    log_start: int
    """First offset that the log still has."""
    log_end: int
    """The log end offset (LEO)."""
    high_watermark: int
    """The high watermark as this replica knows it."""
    leader_epoch: int = -1
    """Latest leader epoch in the log; -1: none."""
    comparable_from: int = 0
    """The log was compacted below this offset, so replicas may differ there."""
    entries: tuple[DigestEntry, ...] = ()
    """Hash chain at each offset asked for."""
    durable: int = -1
    """Everything below this offset is on stable storage, under the topic's flush policy; -1: not known."""
    epochs: tuple[EpochStart, ...] = ()
    """Starts of the last 64 leader epochs of the log."""
    role_epoch: int = -1
    """Leader epoch in which this replica leads, or follows with a log that is known to agree with the leader's up to
    the high watermark; -1: there is none."""


@dataclass(frozen=True, slots=True)
class Digest(Message):
    """Request of a client through its gateway, or of a replica server, to the replica server ``node``: describe its
    log of a partition, with the hash chain at each of ``offsets``. The sender compares the answers of several
    replicas."""

    OP: ClassVar[str] = "digest"
    ANSWER: ClassVar[type[Message]] = DigestAnswer
    node: str
    topic_id: str
    partition: int
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyRead(Message):
    """Answer to ``ReadCopy``: the payload has a fingerprint of each batch that was read
    (``tidelog.batch.fingerprints``), and ``next_offset`` is where to go on. The payload is empty if nothing that is
    synced begins at the offset."""

    log_start: int
    """First offset that the log still has."""
    high_watermark: int
    """The high watermark as this replica knows it."""
    next_offset: int
    """Offset at which to go on. It is the offset of the request if nothing is synced there, or if the log changed
    during the read."""
    bytes: int
    """Size of the batches that were read."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadCopy(Message):
    """Request of a client through its gateway to the replica server ``node``: read batches of its log from the disk,
    from ``offset`` up to the replica's high watermark, and check each of them. The client compares the fingerprints
    of several replicas. A damaged batch is answered with an error, and the server repairs its log."""

    OP: ClassVar[str] = "read_copy"
    ANSWER: ClassVar[type[Message]] = CopyRead
    node: str
    topic_id: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20
    """About how many bytes to read, 1 MiB at most. One batch is read in any case, if there is one."""


@dataclass(frozen=True, slots=True)
class ScrubStatus(Message):
    """Answer to ``ScrubServer``: how far the scrubber of a replica server, which reads synced data again to find
    damage, has come in its present or last round."""

    round: int
    """Number of the round that began last; 0: none has begun."""
    running: bool
    """The round has not ended, or copies are still compared with those of other servers."""
    left: int = 0
    """Partitions of the round that are still to be checked."""
    segments: int = 0
    """Segments that the round has checked until now."""
    bytes: int = 0
    """Bytes that the round has checked until now."""


@dataclass(frozen=True, slots=True)
class ScrubServer(Message):
    """Request of a client through its gateway to the replica server ``node``: report the progress of its scrubber.
    With ``begin`` the scrubber begins a new round first."""

    OP: ClassVar[str] = "scrub_server"
    ANSWER: ClassVar[type[Message]] = ScrubStatus
    node: str
    begin: bool = False
    """Start a new round first, and give up a round that is under way."""


@dataclass(frozen=True, slots=True)
class DifferingCopies:
    """Part of ``MetricsAnswer``: a partition whose replicas differ, with the servers concerned and the offsets
    between which the logs begin to differ."""

    topic_id: str
    partition: int
    odd: tuple[str, ...]
    """Servers whose replicas differ from a majority of the replicas; empty if no majority agrees."""
    compared: tuple[str, ...]
    """All servers whose replicas were compared."""
    start: int
    """The first difference lies between this offset and ``end``, unless ``below`` is set."""
    end: int
    """Upper end of the offsets between which the first difference lies."""
    below: bool = False
    """The first difference lies below ``start``, which is the log start of some replica. No server repairs it by
    itself."""


@dataclass(frozen=True, slots=True)
class UnreadablePlace:
    """Part of ``MetricsAnswer``: a batch in a log that no reader can decode although its CRC is right, so that
    readers stop there."""

    topic_id: str
    partition: int
    base_offset: int
    last_offset: int
    producer_id: int
    """Producer id of the batch. It is at most 2^63 - 1, even if the batch has a larger one."""


@dataclass(frozen=True, slots=True)
class RefusedClient:
    """Part of ``MetricsAnswer``, from a gateway: a client whose connections it has refused lately, and why."""

    cause: str
    """``gateway_full``, ``address_full``, ``principal_full``, ``ending``, ``malformed``, ``unauthenticated``,
    ``token_revoked``, ``token_expired`` or ``token_unknown``."""
    address: str
    """Address from which it came, without the port."""
    name: str = ""
    """Name that the client gave itself."""
    principal: str = ""
    """Principal of the token that it showed; "": not known."""
    token: str = ""
    """Id of that token; "": not known."""
    times: int = 1
    """How often it was refused."""
    first_ms: int = -1
    """Wall clock of the gateway at the first of these refusals, in milliseconds."""
    last_ms: int = -1
    """Wall clock of the gateway at the last of them, in milliseconds."""


@dataclass(frozen=True, slots=True)
class MetricsAnswer(Message):
    """Answer to ``DescribeMetrics``: the metrics of one process as a page of text, with its release and clock. A
    replica server adds what its scrubber has found: batches that no reader can decode, and partitions whose replicas
    differ. A gateway adds the clients that it has refused lately."""

    page: str
    """The metrics in Prometheus' text format (``docs/metrics.md``)."""
    version: str = ""
    """Release that the process runs; "": not known."""
    time_ms: int = -1
    """Wall clock of the process, in milliseconds; -1: not known."""
    unreadable: tuple[UnreadablePlace, ...] = ()
    """From a replica server: batches in its logs that no reader can decode, as its scrubber found them. Only the
    first few of each partition are listed."""
    differing: tuple[DifferingCopies, ...] = ()
    """From a replica server: partitions whose replicas differ and of which this server has a replica."""
    refused: tuple[RefusedClient, ...] = ()
    """From a gateway: the clients whose connections it has refused within the last minute."""
    recent: str = ""
    """From a replica server or a gateway, in the format of ``page``: what the metrics that ``tidelog why slow`` reads
    have counted in the last ``recent_ms`` milliseconds."""
    recent_ms: int = -1
    """Milliseconds that ``recent`` covers: 5,000 to 10,000, or less in the first seconds of a process. -1: the
    process does not keep that, as those of earlier releases and controllers."""


@dataclass(frozen=True, slots=True)
class DescribeMetrics(Message):
    """Request of a client to its gateway, which passes it on unless it is meant for itself: report the metrics of the
    gateway, of a replica server or of the active controller."""

    OP: ClassVar[str] = "describe_metrics"
    ANSWER: ClassVar[type[Message]] = MetricsAnswer
    node: str = ""
    """Name of the replica server or of the active controller; "": the receiver itself."""


@dataclass(frozen=True, slots=True)
class ProducerId(Message):
    """Answer to ``InitProducer``, from a gateway: producer ids that no other producer has, at producer epoch 0. They
    are ``producer_id`` to ``producer_id + count - 1``."""

    producer_id: int
    """The first id."""
    count: int = 1
    """How many ids there are. An older gateway gives one id, whatever ``count`` was asked for."""
    ticket: str = field(default="", repr=False)
    """Proves that its holder may write under each of these ids; present it with ``UseProducer``. "": the cluster is
    below feature level 4 and requires no tickets."""
    window: int = 0
    """How many batches of one partition may be in flight under an id; one more is refused with ``OVERLOADED``. 0: the
    gateway is of an earlier release, and the window is ``PRODUCER_WINDOW`` (5)."""


@dataclass(frozen=True, slots=True)
class ProducerTicket(Message):
    """Answer to ``UseProducer``, from a gateway: the producer id may be used on this connection. It brings a renewed
    ticket for the id."""

    ticket: str = field(default="", repr=False)
    """Ticket that is signed by the cluster's newest key. It takes the place of the ticket that was presented, and is
    valid for longer. "": the gateway requires no tickets."""


@dataclass(frozen=True, slots=True)
class UseProducer(Message):
    """Request of a client to a gateway: present the ticket of a producer id. From then on the client may write
    batches under the id, at that producer epoch, on this connection, until it closes or ``ReleaseProducer``. Batches
    that follow need not wait for the answer. Errors: ``INVALID_TICKET``, ``UNKNOWN_TICKET_KEY``, and ``OVERLOADED``
    (too many ids on one connection)."""

    OP: ClassVar[str] = "use_producer"
    ANSWER: ClassVar[type[Message]] = ProducerTicket
    producer_id: int
    producer_epoch: int
    ticket: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReleaseProducer(Message):
    """Request of a client to a gateway: give up the right to write under a producer id on this connection, so that
    another id may take its place."""

    OP: ClassVar[str] = "release_producer"
    ANSWER: ClassVar[type[Message]] = Done
    producer_id: int


@dataclass(frozen=True, slots=True)
class InitProducer(Message):
    """Request of a client to a gateway: get ``count`` new producer ids for idempotent producers."""

    OP: ClassVar[str] = "init_producer"
    ANSWER: ClassVar[type[Message]] = ProducerId
    count: int = 1
    """How many ids, from 1 to ``MAX_TASKS`` (100,000). A program with many producers gets their ids with one
    request."""


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Request of a client to a gateway: subscribe to a partition. From then on the gateway sends committed batches,
    from a position on, as ``Delivery``, as long as the subscription has credit. The answer comes before the first
    delivery."""

    OP: ClassVar[str] = "subscribe"
    ANSWER: ClassVar[type[Message]] = Done
    sub: int
    """Number that the client chooses for the subscription, unique on its connection."""
    topic_id: str
    partition: int
    offset: int
    """Offset of the first record wanted."""
    credit: int
    """Bytes of payload that may be delivered before the client sends more ``Credit``. More than the
    limit ``credit_bytes``, 8 MiB, is not kept."""
    last_epoch: int = -1
    """Leader epoch of the record before ``offset`` (KIP-320); -1: not known."""
    read_from: str = "leader"
    """``leader``; or ``any``: the replica that the gateway thinks is best."""
    consistency: str = "eventual"
    """``eventual``, ``bounded`` or ``linearizable``, as in ``Read``."""
    max_staleness_ms: int = -1
    """Bound for ``bounded``, in milliseconds; -1 otherwise."""
    isolation: str = "committed"
    """``committed`` or ``uncommitted``, as in ``Read``."""


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """One-way message of a client to a gateway: add bytes to the credit of a subscription, so that more may be
    delivered."""

    OP: ClassVar[str] = "credit"
    sub: int
    bytes: int
    """Bytes that are added to the credit of subscription ``sub``."""


@dataclass(frozen=True, slots=True)
class Unsubscribe(Message):
    """Request of a client to a gateway: end a subscription. Nothing is delivered after the answer. A request for an
    unknown subscription succeeds."""

    OP: ClassVar[str] = "unsubscribe"
    ANSWER: ClassVar[type[Message]] = Done
    sub: int


@dataclass(frozen=True, slots=True)
class Delivery(Message):
    """One-way message of a gateway to a client: whole batches of a subscription, which use up its credit. The first
    batch may begin before the position; the client skips the records before it. A delivery without payload only
    reports the high watermark, or the error that ends the subscription."""

    OP: ClassVar[str] = "delivery"
    sub: int
    high_watermark: int = -1
    """The high watermark, which never goes back within a subscription; -1: not known."""
    error: ErrorInfo | None = None
    """Why the subscription has ended; then this is its last message. None: it goes on."""
    payload: Payload = b""
