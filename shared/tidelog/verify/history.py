"""The input of the checker: what clients did and saw, and what the replicas have at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
"""Results of an operation. ``failed`` only if the server reported that nothing was appended; a time-out is
``unknown``."""

COMMITTED, ABORTED = "committed", "aborted"
"""Outcomes of a transaction that were reported to the application; otherwise its outcome is ``UNKNOWN``."""

Row = tuple[int, bytes]
"""A record as a reader sees it: offset and ``identity``. Identities are unique in a history."""

PLAIN_BYTES = 64
"""A value of at most this many bytes, without key and headers, identifies itself."""


def identity(value: bytes | None, key: bytes | None = None, headers: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """Return the bytes by which a record is known in a history. A short value without key and headers stands for
    itself; for any other record they are the first 32 bytes of the value, and a digest of value, key and headers."""
    pairs = tuple(headers)
    if value is not None and key is None and not pairs and len(value) <= PLAIN_BYTES:
        return value
    digest = hashlib.blake2b(repr((key, pairs)).encode(), digest_size=12)
    digest.update(b"-" if value is None else b"+" + value)
    return (value or b"")[:32] + b"~" + digest.hexdigest().encode()


@dataclass(frozen=True, slots=True)
class SendCall:
    """An operation of a history: one batch that a producer sent, with the result. Times are seconds since the
    recording began."""

    process: str
    partition: str
    number: int
    """Number of this send among those of its process to its partition."""
    values: tuple[bytes, ...]
    """The ``identity`` of each record, in order."""
    start: float
    end: float
    result: str
    offset: int = -1
    """Offset of the first record; -1: not known, which can also be true of an acknowledged send (a retry of a batch
    that was written long before)."""
    level: str = "all"
    """Durability that the ack promises: ``all``, ``leader`` or ``received``."""
    idempotent: bool = True
    """Whether the producer is idempotent, so that its retries leave one copy."""
    expected_offset: int = -1
    """The offset that a conditional append demanded; -1: the append was not conditional."""
    epoch: int = -1
    """Leader epoch of the ack; -1: there was no ack."""
    transaction: str = ""
    """Label of the transaction that the batch is part of; "": none. The ack of such a batch promises nothing; the
    commit does."""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """An operation of a history: one answer that a consumer got, with the records in it. ``position`` is the offset
    that the consumer wanted. Times are seconds since the recording began."""

    process: str
    partition: str
    position: int
    rows: tuple[Row, ...]
    start: float
    end: float
    epochs: tuple[int, ...] = ()
    """Leader epoch of each row, if they are known; otherwise empty."""
    start_over: bool = False
    """Whether the answer before reported the position as lost, so that the consumer started over on purpose."""
    group: str = ""
    """The consumer group for which the consumer read; "": none."""


@dataclass(frozen=True, slots=True)
class Latest:
    """An operation of a history: a client requested the end of the committed records of a partition, and ``offset``
    was answered. It must cover every earlier ack only if it is ``linearizable``."""

    process: str
    partition: str
    offset: int
    start: float
    """Every ack before this time must be covered by the answer. If a read may be stale by some bound, this time is
    that much earlier than the request."""
    end: float
    linearizable: bool = False
    """Whether the answer must cover every earlier ack."""


@dataclass(frozen=True, slots=True)
class CommitCall:
    """An operation of a history: a member's commit of the group's position in one partition, with the result."""

    process: str
    """Name of the member."""
    group: str
    generation: int
    partition: str
    offset: int
    start: float
    end: float
    result: str


@dataclass(eq=False, slots=True)
class TransactionCall:
    """A transaction of an application in a history, with its outcome. Its records are the sends that have its
    ``label``."""

    label: str
    app: str
    start: float
    end: float
    fate: str = UNKNOWN
    asked: bool = False
    """Whether the application requested the commit."""
    position: int = -1
    """Position of the application's group when the transaction began, which it moves on by one; -1: it moves no
    group."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A range of records that a topic's own settings allowed to be lost, by an unclean election or under the commit
    rule ``leader``: records that were acknowledged in a leader epoch below ``before_epoch``, at offset ``start`` or
    above. No other record may be gone."""

    partition: str
    before_epoch: int
    start: int

    def covers(self, epoch: int, offset: int) -> bool:
        """Return whether this loss allows the record that was acknowledged at ``offset`` in leader epoch ``epoch`` to
        be gone. False for the epoch -1, which means that the epoch is not known."""
        return 0 <= epoch < self.before_epoch and offset >= self.start


@dataclass(frozen=True, slots=True)
class Differing:
    """A difference between the replicas of a partition from ``offset`` on, which a comparison of their hash chains
    has found."""

    partition: str
    offset: int
    text: str
    """Description of what each replica holds."""


@dataclass(slots=True)
class OperationHistory:
    """The history of a whole run, which the checker checks: the operations in the order in which they ended, and the
    state of the cluster at the end."""

    operations: list[SendCall | ReadCall | Latest | CommitCall] = field(default_factory=list)
    transactions: list[TransactionCall] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    """Application -> position, at the end, of the group that its transactions move."""
    committed: dict[tuple[str, str], int] = field(default_factory=dict)
    """(Group, partition) -> position at the end, as reported to another client."""
    final: dict[str, list[Row]] = field(default_factory=dict)
    """Partition -> the committed log, as fresh consumers read it after all faults were healed."""
    undrained: set[str] = field(default_factory=set)
    """Partitions whose log was not read to its end when the run was over: their contents are not checked."""
    dumps: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    """Replica -> partition -> the log on its disk at the end. Also the log as another fresh consumer read it, under a
    name for that consumer."""
    differing: list[Differing] = field(default_factory=list)
    healthy: list[tuple[float, float]] = field(default_factory=list)
    """Spans (start, end) in seconds in which the cluster was able to accept every ``all`` produce."""
    patience: float = 10.0
    """Longest time in seconds in such a span without a successful send while some are tried."""
    deleted: set[str] = field(default_factory=set)
    """Partitions of deleted topics, whose records are rightly gone."""
    control: dict[str, set[int]] = field(default_factory=dict)
    """Partition -> offsets without a record for readers: control batches, or records of aborted transactions."""
    losses: list[Loss] = field(default_factory=list)
    retained_from: dict[str, int] = field(default_factory=dict)
    """Partition -> first offset of its history: records below it are older, or were removed by retention."""
