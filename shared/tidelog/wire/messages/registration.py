"""Requests of a replica server to the active controller: registration, heartbeats, and reports about partitions; and
the announcement of a gateway. An *incarnation* of a replica server is one run of its process; the broker epoch is its
number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message
from tidelog.wire.messages.description import GatewayInfo


@dataclass(frozen=True, slots=True)
class Registered(Message):
    """Answer to ``Register``, from the active controller: the server is registered under this broker epoch. From now
    on the server must send a heartbeat within every session timeout, or its session ends."""

    broker_epoch: int
    """Broker epoch of this incarnation."""
    index: int
    """Raft index of the registration. The server must ignore metadata below it."""
    session_timeout_ms: int
    """The session ends if no heartbeat arrives for so many milliseconds."""
    cluster: str
    """Id of the cluster."""
    term: int = 0
    """Raft term of the entry at ``index``."""


@dataclass(frozen=True, slots=True)
class Register(Message):
    """Request of a replica server to the active controller, after its process has started: register a new incarnation
    of the server, which fences all earlier ones. From what the request says about the data directory the controller
    decides whether records may have been lost."""

    OP: ClassVar[str] = "register"
    ANSWER: ClassVar[type[Message]] = Registered
    node: str
    url: str
    cluster: str = ""
    """Id of the cluster that the data directory belongs to; "": the directory is new."""
    lives: tuple[str, ...] = ()
    """Names of incarnations that the data directory has: the last registered one and all that began since, this one
    last. If the controller knows another last incarnation, the directory was wiped or restored from an old copy."""
    clean: bool = False
    """Nothing that was written is lost: the incarnation before was shut down in order, or the operating system has
    run on since."""
    rack: str = ""
    """Rack of the server; "": none."""
    index: int = 0
    """Raft index of the newest metadata that any incarnation of this directory has seen. If the controllers do not
    have this entry, the metadata have gone back, and they refuse with ``METADATA_WENT_BACK``."""
    term: int = 0
    """Raft term of the entry at ``index``; 0: not known."""
    producer_id: int = 0
    """Highest producer id that the server knows from its logs; 0: none."""
    older_lives: tuple[str, ...] = ()
    """Names of registered incarnations before ``lives``, oldest first. Metadata that have gone back know one of
    them."""
    uncertain_lives: tuple[str, ...] = ()
    """Names of further incarnations of that kind, also oldest first, since which something that was not flushed may
    have been lost."""


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """Part of ``Heartbeat``: how far a replica server is behind, over all partitions that it follows on the server
    that sends the heartbeat."""

    node: str
    lag_records: int = 0
    """Records that it is behind, in all partitions together."""
    lag_ms: int = 0
    """Milliseconds since it had everything, in the partition where that is longest ago; 0: it has everything."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Request of a replica server to the active controller, at intervals: keep the session of the server alive. A
    heartbeat also ends the fence of a server whose session had expired. The request is refused with
    ``FENCED_BROKER_EPOCH`` if a later incarnation has registered."""

    OP: ClassVar[str] = "heartbeat"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    lags: tuple[FollowerLag, ...] = ()
    """Lag of each server that follows the sender, every few seconds; otherwise empty."""
    index: int = 0
    """As in ``Register``."""
    term: int = 0
    """As in ``Register``."""
    producer_id: int = 0
    """As in ``Register``, every few seconds; otherwise 0."""


@dataclass(frozen=True, slots=True)
class IsrMember:
    """Part of ``AlterIsr``: a member of the proposed ISR, with the broker epoch in which the leader saw it
    (KIP-903)."""

    node: str
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AlterIsrAnswer(Message):
    """Answer to ``AlterIsr``, from the active controller: epoch and ISR of the partition after the change."""

    epoch: int
    isr: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlterIsr(Message):
    """Request of a partition's leader to the active controller: replace the ISR (KIP-497 ``AlterPartition``). The
    controller changes the metadata only if the partition still has this ``epoch``; it refuses with ``STALE_EPOCH`` if
    the epoch is newer."""

    OP: ClassVar[str] = "alter_isr"
    ANSWER: ClassVar[type[Message]] = AlterIsrAnswer
    node: str
    """Server that leads the partition."""
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    """Epoch of the partition that the proposal is based on."""
    isr: tuple[IsrMember, ...]
    """The proposed ISR."""
    cause: str
    """Cause of the change, for the partition's history."""
    evidence: dict[str, str] = field(default_factory=dict)
    """The figures behind the cause, as texts, by name."""


@dataclass(frozen=True, slots=True)
class SuspectPart:
    """Part of ``ReportLeader`` and ``HandOver``: a partition that is reported, with the epochs that the sender
    knows."""

    topic_id: str
    partition: int
    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportLeader(Message):
    """Request of a replica server to the active controller: a leader cannot be reached. It names the partitions that
    the sender follows there and in whose ISR it is. The controller may elect other leaders."""

    OP: ClassVar[str] = "report_leader"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    leader: str
    """Server that does not answer."""
    reason: str
    parts: tuple[SuspectPart, ...]


@dataclass(frozen=True, slots=True)
class HandOver(Message):
    """Request of a replica server to the active controller: leave the leadership and the ISR of partitions, in favour
    of other servers (KIP-501; also for an orderly shutdown). A partition that no other server can take over stays as
    it is."""

    OP: ClassVar[str] = "hand_over"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    reason: str
    parts: tuple[SuspectPart, ...]
    lost: bool = False
    """The data that the server has of these partitions is damaged. The server leaves ISR and ELR in any case, and
    every partition gets a newer epoch. If the epoch of any of the partitions has changed, the whole request is
    refused with ``STALE_EPOCH``."""
    ready: bool = False
    """The server leaves nothing, and its successor is to lead. The server leads, has accepted no batch since it
    learned of the successor, and the successor now has everything."""


@dataclass(frozen=True, slots=True)
class SealPart:
    """Part of ``Seal``: the end of one sealed log. The replica accepts nothing of leader epochs below
    ``leader_epoch`` any more."""

    topic_id: str
    partition: int
    leader_epoch: int
    end: int
    """Log end offset. Everything below it is durable."""
    last_epoch: int = -1
    """Leader epoch of the last record; -1: the log is empty."""
    highest_epoch: int = -1
    """Highest leader epoch in which, as this replica knows, a server has led; -1: none."""
    could_follow: tuple[str, ...] = ()
    """If this replica has led in ``highest_epoch``, in this same process: the servers of which one could be elected
    after it, itself included. Otherwise empty."""


@dataclass(frozen=True, slots=True)
class Seal(Message):
    """Request of a replica server to the active controller: the ends of its sealed logs, from which the controller
    elects leaders. It is sent with commit rule ``quorum``, and after a rescue with every commit rule. When a majority
    of the replicas has reported, the one with the greatest (``last_epoch``, ``end``) leads. After a rescue the choice
    is as ``docs/operations.md`` describes."""

    OP: ClassVar[str] = "seal"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    parts: tuple[SealPart, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLeader(Message):
    """Request of a partition's leader to the active controller, if no follower can confirm its leadership: confirm
    through Raft that the sender still leads in this leader epoch. The request is refused with ``NOT_LEADER`` if
    another server leads, with ``FENCED_LEADER_EPOCH`` if another leader epoch has begun, and with
    ``FENCED_BROKER_EPOCH`` if the sender has another incarnation."""

    OP: ClassVar[str] = "confirm_leader"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportLoss(Message):
    """Request of a replica server to the active controller: records that it had to cut to agree with its leader,
    after an unclean election or under commit rule ``leader``. The controller adds the report to the partition's
    history."""

    OP: ClassVar[str] = "report_loss"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    start: int
    """Offset of the first record that was cut."""
    end: int
    """Offset after the last record that was cut."""
    possible: bool = False
    """True: the records lay above every high watermark that the replica knew, so they may have been committed. False:
    they were committed. A controller of an earlier release ignores the field and records all of them as committed."""


@dataclass(frozen=True, slots=True)
class ReportDoubt(Message):
    """Request of a replica server to the active controller: the state of a log with a doubtful tail, which is whole
    up to some offset and may or may not have held more. Every report that is not refused begins a newer epoch of the
    partition. It is refused with ``STALE_EPOCH`` if the partition's epoch has changed. Since feature level 4.
    ``step`` is one of:

    ``doubtful``   whole batches follow a bad batch at ``start``, and the last one ends at ``end``. A sender in ISR
                   or ELR counts as away from now on
    ``settled``    the sender's log is whole again up to ``start``. No member of ISR and ELR has the records from
                   there to ``end``, which may have been committed. The sender counts again
    ``given_up``   another server leads. The sender cuts its log at ``start``, and is in neither ISR nor ELR
    """

    OP: ClassVar[str] = "report_doubt"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    step: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GatewaysAnswer(Message):
    """Answer to ``AnnounceGateway``, from the active controller: the gateways that clients may be told of."""

    gateways: tuple[GatewayInfo, ...]
    """Gateways that have announced a URL over a connection that is still open, sorted by name, 64 at most."""


@dataclass(frozen=True, slots=True)
class AnnounceGateway(Message):
    """Request of a gateway to the active controller, repeated every few seconds: under which URL clients reach the
    sender. The announcement holds until the next one, or until the connection ends. It is refused with ``MALFORMED``
    if ``url`` is none. A controller of an earlier release refuses it with ``UNSUPPORTED``."""

    OP: ClassVar[str] = "announce_gateway"
    ANSWER: ClassVar[type[Message]] = GatewaysAnswer
    url: str = ""
    """``ws://…`` or ``wss://…``; "": clients are not told of the sender."""
