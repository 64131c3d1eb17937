"""What clients did and saw, and what the replicas hold at the end: the input of ``checker``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
"""``failed`` only where the server said that nothing was appended; a time-out is ``unknown``."""

COMMITTED, ABORTED = "committed", "aborted"
"""Fates of a transaction, as the application was told; else ``UNKNOWN``."""

Row = tuple[int, bytes]
"""A record as a reader sees it: offset and value. Values are unique, and name their partition."""

PLAIN_BYTES = 64
"""A value of up to so many bytes, without key and headers, stands for itself."""


def identity(value: bytes | None, key: bytes | None = None, headers: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """What stands for a record in a history: its value, or, where that is long or not all there is, its beginning and
    a digest of everything in the record."""
    pairs = tuple(headers)
    if value is not None and key is None and not pairs and len(value) <= PLAIN_BYTES:
        return value
    digest = hashlib.blake2b(repr((key, pairs)).encode(), digest_size=12)
    digest.update(b"-" if value is None else b"+" + value)
    return (value or b"")[:32] + b"~" + digest.hexdigest().encode()


@dataclass(frozen=True, slots=True)
class SendCall:
    """One batch of a producer, from the call to the ack."""

    process: str
    partition: str
    number: int
    """Order of this send among those of its process to this partition."""
    values: tuple[bytes, ...]
    start: float
    end: float
    result: str
    offset: int = -1
    """-1: not known, also of one that was acked (a retry that the leader had long written)."""
    level: str = "all"
    """Durability that the ack promised: ``all``, ``leader`` or ``received``."""
    idempotent: bool = True
    expected_offset: int = -1
    """Not -1: a conditional append."""
    epoch: int = -1
    """Leader epoch of the ack; -1: none came."""
    transaction: str = ""
    """Label of the transaction that it is part of: then its ack promises nothing, the commit does."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One answer that a consumer took; ``position`` is the offset it wanted."""

    process: str
    partition: str
    position: int
    rows: tuple[Row, ...]
    start: float
    end: float
    epochs: tuple[int, ...] = ()
    """Leader epoch of each row, where it is known."""
    start_over: bool = False
    """The answer before said that the position is lost: the consumer went back on purpose, and with leave."""
    group: str = ""
    """The consumer group for which it was read."""


@dataclass(frozen=True, slots=True)
class Latest:
    """An answer to "where does the committed log end?"."""

    process: str
    partition: str
    offset: int
    start: float
    """What was acked before this must be known to the answer. Of a read that may be stale by so much: as if it had
    been asked that much earlier."""
    end: float
    linearizable: bool = False


@dataclass(frozen=True, slots=True)
class CommitCall:
    """A member of a group says how far the group has come in a partition."""

    process: str
    """The member."""
    group: str
    generation: int
    partition: str
    offset: int
    start: float
    end: float
    result: str


@dataclass(eq=False, slots=True)
class TransactionCall:
    """What an application did together. Its records are the sends that name its ``label``."""

    label: str
    app: str
    start: float
    end: float
    fate: str = UNKNOWN
    asked: bool = False
    """Its commit was asked for."""
    position: int = -1
    """Where the application's group stood when it began; it moves it on by one. -1: it moves no group."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a topic's own settings allowed to be lost: an unclean election, or the commit rule ``leader``.
    What was acked in a leader epoch below ``before_epoch``, at ``start`` or above, may be gone; nothing else."""

    partition: str
    before_epoch: int
    start: int

    def covers(self, epoch: int, offset: int) -> bool:
        """Whether a record may be gone."""
        return 0 <= epoch < self.before_epoch and offset >= self.start


@dataclass(frozen=True, slots=True)
class Differing:
    """What a comparison of the replicas of a partition, by their hash chains, has found."""

    partition: str
    offset: int
    text: str
    """Which replicas hold what."""


@dataclass(slots=True)
class History:
    """A whole run, operations in the order in which they ended."""

    operations: list[SendCall | ReadCall | Latest | CommitCall] = field(default_factory=list)
    transactions: list[TransactionCall] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    """Per application whose transactions move a group: where that stood in the end."""
    committed: dict[tuple[str, str], int] = field(default_factory=dict)
    """Per group and partition: how far it had come in the end, as somebody else was told."""
    final: dict[str, list[Row]] = field(default_factory=dict)
    """Per partition, the committed log as fresh consumers drain it after healing."""
    undrained: set[str] = field(default_factory=set)
    """Partitions whose log at the end nobody has read to its end: what would be in it is not judged."""
    dumps: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    """Per replica and partition, the log on its disk at the end; or what another fresh consumer has read."""
    differing: list[Differing] = field(default_factory=list)
    healthy: list[tuple[float, float]] = field(default_factory=list)
    """Spans in which the cluster could have taken every ``all`` produce."""
    patience: float = 10.0
    """Longest time (s) in such a span without a send that succeeds, where some are tried."""
    deleted: set[str] = field(default_factory=set)
    """Partitions of topics that were deleted: what was in them is gone by right."""
    control: dict[str, set[int]] = field(default_factory=dict)
    """Offsets that show no record: the cluster itself took them, or they are of a transaction that was aborted."""
    losses: list[Loss] = field(default_factory=list)
    retained_from: dict[str, int] = field(default_factory=dict)
    """Where the history begins in a partition: what is below was there before, or retention has removed it."""
