"""A replica server to the active controller: registration, heartbeats, and reports about partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message


@dataclass(frozen=True, slots=True)
class Registered(Message):
    """Answer: this life's broker epoch; metadata below ``index`` must be ignored."""

    broker_epoch: int
    index: int
    session_timeout_ms: int
    cluster: str
    term: int = 0
    """Raft's, of the entry at ``index``."""


@dataclass(frozen=True, slots=True)
class Register(Message):
    """A replica server starts a life. ``cluster`` is what its data directory says, "" for a new one.

    ``lives`` are the names of the directory's last registered life and of those begun since, this one last: where
    the controller knows another last life, the directory was wiped, or restored from an old copy. ``clean``: nothing
    that was written is lost (shut down in order, or the operating system has run on since)."""

    OP: ClassVar[str] = "register"
    ANSWER: ClassVar[type[Message]] = Registered
    node: str
    url: str
    cluster: str = ""
    lives: tuple[str, ...] = ()
    clean: bool = False
    rack: str = ""
    index: int = 0
    """The newest metadata that the server has seen, in this life or before. Where the controllers do not have this
    entry, the metadata have gone back: ``METADATA_WENT_BACK``."""
    term: int = 0
    """Raft's, of that entry; 0: not known."""
    producer_id: int = 0
    """The highest producer id that the server knows from its logs; 0: none."""
    older_lives: tuple[str, ...] = ()
    """Lives before ``lives``, oldest first, that were registered: metadata that went back know one of them."""
    uncertain_lives: tuple[str, ...] = ()
    """The same, but something that was not flushed may have been lost since."""


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """Part: how far a replica is behind its leader, over all partitions that the sender leads: in records, and how
    long ago it had everything of the worst one."""

    node: str
    lag_records: int = 0
    lag_ms: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Keeps a session alive; also ends a fence that an expired session left behind. Every few seconds it tells how
    the followers lag. ``FENCED_BROKER_EPOCH`` means that a later life registered."""

    OP: ClassVar[str] = "heartbeat"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    lags: tuple[FollowerLag, ...] = ()
    index: int = 0
    """As in ``Register``."""
    term: int = 0
    """Likewise."""
    producer_id: int = 0
    """Likewise, every few seconds; else 0."""


@dataclass(frozen=True, slots=True)
class IsrMember:
    """Part: a proposed member of the ISR, in the life in which the leader saw it (KIP-903)."""

    node: str
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AlterIsrAnswer(Message):
    """Answer: the partition's state after the change."""

    epoch: int
    isr: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlterIsr(Message):
    """A leader proposes an ISR: compare-and-set on ``epoch`` (KIP-497). ``STALE_EPOCH`` when it has moved on."""

    OP: ClassVar[str] = "alter_isr"
    ANSWER: ClassVar[type[Message]] = AlterIsrAnswer
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    isr: tuple[IsrMember, ...]
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuspectPart:
    """Part: one partition whose leader a follower cannot reach."""

    topic_id: str
    partition: int
    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportLeader(Message):
    """An ISR member reports ``leader`` dead, for the partitions that it follows there."""

    OP: ClassVar[str] = "report_leader"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    leader: str
    reason: str
    parts: tuple[SuspectPart, ...]


@dataclass(frozen=True, slots=True)
class HandOver(Message):
    """A server asks to be taken out of leadership and ISR of partitions, in favour of others (KIP-501; also an
    orderly shutdown). Where nobody else can take over all stays as it is; but not with ``lost``: what the server
    held of them is damaged, it leaves ISR and ELR in any case, and every part gets a newer epoch. ``lost`` is refused
    with ``STALE_EPOCH``, whole, where a part has moved on. With ``ready`` the server leaves nothing: it leads, has
    taken no batch since it heard of a successor, and that one has everything now and is to lead."""

    OP: ClassVar[str] = "hand_over"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    reason: str
    parts: tuple[SuspectPart, ...]
    lost: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class SealPart:
    """Part: this replica takes nothing of leader epochs below ``leader_epoch`` any more; its log ends at ``end``,
    durably, and its last record is of ``last_epoch`` (-1: none)."""

    topic_id: str
    partition: int
    leader_epoch: int
    end: int
    last_epoch: int = -1
    highest_epoch: int = -1
    """The highest leader epoch that this replica knows somebody to have led in; -1: none."""
    could_follow: tuple[str, ...] = ()
    """Where this replica led in ``highest_epoch``, in this very process: the servers, itself included, of which one
    could be elected after it."""


@dataclass(frozen=True, slots=True)
class Seal(Message):
    """What an election needs to know with commit rule ``quorum``, and after a rescue with each. With a majority's
    seals the one with the greatest (``last_epoch``, ``end``) leads; after a rescue as ``docs/operations.md`` says."""

    OP: ClassVar[str] = "seal"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    parts: tuple[SealPart, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLeader(Message):
    """A leader that no follower can vouch for asks, through Raft, whether it still leads in that leader epoch."""

    OP: ClassVar[str] = "confirm_leader"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportLoss(Message):
    """A replica had to cut the records ``start`` to ``end`` to agree with its leader, after an unclean election or
    under commit rule ``leader``. Kept in the partition's history. An earlier controller ignores ``possible``, and
    records all of them as committed."""

    OP: ClassVar[str] = "report_loss"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    possible: bool = False
    """Whether the records lay above every high watermark that the replica knew: then they may have been committed.
    If False, they were."""


@dataclass(frozen=True, slots=True)
class ReportDoubt(Message):
    """The log of a copy is whole up to some offset, and may or may not have held more (feature level 4). ``step``:

    ``doubtful``   whole batches follow a bad one at ``start``, the last ends at ``end``: where the sender is in ISR
                   or ELR it is treated as away from now on
    ``settled``    the sender is whole again up to ``start``; nobody in ISR and ELR holds the records from there to
                   ``end``, which may have been committed. It counts again
    ``given_up``   another leads; the sender cuts its log at ``start``, and is in neither ISR nor ELR

    Every step that is not refused begins a newer epoch. ``STALE_EPOCH`` where the partition has moved on."""

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
