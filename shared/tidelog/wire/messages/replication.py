"""Between replica servers: a follower fetches from the leader of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import ErrorInfo, Message, Payload


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Part: what a follower wants of one partition."""

    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    """Next offset wanted: the follower's log end."""
    last_epoch: int = -1
    """Leader epoch of the record before ``offset``; -1 when there is none."""
    durable: int = 0
    """Everything below it is on the follower's stable storage."""
    stamp: int = 0
    """The greatest that came with an answer or notice of this leader epoch: this fetch was sent after that."""
    readers: bool = False
    """Readers wait at the follower: it wants to be notified when the HW moves, too."""


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """Part: what the leader has. Leader epoch and HW are there always, also without data."""

    topic_id: str
    partition: int
    leader_epoch: int
    high_watermark: int
    log_start: int
    size: int = 0
    diverging_epoch: int = -1
    """Not -1: the logs part ways; this epoch ends at ``diverging_end`` on the leader (KIP-279)."""
    diverging_end: int = -1
    confirmed_ms: int = -1
    """How long ago it was last proved that nobody else led: until then the HW misses nothing. -1: not yet."""
    stamp: int = 0
    """Says when this left; the follower's next fetch names it."""
    error: ErrorInfo | None = None
    compacted_to: int = 0
    """With data: below it every record is gone from the leader's log that a later one below it replaces or deletes;
    0 where that is not above the offset wanted."""
    tombstones_to: int = 0
    """With data: below it tombstones may be gone, too; 0 where that is not above the offset wanted."""


@dataclass(frozen=True, slots=True)
class NewsPart:
    """Part: of this partition the follower has not shown yet that it knows all that there is."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class FetchAnswer(Message):
    """Answer: whole batches per part, from the offset wanted, one part's after the other's."""

    parts: tuple[FetchedPart, ...]
    news: tuple[NewsPart, ...] | None = None
    """All partitions that the follower has to ask for, where it wanted to know; None: it may be any."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """A follower asks a leader server for partitions that it follows there. Answered at once; a part without data
    leaves a data waiter behind, which ``notify`` wakes."""

    OP: ClassVar[str] = "fetch"
    ANSWER: ClassVar[type[Message]] = FetchAnswer
    node: str
    broker_epoch: int
    max_bytes: int
    parts: tuple[FetchPart, ...]
    news: bool = False
    """Which partitions are to be asked for besides? One question a while does for all that idle."""


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """One-way, an idle follower to the leader: so far goes its log now that it has written, or flushed, what came
    with a notify. Where there is more it is notified again. Since feature level 3."""

    OP: ClassVar[str] = "progress"
    node: str
    broker_epoch: int
    parts: tuple[FetchPart, ...]


@dataclass(frozen=True, slots=True)
class NotifyPart:
    """Part: this partition has news. With ``size`` it carries them: whole batches from where the follower's log
    ended when it last asked."""

    topic_id: str
    partition: int
    leader_epoch: int
    high_watermark: int = -1
    size: int = 0
    stamp: int = 0
    """As in ``FetchedPart``."""


@dataclass(frozen=True, slots=True)
class Notify(Message):
    """One-way, leader to an idle follower: fetch now."""

    OP: ClassVar[str] = "notify"
    parts: tuple[NotifyPart, ...]
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class EpochPart:
    """Part: where does ``epoch`` end on the leader of ``leader_epoch``?"""

    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Part: the largest epoch <= the one asked that the leader knows, and where it ends; -1, -1 for none. Where that
    is below ``log_start`` the leader knows none any more: it only says that the one asked ended before there."""

    topic_id: str
    partition: int
    epoch: int = -1
    end_offset: int = -1
    log_start: int = 0
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class EpochOffsetAnswer(Message):
    """Answer, one part for each asked, in that order."""

    parts: tuple[EpochEnd, ...]


@dataclass(frozen=True, slots=True)
class EpochOffset(Message):
    """The LeaderEpoch offset request (KIP-101, KIP-279)."""

    OP: ClassVar[str] = "epoch_offset"
    ANSWER: ClassVar[type[Message]] = EpochOffsetAnswer
    node: str
    broker_epoch: int
    parts: tuple[EpochPart, ...]


@dataclass(frozen=True, slots=True)
class LogSnapshotAnswer(Message):
    """Answer: what a copy that begins at ``log_start`` cannot learn from the records: the leader epoch of the record
    before it, the hash chain up to it, and, as payload, the producers' state there."""

    log_start: int
    last_epoch: int = -1
    chain: bytes = b""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class LogSnapshot(Message):
    """A follower whose log ends before the leader's begins starts its copy over."""

    OP: ClassVar[str] = "log_snapshot"
    ANSWER: ClassVar[type[Message]] = LogSnapshotAnswer
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TailRead(Message):
    """Answer: whether the batch is whole there; if so, it and perhaps those behind it are the payload. ``leads``: the
    sender leads the partition in the leader epoch that was asked for."""

    found: bool
    leads: bool = False
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadTail(Message):
    """A replica whose log has a doubtful tail asks another replica, in whatever role, for the batch that begins at
    ``offset`` (feature level 4). ``epoch``: of which leader epoch it must be; -1: any. ``last_epoch``: of the record
    before it, so that both logs are the same up to there (log matching); -1: there is none."""

    OP: ClassVar[str] = "read_tail"
    ANSWER: ClassVar[type[Message]] = TailRead
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    epoch: int = -1
    last_epoch: int = -1
