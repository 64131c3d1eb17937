"""Plans which offsets a batch read covers, and divides the ranges of batch reads and micro-batches among tasks. Where
a micro-batch begins and ends is decided in ``checkpoint_planner.py``. Pure. A range is half-open: it has the offsets
from ``start`` up to, not including, ``end``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import EARLIEST, LATEST, Offsets
from tidelog.spark.read.data_loss import PartitionExtent, find_loss


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets of one partition that one Spark task reads: from ``start`` up to, not including, ``end``."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    start_epoch: int = -1
    """Leader epoch of the record before the range; -1: not known. If the log has another record there, the records of
    the range count as truncated."""
    end_epoch: int = -1
    """Highest leader epoch that a record of the range may have; -1: not known. A record with a later epoch has
    replaced another one."""

    @property
    def size(self) -> int:
        """Number of offsets in the range."""
        return self.end - self.start


def plan(
    extents: Sequence[PartitionExtent], starting: str | Offsets, ending: str | Offsets, fail_on_data_loss: bool
) -> list[Range]:
    """Return one range for each partition, from the place ``starting`` to the place ``ending``, in the order of
    ``extents``. Ranges are cut to the offsets that the logs hold, and empty ones are left out. Raises
    ``TIDELOG_OPTION`` if JSON offsets do not name exactly the partitions that are read, or a start is above its end;
    ``TIDELOG_DATA_LOSS`` if requested offsets are not in the log and ``fail_on_data_loss`` is set."""
    check_named("startingOffsets", starting, extents)
    check_named("endingOffsets", ending, extents)
    ranges = []
    for extent in extents:
        start = resolve(starting, extent)
        end = resolve(ending, extent)
        if start > end:
            raise SourceError(
                "TIDELOG_OPTION",
                f"{extent.topic}/{extent.partition}: startingOffsets is {start}, above endingOffsets, {end}",
            )
        if fail_on_data_loss and (error := find_loss(extent, start, end, seen=False)) is not None:
            raise error
        start, end = max(start, extent.start), min(end, extent.end)
        if start < end:
            ranges.append(
                Range(extent.topic, extent.topic_id, extent.partition, start, end, end_epoch=extent.end_epoch)
            )
    return ranges


def resolve(offsets: str | Offsets, extent: PartitionExtent) -> int:
    """Return the offset for which ``offsets`` stand in the partition of an extent: ``earliest`` is the extent's
    start, ``latest`` its end, and any other value is an offset itself."""
    words = {"earliest": extent.start, "latest": extent.end, EARLIEST: extent.start, LATEST: extent.end}
    wanted = offsets if isinstance(offsets, str) else offsets[extent.topic][extent.partition]
    return words[wanted] if wanted in words else int(wanted)


def check_named(name: str, offsets: str | Offsets, extents: Iterable[PartitionExtent]) -> None:
    """Raise ``TIDELOG_OPTION`` if ``offsets`` name a partition that is not in ``extents``, or leave one out. A word
    (``earliest``, ``latest``) is always valid. ``name`` is the option that the error names."""
    if isinstance(offsets, str):
        return
    read = {(extent.topic, extent.partition) for extent in extents}
    named = {(topic, partition) for topic, partitions in offsets.items() for partition in partitions}
    for found, what in ((sorted(read - named), "does not name"), (sorted(named - read), "names, but nobody reads,")):
        if found:
            places = ", ".join(f"{topic}/{partition}" for topic, partition in found)
            raise SourceError("TIDELOG_OPTION", f"{name} {what} {places}; it must name exactly what is read")


def cut(ranges: Sequence[Range], least: int, most: int = 0) -> list[Range]:
    """Cut ranges into pieces, one for each task, and return them in order, as Kafka's connector does. No piece has
    more than ``most`` offsets (0: no bound). If there are fewer than ``least`` pieces then, they are cut further, in
    proportion to their sizes, until there are about that many."""
    if most:
        ranges = [piece for each in ranges for piece in _pieces(each, -(-each.size // most))]
    total = sum(each.size for each in ranges)
    if len(ranges) >= least or not total:
        return list(ranges)
    counts = [max(1, min(each.size, -(-least * each.size // total))) for each in ranges]
    return [piece for each, count in zip(ranges, counts, strict=True) for piece in _pieces(each, count)]


def _pieces(whole: Range, count: int) -> list[Range]:
    """Cut a range into ``count`` pieces of equal length. Only the first piece keeps the start epoch, since the record
    before the others is not known."""
    return [
        replace(
            whole,
            start=whole.start + whole.size * n // count,
            end=whole.start + whole.size * (n + 1) // count,
            start_epoch=-1 if n else whole.start_epoch,
        )
        for n in range(count)
    ]
