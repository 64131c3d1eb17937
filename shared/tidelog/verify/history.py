"""The input of ``checker``: what clients did and saw, and what the replicas hold at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
"""Results of an operation. ``failed`` only if the server said that nothing was appended; a time-out is
``unknown``."""

COMMITTED, ABORTED = "committed", "aborted"
"""Outcomes of a transaction that were reported to the application; otherwise ``UNKNOWN``."""

Row = tuple[int, bytes]
"""A record as a reader sees it: offset and value. Values are unique, and name their partition."""

PLAIN_BYTES = 64
"""A value of at most this many bytes, without key and headers, identifies itself."""


def identity(value: bytes | None, key: bytes | None = None, headers: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """Return what identifies a record in a history: its value; or, for a long value or one with key or headers, the
    value's beginning and a digest of the whole record."""
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
    """Number of this send among those of its process to this partition."""
    values: tuple[bytes, ...]
    start: float
    end: float
    result: str
    offset: int = -1
    """Offset; -1: not known, which can also be true of an acked send (a retry of a batch that was written long
    before)."""
    level: str = "all"
    """Durability that the ack promised: ``all``, ``leader`` or ``received``."""
    idempotent: bool = True
    expected_offset: int = -1
    """Not -1: a conditional append."""
    epoch: int = -1
    """Leader epoch of the ack; -1: there was no ack."""
    transaction: str = ""
    """Label of the transaction that it is part of. Its ack then promises nothing; the commit does."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One answer that a consumer took. ``position`` is the offset that it wanted."""

    process: str
    partition: str
    position: int
    rows: tuple[Row, ...]
    start: float
    end: float
    epochs: tuple[int, ...] = ()
    """Leader epoch of each row, where it is known."""
    start_over: bool = False
    """Whether the answer before reported the position as lost, so that the consumer went back on purpose."""
    group: str = ""
    """The consumer group for which it was read."""


@dataclass(frozen=True, slots=True)
class Latest:
    """An answer to the request for the end of the committed log."""

    process: str
    partition: str
    offset: int
    start: float
    """Every ack before this time must be covered by the answer. If a read may be stale by some bound, it is that much
    earlier than the request."""
    end: float
    linearizable: bool = False


@dataclass(frozen=True, slots=True)
class CommitCall:
    """A commit of a member: the group's position in a partition."""

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
    """A transaction of an application. Its records are the sends with its ``label``."""

    label: str
    app: str
    start: float
    end: float
    fate: str = UNKNOWN
    asked: bool = False
    """Whether its commit was requested."""
    position: int = -1
    """Position of the application's group when it began, which it moves on by one; -1: it moves no group."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a topic's own settings allowed to be lost: by an unclean election, or under the commit rule
    ``leader``. Records acked in a leader epoch below ``before_epoch``, at ``start`` or above, may be gone; no
    others."""

    partition: str
    before_epoch: int
    start: int

    def covers(self, epoch: int, offset: int) -> bool:
        """Whether a record may be gone."""
        return 0 <= epoch < self.before_epoch and offset >= self.start


@dataclass(frozen=True, slots=True)
class Differing:
    """A difference that a comparison of a partition's replicas by their hash chains has found."""

    partition: str
    offset: int
    text: str
    """Description of which replicas hold what."""


@dataclass(slots=True)
class OperationHistory:
    """A whole run, with operations in the order in which they ended."""

    operations: list[SendCall | ReadCall | Latest | CommitCall] = field(default_factory=list)
    transactions: list[TransactionCall] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    """Per application whose transactions move a group: the group's position at the end."""
    committed: dict[tuple[str, str], int] = field(default_factory=dict)
    """Per group and partition: the position at the end, as reported to another client."""
    final: dict[str, list[Row]] = field(default_factory=dict)
    """Per partition, the committed log as fresh consumers read it after healing."""
    undrained: set[str] = field(default_factory=set)
    """Partitions whose log was not read to its end at the end: their contents are not judged."""
    dumps: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    """Per replica and partition, the log on its disk at the end; or what another fresh consumer has read."""
    differing: list[Differing] = field(default_factory=list)
    healthy: list[tuple[float, float]] = field(default_factory=list)
    """Spans in which the cluster was able to accept every ``all`` produce."""
    patience: float = 10.0
    """Longest time (s) in such a span without a successful send while some are tried."""
    deleted: set[str] = field(default_factory=set)
    """Partitions of deleted topics, whose records are rightly gone."""
    control: dict[str, set[int]] = field(default_factory=dict)
    """Offsets without a record for readers: control batches, or records of aborted transactions."""
    losses: list[Loss] = field(default_factory=list)
    retained_from: dict[str, int] = field(default_factory=dict)
    """Log start of the history in a partition: records below it are older, or were removed by retention."""
