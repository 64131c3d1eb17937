"""Which offsets are read, and by which task. Pure: a range is half-open, from ``start`` up to before ``end``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.spark.errors import SourceError, data_loss
from tidelog.spark.options import EARLIEST, LATEST, Offsets


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition; what one Spark task reads."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Extent:
    """What is in a partition's log now: records from ``start`` up to ``end`` are committed and there."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


def plan(
    extents: Sequence[Extent], starting: str | Offsets, ending: str | Offsets, fail_on_data_loss: bool
) -> list[Range]:
    """The ranges to read, in the order of the extents; empty ones are left out. Raises ``SourceError``:
    ``TIDELOG_OPTION`` when JSON offsets do not name exactly the partitions that are read or a start is above its
    end, ``TIDELOG_DATA_LOSS`` when offsets are asked for that are not in the log (unless that is allowed: then
    what is there is read)."""
    _check_named("startingOffsets", starting, extents)
    _check_named("endingOffsets", ending, extents)
    ranges = []
    for extent in extents:
        start = _resolve(starting, extent)
        end = _resolve(ending, extent)
        if start > end:
            raise SourceError(
                "TIDELOG_OPTION",
                f"{extent.topic}/{extent.partition}: startingOffsets is {start}, above endingOffsets, {end}",
            )
        if fail_on_data_loss:
            _check_there(extent, start, end)
        start, end = max(start, extent.start), min(end, extent.end)
        if start < end:
            ranges.append(Range(extent.topic, extent.topic_id, extent.partition, start, end))
    return ranges


def _resolve(offsets: str | Offsets, extent: Extent) -> int:
    words = {"earliest": extent.start, "latest": extent.end, EARLIEST: extent.start, LATEST: extent.end}
    wanted = offsets if isinstance(offsets, str) else offsets[extent.topic][extent.partition]
    return words[wanted] if wanted in words else int(wanted)


def _check_named(name: str, offsets: str | Offsets, extents: Iterable[Extent]) -> None:
    if isinstance(offsets, str):
        return
    read = {(extent.topic, extent.partition) for extent in extents}
    named = {(topic, partition) for topic, partitions in offsets.items() for partition in partitions}
    for found, what in ((sorted(read - named), "does not name"), (sorted(named - read), "names, but nobody reads,")):
        if found:
            places = ", ".join(f"{topic}/{partition}" for topic, partition in found)
            raise SourceError("TIDELOG_OPTION", f"{name} {what} {places}; it must name exactly what is read")


def _check_there(extent: Extent, start: int, end: int) -> None:
    if start < extent.start:
        missing = f"offsets {start} to {min(end, extent.start) - 1}"
        raise data_loss(extent.topic, extent.partition, missing, f"the log begins at {extent.start}")
    if end > extent.end:
        missing = f"offsets {max(start, extent.end)} to {end - 1}"
        raise data_loss(extent.topic, extent.partition, missing, f"the log ends at {extent.end}")


def cut(ranges: Sequence[Range], least: int) -> list[Range]:
    """Cut ranges, the large ones more often, until there are about ``least`` (as Kafka's connector does): every
    range gets pieces in proportion to its size, at least one."""
    total = sum(each.size for each in ranges)
    if len(ranges) >= least or not total:
        return list(ranges)
    pieces = [max(1, min(each.size, -(-least * each.size // total))) for each in ranges]
    return [
        replace(each, start=each.start + each.size * n // count, end=each.start + each.size * (n + 1) // count)
        for each, count in zip(ranges, pieces, strict=True)
        for n in range(count)
    ]


def extents_of(topic: str, topic_id: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Extent]:
    """What the leaders answered, as extents in the order of partitions."""
    return [Extent(topic, topic_id, p, starts[p], max(starts[p], ends[p])) for p in sorted(starts)]
