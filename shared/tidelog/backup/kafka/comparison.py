"""Compares topics of Kafka with their copies in Tidelog, record by record: both sides are read from the beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import cbor2
import trio
from trio.to_thread import run_sync as in_thread

from tidelog.backup.kafka.batches import Row
from tidelog.backup.kafka.cluster import KafkaCluster
from tidelog.backup.kafka.importer import PartitionImport, rows_in
from tidelog.backup.kafka.reader import Chunk, Key
from tidelog.client.log import Log
from tidelog.types import Position
from tidelog.wire.messages import TopicInfo

READ_BYTES = 1 << 20
"""Most bytes in one answer of Tidelog."""
CHECKSUM_BYTES = 8


@dataclass(slots=True)
class PartitionComparison:
    """What a comparison has found in one partition, between the offsets ``start`` and ``end`` (exclusive)."""

    name: str
    start: int
    end: int
    records: int = 0
    """Number of records that are the same on both sides."""
    only_in_kafka: int = 0
    only_in_tidelog: int = 0
    differs_at: int = -1
    """Offset of the first record that both sides have and that differs; -1 if there is none."""
    _sums: tuple[blake2b, blake2b] = field(
        default_factory=lambda: (blake2b(digest_size=CHECKSUM_BYTES), blake2b(digest_size=CHECKSUM_BYTES))
    )

    def add(self, there: Sequence[Row], here: Sequence[Row]) -> None:
        """Count the next records of Kafka and of Tidelog, which lie between the same offsets."""
        data = b"".join(map(cbor2.dumps, there))
        is_same = there == here
        self._sums[0].update(data)
        self._sums[1].update(data if is_same else b"".join(map(cbor2.dumps, here)))
        if is_same:
            self.records += len(there)
            return
        theirs, ours = dict(there), dict(here)
        both = theirs.keys() & ours.keys()
        different = sorted(offset for offset in both if theirs[offset] != ours[offset])
        self.records += len(both) - len(different)
        self.only_in_kafka += len(theirs) - len(both)
        self.only_in_tidelog += len(ours) - len(both)
        if different and self.differs_at < 0:
            self.differs_at = different[0]

    @property
    def checksums(self) -> tuple[str, str]:
        """Return the BLAKE2b checksums of all records, with offsets, timestamps and headers: Kafka's and
        Tidelog's."""
        return self._sums[0].hexdigest(), self._sums[1].hexdigest()

    def is_copy(self, *, compacted: bool) -> bool:
        """Return whether Tidelog has what Kafka has. ``compacted``: records may be missing on either side, because
        each compacts its log when it likes."""
        return self.differs_at < 0 and (compacted or self.only_in_kafka == self.only_in_tidelog == 0)


class KafkaComparison:
    """Reads both sides of copied partitions and compares them, up to where the copy ends."""

    def __init__(self, kafka: KafkaCluster, log: Log, topics: dict[str, TopicInfo]) -> None:
        self._kafka = kafka
        self._log = log
        self._topics = topics
        self.partitions: dict[Key, PartitionComparison] = {}

    def is_compacted(self, topic: str) -> bool:
        """Return whether the topic is compacted in Tidelog, as an import makes it where it is in Kafka."""
        return "compact" in self._topics[topic].config.get("cleanup", "")

    @property
    def differences(self) -> list[PartitionComparison]:
        """Return the partitions that are no copies of Kafka's."""
        return [
            each for key, each in self.partitions.items() if not each.is_copy(compacted=self.is_compacted(key[0]))
        ]

    async def run(self, copied: Sequence[PartitionImport], done: Callable[[int], None]) -> None:
        """Compare these partitions from the later of both beginnings up to the end of the copy. ``done`` gets the
        number of further offsets that were compared. Raises the errors of both clusters."""
        starts = await in_thread(self._kafka.offsets, [each.key for each in copied], "earliest")
        sides: dict[Key, _TidelogRows] = {}
        for each in copied:
            topic = self._topics[each.key[0]]
            here = (await self._log.partitions.list_offsets(topic, "earliest", [each.key[1]]))[each.key[1]].offset
            start = max(starts[each.key], here)
            self.partitions[each.key] = PartitionComparison(each.name, start, each.end)
            if start < each.end:
                sides[each.key] = _TidelogRows(self._log, topic, each.key[1], start)
        left = {key: self.partitions[key] for key in sides}
        if not left:
            return
        reader = await in_thread(self._kafka.reader, {key: each.start for key, each in left.items()})
        try:
            while left:
                for key, chunk in (await in_thread(reader.read)).items():
                    if key in left:
                        before = sides[key].at
                        await self._compare(left[key], sides[key], chunk)
                        done(sides[key].at - before)
                if over := [key for key, each in left.items() if sides[key].at >= each.end]:
                    await in_thread(reader.pause, over)
                for key in over:
                    del left[key]
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(reader.close)

    async def _compare(self, found: PartitionComparison, ours: _TidelogRows, chunk: Chunk) -> None:
        """Compare a chunk of Kafka's records with those of Tidelog at the same offsets."""
        until = min(chunk.reached, found.end)
        there = [row for row in chunk.rows if ours.at <= row[0] < until]
        here = await ours.up_to(until)
        await in_thread(found.add, there, here)


class _TidelogRows:
    """The records of a partition of Tidelog, from an offset on. ``at``: the offset up to which they were returned."""

    def __init__(self, log: Log, topic: TopicInfo, partition: int, start: int) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._read_to = self.at = start
        self._rows: list[Row] = []

    async def up_to(self, offset: int) -> list[Row]:
        """Return the records from ``at`` up to ``offset`` (exclusive), which the log has. Raises as
        ``Log.read_batches`` does."""
        while self._read_to < offset:
            at = Position(-1, self._read_to)
            _, batches = await self._log.read_batches(
                self._topic.topic_id, self._partition, at, max_bytes=READ_BYTES, wait_s=1.0
            )
            for header, batch in batches:
                self._rows += [row for row in rows_in(batch) if row[0] >= self.at]
                self._read_to = header.end_offset
        found = [row for row in self._rows if row[0] < offset]
        self._rows = self._rows[len(found) :]
        self.at = max(self.at, offset)
        return found
