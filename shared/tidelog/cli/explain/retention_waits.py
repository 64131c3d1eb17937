"""Retention that waits for consumer groups: how far each group has read, what the logs keep for it, and what was
deleted unread. For ``tidelog doctor`` and the commands that describe a topic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import TidelogError
from tidelog.quantities import counted

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.types import Position
    from tidelog.wire.messages import PartitionInfo, TopicInfo

_SAMPLE = re.compile(r"^tidelog_partition_retention_wait_(bytes|ratio)\{([^}]*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class AwaitedGroup:
    """A consumer group that retention of a partition waits for. ``position`` is the group's committed position, -1 if
    it has none or ``error`` says why it is not known."""

    topic: str
    partition: int
    group: str
    position: int
    log_start: int
    high_watermark: int
    error: str = ""

    @property
    def behind(self) -> int:
        """Return how many offsets below the high watermark the group has not read; -1 if that is not known."""
        return -1 if -1 in (self.position, self.high_watermark) else max(0, self.high_watermark - self.position)

    @property
    def lost(self) -> int:
        """Return how many offsets between the group's position and the log start are deleted; 0 if none is."""
        return max(0, self.log_start - self.position) if self.position >= 0 else 0


@dataclass(frozen=True, slots=True)
class KeptForGroup:
    """What a partition keeps only because its retention waits for the slowest group, as its leader reports: bytes,
    and the share of the wait's bound that is used, 0 to 1."""

    topic: str
    partition: int
    group: str
    held_bytes: float
    share: float


def kept_in(pages: Sequence[str]) -> tuple[KeptForGroup, ...]:
    """Parse the metrics pages of replica servers, and return what their logs keep for groups."""
    found: dict[tuple[str, int, str], dict[str, float]] = {}
    for page in pages:
        for kind, text, value in _SAMPLE.findall(page):
            labels = dict(_LABEL.findall(text))
            key = labels["topic"], int(labels["partition"]), labels["group"]
            found.setdefault(key, {})[kind] = float(value)
    return tuple(
        KeptForGroup(*key, values.get("bytes", 0.0), values.get("ratio", 0.0))
        for key, values in sorted(found.items())
    )


def awaited_names(topic: TopicInfo) -> tuple[str, ...]:
    """Return the names of the groups that retention of a topic waits for."""
    return tuple(filter(None, topic.config.get("retention_waits_for", "").split(",")))


async def ask_awaited(log: Log, topic: TopicInfo) -> tuple[AwaitedGroup, ...]:
    """Ask how far the groups have read that retention of a topic waits for, and return the answers for each of its
    partitions. ``topic`` is described with the ends of its logs."""
    found: list[AwaitedGroup] = []
    for group in awaited_names(topic):
        positions: Mapping[int, Position] = {}
        error = ""
        try:
            positions = await log.groups.fetch_offsets(group, topic.name)
        except TidelogError as failed:
            error = str(failed)
        found += (_awaited(topic, one, group, positions.get(one.partition), error) for one in topic.partitions)
    return tuple(found)


def _awaited(
    topic: TopicInfo, partition: PartitionInfo, group: str, position: Position | None, error: str
) -> AwaitedGroup:
    offset = -1 if position is None else position.offset
    ends = partition.log_start, partition.high_watermark
    return AwaitedGroup(topic.name, partition.partition, group, offset, *ends, error)


def awaited_in_words(partition: int, awaited: Sequence[AwaitedGroup]) -> Iterator[str]:
    """Yield in words for which groups retention of a partition waits, and how far each has read."""
    for one in awaited:
        if one.partition != partition:
            continue
        if one.error:
            yield f"retention waits for {one.group}; how far it has read is not known: {one.error}"
        elif one.position < 0:
            yield f"retention waits for {one.group}, which has no position here"
        elif one.lost:
            yield lost_in_words(one)
        else:
            yield (
                f"retention waits for {one.group}, which has read up to offset {one.position}:"
                f" {counted(one.behind, 'record')} behind"
            )


def lost_in_words(one: AwaitedGroup) -> str:
    """Return in words which offsets were deleted before a group had read them."""
    return f"offsets {one.position} to {one.log_start - 1} are deleted, and {one.group} has not read them"
