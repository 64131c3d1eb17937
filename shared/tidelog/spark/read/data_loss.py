"""What became of requested offsets: retained, deleted by retention, truncated, or never written. Pure.

*Compacted* is no loss: a retained range of a compacted topic has offsets without a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.spark.errors import SourceError, data_loss


@dataclass(frozen=True, slots=True)
class PartitionExtent:
    """The present extent of a partition's log: records from ``start`` up to ``end`` are committed and retained."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    end_epoch: int = -1
    """Leader epoch of the last record, or a later one."""
    compacted: bool = False


def lost(
    extent: PartitionExtent, start: int, end: int, *, seen: bool, cut_at: int | None = None
) -> SourceError | None:
    """Return the error for offsets ``start`` up to ``end`` if some of them are not in the log. ``seen``: an offset
    above the log's end that was in the log once (a checkpoint names it). ``cut_at``: records from there on were
    truncated, though others may be there now."""
    parts = list(_parts_of(extent, start, end, seen, cut_at))
    if all(gone is False for _, _, _, gone in parts):
        return None
    return data_loss(extent.topic, extent.partition, start, end, [(a, b, text) for a, b, text, _ in parts])


def _parts_of(
    extent: PartitionExtent, start: int, end: int, seen: bool, cut_at: int | None
) -> Iterator[tuple[int, int, str, bool]]:
    """Return the parts of the range in order: first offset, end, what became of it, whether that is a loss."""
    upper = extent.end if cut_at is None else min(cut_at, extent.end)
    if start < extent.start:
        yield start, min(end, extent.start), f"deleted by retention, the log begins at {extent.start}", True
    middle = max(start, extent.start), min(end, upper)
    if middle[0] < middle[1]:
        kept = "retained, compacted (only the last record of a key is kept)" if extent.compacted else "retained"
        yield *middle, kept, False
    if end > upper:
        first = max(start, upper)
        if cut_at is not None:
            yield first, end, f"truncated, what was read before parts from the log at {upper}", True
        elif seen:
            yield first, end, f"truncated, the log ends at {upper} now", True
        else:
            yield first, end, f"never existed, the log ends at {upper}", True
