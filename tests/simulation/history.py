"""What clients did and saw, and what the replicas hold at the end: the input of ``checker``."""

from __future__ import annotations

from dataclasses import dataclass, field

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
"""``failed`` only where the server said that nothing was appended; a time-out is ``unknown``."""

Row = tuple[int, bytes]
"""A record as a reader sees it: offset and value. Values are unique, and name their partition."""


@dataclass(frozen=True, slots=True)
class Send:
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
    level: str = "all"
    """Durability that the ack promised: ``all``, ``leader`` or ``received``."""
    idempotent: bool = True
    expected_offset: int = -1
    """Not -1: a conditional append."""
    epoch: int = -1
    """Leader epoch of the ack; -1: none came."""


@dataclass(frozen=True, slots=True)
class Read:
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


@dataclass(frozen=True, slots=True)
class Latest:
    """An answer to "where does the committed log end?"."""

    process: str
    partition: str
    offset: int
    start: float
    end: float
    linearizable: bool = False


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


@dataclass(slots=True)
class History:
    """A whole run, operations in the order in which they ended."""

    operations: list[Send | Read | Latest] = field(default_factory=list)
    final: dict[str, list[Row]] = field(default_factory=dict)
    """Per partition, the committed log as fresh consumers drain it after healing."""
    dumps: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    """Per replica and partition, the log on its disk at the end."""
    healthy: list[tuple[float, float]] = field(default_factory=list)
    """Spans in which the cluster could have taken every ``all`` produce."""
    patience: float = 10.0
    """Longest time (s) in such a span without a send that succeeds, where some are tried."""
    deleted: set[str] = field(default_factory=set)
    """Partitions of topics that were deleted: what was in them is gone by right."""
    control: dict[str, set[int]] = field(default_factory=dict)
    """Offsets that the cluster itself took: no record stands there."""
    losses: list[Loss] = field(default_factory=list)
    retained_from: dict[str, int] = field(default_factory=dict)
    """Where retention removed the start of a partition: first offset still there."""
