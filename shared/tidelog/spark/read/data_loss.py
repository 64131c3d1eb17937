"""Finds out what became of requested offsets: retained, deleted by retention, truncated, or never written. Pure.

*Compacted* is no loss: a retained range of a compacted topic has offsets without a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.spark.errors import SourceError, data_loss


@dataclass(frozen=True, slots=True)
class PartitionExtent:
    """The extent of a partition's log when it was looked up (``extents.py``): the records from ``start`` up to, not
    including, ``end`` are committed and retained."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    end_epoch: int = -1
    """A leader epoch that no record of the log exceeds; -1: not known."""
    compacted: bool = False


def find_loss(
    extent: PartitionExtent, start: int, end: int, *, seen: bool, cut_at: int | None = None
) -> SourceError | None:
    """Return the ``TIDELOG_DATA_LOSS`` error for the offsets from ``start`` up to, not including, ``end``; None if
    the log still holds all of them. An offset above the log's end counts as truncated with ``seen`` (a checkpoint
    names it, so the log once had it), and otherwise as never written. ``cut_at``: the log was truncated at this
    offset, so that the records from there on are lost even if other records have taken their offsets; None if no
    truncation is known."""
    parts = list(_parts_of(extent, start, end, seen, cut_at))
    if all(gone is False for _, _, _, gone in parts):
        return None
    return data_loss(extent.topic, extent.partition, start, end, [(a, b, text) for a, b, text, _ in parts])


def _parts_of(
    extent: PartitionExtent, start: int, end: int, seen: bool, cut_at: int | None
) -> Iterator[tuple[int, int, str, bool]]:
    """Divide the offsets from ``start`` up to, not including, ``end`` by what became of them. Yields (first offset,
    end offset, text, whether that is a loss) for each part, in ascending order."""
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
