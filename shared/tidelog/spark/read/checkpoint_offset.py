"""Where a micro-batch begins and ends, as stored in Spark's checkpoint. Pure.

A *checkpoint offset* is a position (leader epoch, offset) for every partition. Spark compares checkpoint offsets as
texts, so equal ones must be equal texts: keys are sorted. Spark stores the *end* of a batch. After a restart it asks
again for the start of the first batch, and by then ``latest`` is another position. So the end of the first batch also
holds its start (``since``), and the first batch is replayed from the planned start whatever a restarted query gets.
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
"""Where a partition begins that was created after the query: at its first record ever."""


class Key(NamedTuple):
    """A partition of a topic, identified by the topic's id as well as its name."""

    topic: str
    partition: int
    topic_id: str


def key_of(extent: PartitionExtent) -> Key:
    """Return the partition of an extent."""
    return Key(extent.topic, extent.partition, extent.topic_id)


@dataclass(frozen=True, slots=True)
class CheckpointOffset:
    """A position for every partition, as Spark's checkpoint stores it. ``first``: it is the start of a query that has
    no end yet."""

    at: Mapping[Key, Position] = field(default_factory=dict)
    first: bool = False
    since: CheckpointOffset | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the text that Spark stores."""
        fields: dict[str, Any] = {}
        if self.first:
            fields["first"] = True
        if self.since is not None:
            fields["since"] = self.since._topics()
        return fields | {"topics": self._topics(), "version": VERSION}

    def _topics(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for key, position in sorted(self.at.items()):
            topic = topics.setdefault(key.topic, {"id": key.topic_id, "partitions": {}})
            topic["partitions"][str(key.partition)] = {"epoch": position.leader_epoch, "offset": position.offset}
        return topics

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> CheckpointOffset:
        """Parse a text of ``to_json``. Raises ``TIDELOG_OPTION`` if this version cannot read it."""
        if fields.get("version") != VERSION:
            raise SourceError("TIDELOG_OPTION", f"the checkpoint is of another source or version: {fields}")
        since = fields.get("since")
        return cls(
            _places(fields["topics"]), fields.get("first", False), None if since is None else cls(_places(since))
        )

    def start_of(self, key: Key) -> Position:
        """Return where reading of a partition continues."""
        return self.at.get(key, BEGIN)

    def behind(self, extents: Iterable[PartitionExtent]) -> int:
        """Return the number of offsets in the log above the checkpoint offset."""
        return sum(max(0, extent.end - self.start_of(key_of(extent)).offset) for extent in extents)


def _places(topics: Mapping[str, Any]) -> dict[Key, Position]:
    return {
        Key(name, int(partition), topic["id"]): Position(at["epoch"], at["offset"])
        for name, topic in topics.items()
        for partition, at in topic["partitions"].items()
    }


def share(sizes: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """Distribute a batch of ``limit`` records over the partitions: one record of each, the longest first, and the
    rest in proportion to what there is. So no partition starves, and no more than ``limit`` records are read."""
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
