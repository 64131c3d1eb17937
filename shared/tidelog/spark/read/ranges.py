"""Which offsets are read, and by which task. Pure. A range is half-open, from ``start`` up to before ``end``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import EARLIEST, LATEST, Offsets
from tidelog.spark.read.data_loss import PartitionExtent, lost


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition that one Spark task reads."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    start_epoch: int = -1
    """Leader epoch of the record before the range, -1: not known. The log must continue it."""
    end_epoch: int = -1
    """Highest leader epoch that a record of the range may have, -1: not known. A record with a later one has replaced
    another."""

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end - self.start


def plan(
    extents: Sequence[PartitionExtent], starting: str | Offsets, ending: str | Offsets, fail_on_data_loss: bool
) -> list[Range]:
    """Return the ranges to read, in the order of the extents, without empty ones. Raises ``SourceError``:
    ``TIDELOG_OPTION`` if JSON offsets do not name exactly the partitions that are read, or a start is above its end;
    ``TIDELOG_DATA_LOSS`` if requested offsets are not in the log (unless that is allowed: then the others are
    read)."""
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
        if fail_on_data_loss and (error := lost(extent, start, end, seen=False)) is not None:
            raise error
        start, end = max(start, extent.start), min(end, extent.end)
        if start < end:
            ranges.append(
                Range(extent.topic, extent.topic_id, extent.partition, start, end, end_epoch=extent.end_epoch)
            )
    return ranges


def resolve(offsets: str | Offsets, extent: PartitionExtent) -> int:
    """Return the offset that a place means."""
    words = {"earliest": extent.start, "latest": extent.end, EARLIEST: extent.start, LATEST: extent.end}
    wanted = offsets if isinstance(offsets, str) else offsets[extent.topic][extent.partition]
    return words[wanted] if wanted in words else int(wanted)


def check_named(name: str, offsets: str | Offsets, extents: Iterable[PartitionExtent]) -> None:
    """Raise ``TIDELOG_OPTION`` unless exactly these partitions are named, or none."""
    if isinstance(offsets, str):
        return
    read = {(extent.topic, extent.partition) for extent in extents}
    named = {(topic, partition) for topic, partitions in offsets.items() for partition in partitions}
    for found, what in ((sorted(read - named), "does not name"), (sorted(named - read), "names, but nobody reads,")):
        if found:
            places = ", ".join(f"{topic}/{partition}" for topic, partition in found)
            raise SourceError("TIDELOG_OPTION", f"{name} {what} {places}; it must name exactly what is read")


def cut(ranges: Sequence[Range], least: int, most: int = 0) -> list[Range]:
    """Cut ranges as Kafka's connector does: none has more than ``most`` records (0: no bound), and large ranges are
    cut further until there are about ``least``. Every range gets pieces in proportion to its size, at least one."""
    if most:
        ranges = [piece for each in ranges for piece in _pieces(each, -(-each.size // most))]
    total = sum(each.size for each in ranges)
    if len(ranges) >= least or not total:
        return list(ranges)
    counts = [max(1, min(each.size, -(-least * each.size // total))) for each in ranges]
    return [piece for each, count in zip(ranges, counts, strict=True) for piece in _pieces(each, count)]


def _pieces(whole: Range, count: int) -> list[Range]:
    """Cut a range into pieces of equal length."""
    return [
        replace(
            whole,
            start=whole.start + whole.size * n // count,
            end=whole.start + whole.size * (n + 1) // count,
            start_epoch=-1 if n else whole.start_epoch,
        )
        for n in range(count)
    ]
