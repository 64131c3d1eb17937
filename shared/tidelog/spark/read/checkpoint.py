"""Where a micro-batch begins and ends, as it stands in Spark's checkpoint. Pure.

A *mark* is a position (leader epoch, offset) for every partition. Spark compares marks as texts, so equal marks are
equal texts: keys are sorted. What it checkpoints is the *end* of a batch; the start of the first one it asks for
again, and ``latest`` is then another place. So the end of the first batch holds its start too (``since``): whatever a
restarted query is told, the first batch is replayed from where it was planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidelog.spark.errors import SourceError
from tidelog.spark.read.data_loss import PartitionExtent
from tidelog.types import Position

VERSION = 1
BEGIN = Position(-1, 0)
"""Where a partition begins that came later than the query: at its first record ever."""


class Key(NamedTuple):
    """A partition of a topic: one of that name and no other."""

    topic: str
    partition: int
    topic_id: str


def key_of(extent: PartitionExtent) -> Key:
    """The partition that an extent is of."""
    return Key(extent.topic, extent.partition, extent.topic_id)


@dataclass(frozen=True, slots=True)
class CheckpointOffset:
    """A position for every partition, as Spark's checkpoint has it. ``first``: it is the start of a query that has no
    end yet."""

    at: Mapping[Key, Position] = field(default_factory=dict)
    first: bool = False
    since: CheckpointOffset | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        told: dict[str, Any] = {}
        if self.first:
            told["first"] = True
        if self.since is not None:
            told["since"] = self.since._topics()
        return told | {"topics": self._topics(), "version": VERSION}

    def _topics(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for key, position in sorted(self.at.items()):
            topic = topics.setdefault(key.topic, {"id": key.topic_id, "partitions": {}})
            topic["partitions"][str(key.partition)] = {"epoch": position.leader_epoch, "offset": position.offset}
        return topics

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CheckpointOffset:
        """What ``to_json`` gave. Raises ``TIDELOG_OPTION`` for what this version cannot read."""
        if told.get("version") != VERSION:
            raise SourceError("TIDELOG_OPTION", f"the checkpoint is of another source or version: {told}")
        since = told.get("since")
        return cls(_places(told["topics"]), told.get("first", False), None if since is None else cls(_places(since)))

    def start_of(self, key: Key) -> Position:
        """Where a partition is read on."""
        return self.at.get(key, BEGIN)

    def behind(self, extents: Iterable[PartitionExtent]) -> int:
        """Offsets that are in the log and above the mark."""
        return sum(max(0, extent.end - self.start_of(key_of(extent)).offset) for extent in extents)


def _places(topics: Mapping[str, Any]) -> dict[Key, Position]:
    return {
        Key(name, int(partition), topic["id"]): Position(at["epoch"], at["offset"])
        for name, topic in topics.items()
        for partition, at in topic["partitions"].items()
    }


def share(sizes: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """How much of each partition goes into a batch of ``limit`` records: one of each, the longest first, and the rest
    in proportion to what there is. So none waits for ever, and no more than ``limit`` are read."""
    waiting = {key: size for key, size in sizes.items() if size > 0}
    if sum(waiting.values()) <= limit:
        return waiting
    taken = dict.fromkeys(sorted(waiting, key=lambda key: (-waiting[key], key))[:limit], 1)
    rest = limit - len(taken)
    left = {key: waiting[key] - 1 for key in taken}
    total, seen, given = sum(left.values()), 0, 0
    for key, size in sorted(left.items()):
        seen += size
        upto = rest * seen // total if total else 0
        taken[key] += upto - given
        given = upto
    return taken
