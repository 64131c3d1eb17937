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


@dataclass(frozen=True, slots=True)
class Read:
    """One answer that a consumer took; ``position`` is the offset it wanted."""

    process: str
    partition: str
    position: int
    rows: tuple[Row, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Latest:
    """An answer to "where does the committed log end?"."""

    process: str
    partition: str
    offset: int
    start: float
    end: float
    linearizable: bool = False


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
    retained_from: dict[str, int] = field(default_factory=dict)
    """Where retention removed the start of a partition: first offset still there."""
