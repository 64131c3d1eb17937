"""Messages between replica servers: a follower fetches from the leader of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import ErrorInfo, Message, Payload


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Part of ``Fetch`` and ``Progress``: a partition, with the next offset that the follower wants and how far its
    log is durable."""

    topic_id: str
    partition: int
    leader_epoch: int
    """Leader epoch that the follower knows."""
    offset: int
    """Next offset wanted, which is the follower's log end offset."""
    last_epoch: int = -1
    """Leader epoch of the record before ``offset``; -1: there is none."""
    durable: int = 0
    """Everything below this offset is on the follower's stable storage."""
    stamp: int = 0
    """Greatest ``stamp`` that the follower has received in this leader epoch, with an answer or a notify. So this
    fetch was sent after that; 0: none."""
    readers: bool = False
    """Readers wait at the follower, so it must also be notified when the high watermark moves."""


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """Part of ``FetchAnswer``: the leader epoch and high watermark of one partition, and the size of its batches in
    the payload; or where the two logs diverge; or an error."""

    topic_id: str
    partition: int
    leader_epoch: int
    """Leader epoch of the leader."""
    high_watermark: int
    log_start: int
    size: int = 0
    """Bytes of this partition's batches in the payload."""
    diverging_epoch: int = -1
    """The two logs diverge: on the leader this epoch ends at ``diverging_end`` (KIP-279). -1: they do not."""
    diverging_end: int = -1
    """End of ``diverging_epoch`` on the leader; -1: the logs do not diverge."""
    confirmed_ms: int = -1
    """Milliseconds since it was last proved that no other server led. The high watermark includes everything that was
    committed until then. -1: there is no proof yet."""
    stamp: int = 0
    """Number of the confirmation round in which this part was sent; the follower's next fetch repeats it. 0: none."""
    error: ErrorInfo | None = None
    """Why the partition cannot be fetched; None: it can."""
    compacted_to: int = 0
    """With data: below this offset, a record is gone from the leader's log if a later record below it replaces or
    deletes it. 0: this offset is not above the offset wanted."""
    tombstones_to: int = 0
    """With data: tombstones below this offset may be gone, too. 0: this offset is not above the offset wanted."""


@dataclass(frozen=True, slots=True)
class NewsPart:
    """Part of ``FetchAnswer``: a partition of which the follower has not shown that it knows the present high
    watermark and log start. The follower must fetch it."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class FetchAnswer(Message):
    """Answer to ``Fetch``: whole batches of each partition, from the wanted offset on. The payload has the batches,
    in the order of the parts; a part may have none."""

    parts: tuple[FetchedPart, ...]
    news: tuple[NewsPart, ...] | None = None
    """All partitions that the follower must ask for, if the request had ``news``. None: the leader does not know
    them, so it may be any partition."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Request of a follower to the leader of these partitions: return batches from the end of the follower's log on.
    The answer comes at once. For a part without data the leader later sends a ``Notify``, as soon as there is
    something to fetch. The offsets in the request also acknowledge what the follower has."""

    OP: ClassVar[str] = "fetch"
    ANSWER: ClassVar[type[Message]] = FetchAnswer
    node: str
    """The follower's server."""
    broker_epoch: int
    max_bytes: int
    """About how many bytes of batches the answer may have."""
    parts: tuple[FetchPart, ...]
    news: bool = False
    """Also answer ``news``. One such request at intervals (``replica_max_idle_wait_s``) serves all partitions of
    which the follower idles."""


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """One-way message of an idle follower to the leader: the end of its log, after it has written or flushed the
    batches that came with a notify. If the leader has more, it sends another notify. Since feature level 3."""

    OP: ClassVar[str] = "progress"
    node: str
    broker_epoch: int
    parts: tuple[FetchPart, ...]


@dataclass(frozen=True, slots=True)
class NotifyPart:
    """Part of ``Notify``: a partition that has something to fetch. If ``size`` is not 0, the payload already has the
    batches: whole ones, from the end of the follower's log as its last fetch reported it."""

    topic_id: str
    partition: int
    leader_epoch: int
    high_watermark: int = -1
    """The high watermark; -1: not known."""
    size: int = 0
    """Bytes of this partition's batches in the payload; 0: there are none, and the follower must fetch."""
    stamp: int = 0
    """As in ``FetchedPart``."""


@dataclass(frozen=True, slots=True)
class Notify(Message):
    """One-way message of a leader to an idle follower: there is something to fetch in these partitions. The follower
    appends the batches that come with the message, and fetches the other partitions."""

    OP: ClassVar[str] = "notify"
    parts: tuple[NotifyPart, ...]
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class EpochPart:
    """Part of ``EpochOffset``: a partition and the leader epoch whose end in the leader's log is asked for."""

    topic_id: str
    partition: int
    leader_epoch: int
    """Leader epoch that the follower knows."""
    epoch: int
    """Leader epoch that is asked for."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Part of ``EpochOffsetAnswer``: the offset at which a leader epoch ends in the leader's log. If ``end_offset``
    is below ``log_start``, the leader no longer knows where the epoch ends; it only knows that the end is below
    ``log_start``."""

    topic_id: str
    partition: int
    epoch: int = -1
    """Largest epoch that the leader knows and that is not above the one asked for; -1: none."""
    end_offset: int = -1
    """Offset at which ``epoch`` ends; -1: none."""
    log_start: int = 0
    """First offset that the leader's log still has."""
    error: ErrorInfo | None = None
    """Why the leader cannot answer; None: it can."""


@dataclass(frozen=True, slots=True)
class EpochOffsetAnswer(Message):
    """Answer to ``EpochOffset``, from the leader: one part for each part of the request, in the same order."""

    parts: tuple[EpochEnd, ...]


@dataclass(frozen=True, slots=True)
class EpochOffset(Message):
    """Request of a new follower to the leader: at which offsets do these leader epochs end in the leader's log
    (KIP-101, KIP-279)? From the answer the follower learns where to cut its own log."""

    OP: ClassVar[str] = "epoch_offset"
    ANSWER: ClassVar[type[Message]] = EpochOffsetAnswer
    node: str
    broker_epoch: int
    parts: tuple[EpochPart, ...]


@dataclass(frozen=True, slots=True)
class LogSnapshotAnswer(Message):
    """Answer to ``LogSnapshot``: everything but records that a new copy of the log needs to begin at ``log_start``.
    The payload is the state of the producers at that offset."""

    log_start: int
    last_epoch: int = -1
    """Leader epoch of the record before ``log_start``; -1: there is none."""
    chain: bytes = b""
    """Hash chain up to ``log_start``."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class LogSnapshot(Message):
    """Request of a follower to the leader: the state with which a new copy of its log begins. The follower sends it
    if its log ends, or is damaged, before the leader's log begins, or if it has to start over. Afterwards it fetches
    from ``log_start`` on."""

    OP: ClassVar[str] = "log_snapshot"
    ANSWER: ClassVar[type[Message]] = LogSnapshotAnswer
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TailRead(Message):
    """Answer to ``ReadTail``: whether the receiver has the batch that was asked for, and the batch as the payload,
    possibly with batches after it."""

    found: bool
    """The receiver has the batch, undamaged."""
    leads: bool = False
    """The receiver leads the partition in the ``leader_epoch`` of the request."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadTail(Message):
    """Request of a replica whose log has a doubtful tail to another replica, which may have any role: return the
    batch that begins at ``offset``. The sender completes its log with it. Since feature level 4."""

    OP: ClassVar[str] = "read_tail"
    ANSWER: ClassVar[type[Message]] = TailRead
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    epoch: int = -1
    """Leader epoch that the batch must have; -1: any."""
    last_epoch: int = -1
    """Leader epoch that the record before ``offset`` must have. It ensures that both logs are the same up to there
    (log matching). -1: there is no record before it."""
