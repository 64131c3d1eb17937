"""Plans a read whose beginning is in a table and whose rest is in the log. Pure. For each partition, a *join* is the
offset before which the table has every record. What is requested below it is read from the table's files, and the
rest from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.spark.errors import SourceError
from tidelog.spark.read.data_loss import PartitionExtent, find_loss
from tidelog.spark.read.ranges import Range
from tidelog.tables.commit_protocol import Archive, Marker, owner_of
from tidelog.tables.pinned import Footer, RowGroup

Partition = tuple[str, int]
"""Topic, and number of the partition."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a table has of a partition: the records from ``start`` up to the join, ``end``."""

    start: int
    end: int
    end_epoch: int
    """Leader epoch of the last record; -1: not known."""


def kept_of(marker: Marker, extents: Iterable[PartitionExtent]) -> dict[Partition, Kept]:
    """Return what a table has of the partitions that are read; a partition of which it has nothing is left out.
    Raises ``TIDELOG_HISTORY`` if the table is not known to have every record, and ``TIDELOG_TOPIC_CHANGED`` if it has
    those of an earlier topic of the same name."""
    archive = _archive(marker)
    found = {}
    for extent in extents:
        topic, partition = extent.topic, extent.partition
        start = archive.starts.get(topic, {}).get(partition)
        if start is None:
            continue
        if archive.topics.get(topic, owner_of(extent.topic_id)) != owner_of(extent.topic_id):
            raise SourceError(
                "TIDELOG_TOPIC_CHANGED",
                f"{topic} was deleted and created again: the table has the records of the earlier one. Read "
                "the topic without history, and the table by itself",
            )
        end = marker.offsets.get(topic, {}).get(partition)
        if end is None:
            raise SourceError(
                "TIDELOG_HISTORY", f"the table's marker is damaged: {topic}/{partition} has a start and no end"
            )
        found[topic, partition] = Kept(start, end, archive.epochs.get(topic, {}).get(partition, -1))
    return found


def _archive(marker: Marker) -> Archive:
    if marker.archive is None:
        raise SourceError(
            "TIDELOG_HISTORY",
            "the table is not known to have every record as the source has it. Such a table is written by a pipeline "
            "whose output is from an input with raw values and nothing else, or with the sink's option archive=true, "
            "from the first batch of its appId on",
        )
    return marker.archive


def check_files(marker: Marker, footers: Mapping[str, Footer], columns: Sequence[str]) -> SourceError | None:
    """Return a ``TIDELOG_DATA_LOSS`` error if a table's files have fewer rows than were committed, as after a
    rollback; None if they have all. ``footers`` are those of the files, by path. Raises ``TIDELOG_HISTORY`` if a file
    lacks one of the ``columns``, or if there are more rows."""
    for path, footer in footers.items():
        if missing := [name for name in columns if name not in footer.columns]:
            raise SourceError("TIDELOG_HISTORY", f"{path} has no column {', '.join(missing)}")
    committed = _archive(marker).rows
    there = sum(group.rows for footer in footers.values() for group in footer.groups)
    if there > committed:
        raise SourceError(
            "TIDELOG_HISTORY",
            f"the table has {there} rows, and {committed} were committed: others have written to it",
        )
    if there == committed:
        return None
    return SourceError(
        "TIDELOG_DATA_LOSS",
        f"the table has {there} of the {committed} rows that were committed: it was rolled back, or rows were "
        "deleted. Set failOnDataLoss=false to go on with what is there.",
    )


def whole(extent: PartitionExtent, kept: Kept | None) -> PartitionExtent:
    """Return the extent of table and log together."""
    if kept is None:
        return extent
    return replace(extent, start=min(kept.start, extent.start), end=max(kept.end, extent.end))


def cut_at_joins(
    ranges: Iterable[Range], kept: Mapping[Partition, Kept], extents: Iterable[PartitionExtent]
) -> tuple[list[Range], list[SourceError]]:
    """Cut ranges at the joins. Return the parts in order, each of which is either in the table or in the log, and an
    error for each part of which the log has not everything; of that the returned part is what it has. What lies
    before the first record of the table is read from the log, too."""
    logs = {(extent.topic, extent.partition): extent for extent in extents}
    parts: list[Range] = []
    losses: list[SourceError | None] = []
    for each in ranges:
        log, mine = logs[each.topic, each.partition], kept.get((each.topic, each.partition))
        if mine is None:
            parts.append(each)
            continue
        if log.end < min(mine.end, each.end):  # the log once had what the table has
            losses.append(find_loss(log, max(each.start, log.end), min(mine.end, each.end), seen=True))
        before = replace(each, end=min(each.end, mine.start))
        inside = replace(each, start=max(each.start, mine.start), end=min(each.end, mine.end))
        behind = replace(each, start=max(each.start, mine.end))
        if behind.start == mine.end:
            behind = replace(behind, start_epoch=mine.end_epoch)
        for part in (before, inside, behind):
            if part is not inside and part.start < part.end:
                losses.append(find_loss(log, part.start, part.end, seen=True))
                if part.start < log.start:
                    part = replace(part, start=log.start, start_epoch=-1)
                part = replace(part, end=min(part.end, log.end))
            if part.start < part.end:
                parts.append(part)
    return parts, [loss for loss in losses if loss is not None]


def in_table(part: Range, kept: Mapping[Partition, Kept]) -> bool:
    """Whether a part of ``cut_at_joins``, or a piece of one, is read from the table."""
    mine = kept.get((part.topic, part.partition))
    return mine is not None and mine.start <= part.start and part.end <= mine.end


def prune(footers: Iterable[Footer], part: Range) -> list[list[RowGroup]]:
    """Return the parts of files that can have records of a range, in groups: all records of a group have lower
    offsets than those of the next, so that each is sorted by itself."""
    found = [
        group
        for footer in footers
        for group in footer.groups
        if group.rows
        and (group.partitions is None or group.partitions[0] <= part.partition <= group.partitions[1])
        and _bounds(group)[0] < part.end
        and _bounds(group)[1] >= part.start
    ]
    groups: list[list[RowGroup]] = []
    last = -1
    for one in sorted(found, key=_bounds):
        first, end = _bounds(one)
        if groups and first <= last:
            groups[-1].append(one)
        else:
            groups.append([one])
        last = max(last, end)
    return groups


def _bounds(group: RowGroup) -> tuple[int, int]:
    """Return the first and the last offset that a part of a file can have."""
    return group.offsets or (0, 1 << 63)
