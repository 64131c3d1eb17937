"""The offset that Spark's checkpoint stores for a micro-batch: how it is written as JSON, and how a batch of limited
size is shared among the partitions. Pure.

A *checkpoint offset* is a position (leader epoch, offset) for every partition. Spark compares checkpoint offsets as
texts, so equal ones must be equal texts: keys are sorted. Spark stores the *end* of a batch. After a restart it asks
again for the start of the first batch, and by then ``latest`` is another position. So the end of the first batch also
holds its start (``since``), and the first batch is replayed from the planned start whatever a restarted query
gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidelog.spark.errors import SourceError
from tidelog.spark.read.data_loss import PartitionExtent
from tidelog.types import Position

VERSION = 1
BEGIN = Position(-1, 0)
"""Where a stream begins to read a partition that was created after the query started: at offset 0."""


class Key(NamedTuple):
    """The key of a partition in a checkpoint offset: topic, number, and the topic's id, so that a topic that was
    deleted and created again has other keys."""

    topic: str
    partition: int
    topic_id: str


def key_of(extent: PartitionExtent) -> Key:
    """Return the key of the partition that an extent describes."""
    return Key(extent.topic, extent.partition, extent.topic_id)


@dataclass(frozen=True, slots=True)
class CheckpointOffset:
    """A position for every partition, as Spark's checkpoint stores it: the end of a micro-batch, or the start of the
    query if ``first``. ``since`` is the start of the first batch, in the end of that batch only."""

    at: Mapping[Key, Position] = field(default_factory=dict)
    first: bool = False
    since: CheckpointOffset | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint offset as the JSON object that Spark stores; equal checkpoint offsets give equal
        objects."""
        fields: dict[str, Any] = {}
        if self.first:
            fields["first"] = True
        if self.since is not None:
            fields["since"] = self.since._topics()
        return fields | {"topics": self._topics(), "version": VERSION}

    def _topics(self) -> dict[str, Any]:
        """Return the positions as the JSON object ``topics``: name -> id, and epoch and offset by partition."""
        topics: dict[str, Any] = {}
        for key, position in sorted(self.at.items()):
            topic = topics.setdefault(key.topic, {"id": key.topic_id, "partitions": {}})
            topic["partitions"][str(key.partition)] = {"epoch": position.leader_epoch, "offset": position.offset}
        return topics

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> CheckpointOffset:
        """Return the checkpoint offset that ``to_json`` wrote as this JSON object. Raises ``TIDELOG_OPTION`` if
        another source, or a version with another format, wrote the object."""
        if fields.get("version") != VERSION:
            raise SourceError("TIDELOG_OPTION", f"the checkpoint is of another source or version: {fields}")
        since = fields.get("since")
        return cls(
            _places(fields["topics"]), fields.get("first", False), None if since is None else cls(_places(since))
        )

    def start_of(self, key: Key) -> Position:
        """Return the position up to which a partition was read, at which the next batch begins; ``BEGIN`` (offset 0)
        if the checkpoint does not have the partition."""
        return self.at.get(key, BEGIN)

    def behind(self, key: Key, end: int) -> int:
        """Return how many offsets the ``end`` of a partition's log is ahead of this checkpoint offset; 0 for a log
        that ends below it."""
        return max(0, end - self.start_of(key).offset)


def _places(topics: Mapping[str, Any]) -> dict[Key, Position]:
    """Return the positions that the JSON object ``topics`` of a checkpoint offset holds."""
    return {
        Key(name, int(partition), topic["id"]): Position(at["epoch"], at["offset"])
        for name, topic in topics.items()
        for partition, at in topic["partitions"].items()
    }


def share(sizes: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """Distribute a batch of at most ``limit`` records over the partitions. ``sizes`` is the number of records that
    each partition has left. Every partition with records gets one, the longest first if ``limit`` is smaller than
    their number, so that none starves; the rest is divided in proportion to the sizes. Returns the number of records
    by partition, without partitions that get none. If everything fits, every partition gets its whole size."""
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
