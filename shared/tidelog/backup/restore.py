"""Writes a backup into a new topic, each batch at its old offset, and reads it back.

Empty batches (``batches.py``) cover the offsets below the beginning of the source. So the new log begins at 0, and
every record has its old offset. During the restoration no record of the topic is deleted or compacted, and batches of
any size are accepted. The topic's own settings are put in force after everything has been read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import trio

from tidelog.backup.batches import as_copy, chunks, empty_batches, is_same
from tidelog.backup.check import chains_before, load_segment
from tidelog.backup.group_positions import set_positions
from tidelog.backup.manifest import BadBackup, Manifest, SavedPartition
from tidelog.backup.partition_writer import CHUNK_BATCHES, CHUNK_BYTES, PartitionWriter, check_target
from tidelog.backup.save import AT_ONCE, Progress
from tidelog.backup.store import BackupStore
from tidelog.batch.format import read_header
from tidelog.batch.sparse import MOST_BYTES
from tidelog.client.log import Log
from tidelog.errors import refuse
from tidelog.types import Buffer, Position
from tidelog.wire.messages import TopicInfo

PATIENCE_S = 60.0
"""Seconds without progress in a partition after which the run ends with an error; another run can continue there."""
MEANWHILE = {
    "cleanup": "delete",
    "retention_ms": "-1",
    "retention_bytes": "-1",
    "retention_records": "-1",
    "max_batch_bytes": str(MOST_BYTES),
}
"""Settings of the topic until everything is verified: nothing is deleted or compacted."""


@dataclass(slots=True)
class Restored:
    """The result of a run that restores: the numbers of offsets and bytes that it has written, and the groups whose
    positions were set."""

    topic: str
    offsets: int = 0
    bytes: int = 0
    groups: list[str] = field(default_factory=list)
    """Groups whose positions were set."""
    groups_refused: dict[str, str] = field(default_factory=dict)
    """Groups whose positions were not set, with the reason."""


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """The settings of a restoration, as the user gives them. ``name`` is that of the new topic.
    ``replication_factor`` 0: as in the backup. ``config``: settings that differ from the backup's. ``resume``:
    continue an unfinished run. ``groups``: set the positions of consumer groups, too."""

    name: str
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    resume: bool = False
    groups: bool = False


class Restoring:
    """One run that restores a backup into a topic: it writes all batches, verifies them, and then puts the topic's
    settings in force."""

    def __init__(self, log: Log, store: BackupStore, manifest: Manifest, settings: RestoreSettings) -> None:
        self._log = log
        self._store = store
        self._manifest = manifest
        self._settings = settings
        self._restored = Restored(settings.name)

    async def run(self, written: Progress, verified: Progress) -> Restored:
        """Create the topic (with ``resume``: find it), write all batches of the backup, read them back, compare them,
        put the topic's own settings in force, and return what was written. The callbacks get the numbers of further
        offsets and bytes that were written, and that were compared. Raises ``BadBackup`` if the backup is damaged or
        the topic is no copy of it, ``TOPIC_EXISTS``, ``ConfigError``, and other errors of the cluster."""
        wanted = self._manifest.config | dict(self._settings.config)
        check_target(self._settings.name, wanted)
        topic = await self._topic(wanted)
        await self._try_rights(topic)
        limit = trio.CapacityLimiter(AT_ONCE)

        async def one(saved: SavedPartition) -> None:
            async with limit:
                target = PartitionWriter(self._log, topic, saved.partition, PATIENCE_S)
                try:
                    await self._restore(target, saved, written, verified)
                finally:
                    target.close()

        async with trio.open_nursery() as nursery:
            for saved in self._manifest.partitions:
                nursery.start_soon(one, saved)
        await self._log.topics.alter(topic.name, {name: wanted[name] for name in MEANWHILE if name in wanted})
        if self._settings.groups:
            ends = {saved.partition: saved.end_offset for saved in self._manifest.partitions}
            refused = await set_positions(self._log, topic, self._manifest.groups, ends)
            self._restored.groups = [group for group in sorted(self._manifest.groups) if group not in refused]
            self._restored.groups_refused = refused
        return self._restored

    async def _topic(self, wanted: Mapping[str, str]) -> TopicInfo:
        """Return the topic to restore to: a new one, or with ``resume`` the existing one. Raises ``TOPIC_EXISTS`` if
        the topic exists and is not that of an unfinished restoration, and ``BadBackup`` if it has another number of
        partitions."""
        name, count = self._settings.name, len(self._manifest.partitions)
        if self._settings.resume:
            topic = await self._log.topics.describe(name)
            if len(topic.partitions) != count:
                raise BadBackup(f"{name} has {len(topic.partitions)} partitions, the backup {count}")
            if any(topic.config.get(key) != text for key, text in MEANWHILE.items()):
                raise refuse("TOPIC_EXISTS", f"{name} is not a topic whose restore was not finished")
            return topic
        factor = self._settings.replication_factor or self._manifest.replication_factor
        config = dict(wanted) | MEANWHILE
        return await self._log.topics.create(name, partitions=count, replication_factor=factor, config=config)

    async def _try_rights(self, topic: TopicInfo) -> None:
        """Alter the topic's settings and read from it, so that ``FORBIDDEN`` is raised before anything is written."""
        await self._log.topics.alter(topic.name, MEANWHILE)
        await self._log.read_batches(topic.topic_id, 0, Position(-1, 0), max_bytes=1)

    async def _restore(
        self, target: PartitionWriter, saved: SavedPartition, written: Progress, verified: Progress
    ) -> None:
        """Verify the batches that the partition has already, write the rest of the backup, and verify the whole
        partition. Raises ``BadBackup`` if the partition is no copy of the backup."""
        end = await target.fetch_end()
        if end > saved.end_offset:
            raise BadBackup(f"{target.name} ends at {end}, the backup at {saved.end_offset}: it is not a copy of it")
        await self._verify(target, saved, end, lambda *_: None)
        done = end
        for batches in self._blocks(saved, end, saved.end_offset):
            new = await trio.to_thread.run_sync(_copies, batches, end)
            for chunk in chunks(new, CHUNK_BYTES, CHUNK_BATCHES):
                await target.put(chunk)
                last = _end_of(chunk)
                size = sum(map(len, chunk))
                written(last - done, size)
                self._restored.offsets += last - done
                self._restored.bytes += size
                done = last
        await self._verify(target, saved, saved.end_offset, verified)

    async def _verify(self, target: PartitionWriter, saved: SavedPartition, end: int, verified: Progress) -> None:
        """Read the partition from offset 0 up to ``end`` (exclusive), and compare each batch with the backup. Raises
        ``BadBackup`` at the first difference. ``verified`` is called with the progress."""
        at = 0
        found: Iterator[Buffer] = iter(())
        for batches in self._blocks(saved, 0, end):
            for copy in await trio.to_thread.run_sync(_copies, batches, 0):
                if at >= end:
                    return
                got = next(found, None)
                if got is None:
                    read = await target.read(at, CHUNK_BYTES)
                    verified(0, sum(len(batch) for _, batch in read))
                    found = iter([batch for _, batch in read])
                    got = next(found)
                if not is_same(copy, got):
                    raise BadBackup(f"{target.name} is not the same as the backup from offset {at} on")
                last = _end_of([copy])
                verified(last - at, 0)
                at = last

    def _blocks(self, saved: SavedPartition, start: int, end: int) -> Iterator[_Block]:
        """Yield the parts of the backup that overlap the offsets from ``start`` up to ``end`` (exclusive), in
        order."""
        if start < saved.start and end > 0:
            yield _Block(self._store, saved, -1)
        for number, segment in enumerate(saved.segments):
            if start < segment.end and segment.start < end:
                yield _Block(self._store, saved, number)


@dataclass(frozen=True, slots=True)
class _Block:
    """One part of a partition's backup: the segment with index ``number``, or, if that is -1, the offsets below the
    first segment."""

    store: BackupStore
    saved: SavedPartition
    number: int

    def batches(self) -> Iterator[Buffer]:
        """Return the batches of the part, as they are written into the new log. Reads and checks the file of a
        segment, which blocks; raises ``BadBackup`` if the file is missing or wrong."""
        if self.number < 0:
            return empty_batches(0, self.saved.start)
        chain = chains_before(self.saved)[self.number]
        return map(as_copy, load_segment(self.store, self.saved.segments[self.number], chain))


def _copies(block: _Block, start: int) -> list[Buffer]:
    """Return the batches of a part whose base offset is at least ``start``, as they are written into the new log.
    Blocks while the file is read; raises ``BadBackup`` if it is missing or wrong."""
    return [copy for copy in block.batches() if read_header(copy).base_offset >= start]


def _end_of(chunk: list[Buffer]) -> int:
    return read_header(chunk[-1]).end_offset
