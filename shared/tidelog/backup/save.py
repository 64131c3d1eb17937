"""Saves the committed records of a topic as files: what the backup lacks, up to the present end of each partition.

It reads as any consumer does, so producers need not stop, and access rules apply. Of transactions it reads what is
decided: up to the last stable offset, with an empty batch for each that was aborted. Batches are kept byte for byte,
so the log's hash chain can be computed from the files, before and after compaction. At the end of each partition the
chain is compared with that of a replica, so a backup that was written has been verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

import trio

from tidelog.backup.group_positions import positions_in
from tidelog.backup.manifest import (
    MANIFEST,
    UNFINISHED,
    BadBackup,
    Manifest,
    SavedPartition,
    SavedSegment,
    segment_name,
)
from tidelog.backup.store import BackupStore
from tidelog.batch.format import BatchHeader, chain_after, check_batch
from tidelog.client.log import Log
from tidelog.errors import TidelogError, refuse
from tidelog.types import Position
from tidelog.wire.messages import DigestAnswer, TopicInfo

AT_ONCE = 4
"""Number of partitions that are copied at a time."""
SEGMENT_BYTES = 32 << 20
"""Size in bytes at which a file is closed."""
READ_BYTES = 4 << 20
"""Most bytes in one answer of the cluster."""

Progress = Callable[[int, int], None]
"""A callback for progress (offsets, bytes): gets the numbers of further offsets and bytes that are done."""


@dataclass(slots=True)
class Saved:
    """The result of a run that saves: the manifest, and the numbers of offsets, bytes and files that the run has
    added."""

    manifest: Manifest
    offsets: int = 0
    bytes: int = 0
    segments: int = 0


@dataclass(slots=True)
class _OpenSave:
    """The segment of a partition that is being filled, in memory. ``chain`` is the hash chain of the log up to the
    segment's present end."""

    start: int
    chain: bytes
    size: int = 0
    batches: list[tuple[BatchHeader, memoryview]] = field(default_factory=list)

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Append a batch to the segment, and continue the hash chain over it."""
        self.batches.append((header, batch))
        self.chain = chain_after(self.chain, batch)
        self.size += len(batch)

    def close(self, partition: int) -> tuple[SavedSegment, bytes]:
        """Return the description of the segment for the manifest, and the bytes of its file. Writes nothing. The
        segment must not be empty."""
        headers = [header for header, _ in self.batches]
        data = b"".join(batch for _, batch in self.batches)
        first, last = headers[0], headers[-1]
        saved = SavedSegment(
            file=segment_name(partition, self.start, last.end_offset),
            start=self.start,
            end=last.end_offset,
            bytes=len(data),
            batches=len(headers),
            sha256=sha256(data).hexdigest(),
            chain=self.chain.hex(),
            epochs=(first.leader_epoch, last.leader_epoch),
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            largest_batch=max(header.batch_length for header in headers),
        )
        return saved, data


class Saving:
    """One run that saves a topic into a backup, a new one or one that it continues. A segment is in memory until it
    has about ``segment_bytes``; then its file is written."""

    def __init__(self, log: Log, store: BackupStore, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._log = log
        self._store = store
        self._segment_bytes = segment_bytes
        self._writing = trio.Lock()

    async def run(self, name: str, *, groups: bool, begun: Progress, done: Progress) -> Saved:
        """Save the records of the topic that the backup lacks, up to the present end of each partition, and return
        the manifest with what was added. ``groups``: also save the positions that consumer groups have in the topic.
        ``begun`` is called once with the number of offsets to save (and 0 bytes), ``done`` with the numbers of
        further offsets and bytes. Raises ``BadBackup`` if the folder has another topic's backup or the log no longer
        matches the files, and errors of the cluster."""
        topic = await self._log.topics.describe(name)
        manifest = await self._begin(topic)
        if groups:  # before the records are read, so that no position is above them
            manifest.groups = await positions_in(self._log, topic)
        ends = {
            p: at.offset
            for p, at in (await self._log.partitions.list_offsets(topic, "latest", self._numbers(topic))).items()
        }
        new = self._numbers(topic)[len(manifest.partitions) :]
        for number, first in (await self._log.partitions.list_offsets(topic, "earliest", new)).items():
            entry = (await self._digest(topic, number, first.offset)).entries[0]
            manifest.partitions.append(SavedPartition(number, entry.boundary, entry.chain.hex()))
        saved = Saved(manifest)
        begun(sum(max(0, ends[each.partition] - each.end_offset) for each in manifest.partitions), 0)
        limit = trio.CapacityLimiter(AT_ONCE)

        async def one(partition: SavedPartition) -> None:
            async with limit:
                await self._save(topic, saved, partition, ends[partition.partition], done)

        async with trio.open_nursery() as nursery:
            for partition in manifest.partitions:
                nursery.start_soon(one, partition)
        manifest.saved = datetime.now(UTC).isoformat(timespec="seconds")
        await self._write(MANIFEST, manifest.to_bytes())
        await trio.to_thread.run_sync(self._store.remove, UNFINISHED)
        return saved

    def _numbers(self, topic: TopicInfo) -> list[int]:
        return list(range(len(topic.partitions)))

    async def _begin(self, topic: TopicInfo) -> Manifest:
        """Return the manifest of the run: the partitions that the folder has already, with the present description of
        the topic. Raises ``BadBackup`` if the folder has the backup of another topic."""
        found = await trio.to_thread.run_sync(self._store.so_far)
        if found is not None and found.topic_id != topic.topic_id:
            raise BadBackup(
                f"{self._store.url} has a backup of {found.topic} with the id {found.topic_id} of cluster"
                f" {found.cluster}; {topic.name} is {topic.topic_id}: take another folder"
            )
        return Manifest(
            cluster=(await self._log.cluster.status()).cluster,
            topic=topic.name,
            topic_id=topic.topic_id,
            config=topic.config,
            replication_factor=max(len(partition.replicas) for partition in topic.partitions),
            partitions=[] if found is None else found.partitions,
            groups={} if found is None else found.groups,
        )

    async def _save(
        self, topic: TopicInfo, saved: Saved, partition: SavedPartition, end: int, done: Progress
    ) -> None:
        """Save a partition up to the offset ``end`` (exclusive): write the file of each full segment, and after it
        ``unfinished.json``. At the end, compare the hash chain with that of a replica. Raises ``BadBackup`` if the
        chains differ, or if the log ends below the saved records."""
        number = partition.partition
        if end < partition.end_offset:
            raise BadBackup(
                f"{topic.name}/{number} ends at {end}, and {partition.end_offset} is saved: the topic has lost"
                " records since ('tidelog why' says when). What is saved stays good; go on in another folder"
            )
        while partition.end_offset < end:
            segment = _OpenSave(partition.end_offset, bytes.fromhex(partition.end_chain))
            at = Position(partition.end_epoch, partition.end_offset)
            while at.offset < end and segment.size < self._segment_bytes:
                at = await self._read(topic, number, at, end, segment, done)
            closed, data = await trio.to_thread.run_sync(segment.close, number)
            await self._write(closed.file, data)
            partition.segments.append(closed)
            saved.segments += 1
            saved.offsets += closed.end - closed.start
            saved.bytes += closed.bytes
            async with self._writing:
                await self._write(UNFINISHED, saved.manifest.to_bytes())
        digest = await self._digest(topic, number, partition.end_offset)
        entry = digest.entries[0]
        if digest.log_start <= partition.end_offset and (entry.boundary, entry.chain.hex()) != (
            partition.end_offset,
            partition.end_chain,
        ):
            raise BadBackup(
                f"{topic.name}/{number}: what was read has another hash chain at {partition.end_offset} than the log"
                " that it was read from: 'tidelog verify replicas' compares the replicas. Save it into another folder"
            )

    async def _read(
        self, topic: TopicInfo, number: int, at: Position, end: int, segment: _OpenSave, done: Progress
    ) -> Position:
        """Read the next batches below ``end`` into the segment, and report the progress. Returns the position behind
        them; that is ``at`` if no batch came in time. Raises ``BadBackup`` if the log no longer has the offset."""
        try:
            _, batches = await self._log.read_batches(topic.topic_id, number, at, max_bytes=READ_BYTES, wait_s=1.0)
        except TidelogError as error:
            if error.code in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
                raise BadBackup(
                    f"{topic.name}/{number} cannot be saved from offset {at.offset} on: {error.message}."
                    " What is saved stays good; go on in another folder"
                ) from error
            raise
        size = 0
        first = at.offset
        for header, batch in batches:
            if header.base_offset >= end:
                break
            check_batch(batch)
            if header.base_offset != at.offset:
                raise refuse("MALFORMED", f"{topic.name}/{number} has a gap at {at.offset}")
            segment.add(header, batch)
            at = Position(header.leader_epoch, header.end_offset)
            size += len(batch)
        done(at.offset - first, size)
        return at

    async def _digest(self, topic: TopicInfo, number: int, offset: int) -> DigestAnswer:
        """Return a replica's digest of its log at an offset: from the leader if it answers, otherwise from another
        replica. Raises the first error if no replica answers."""
        info = (await self._log.topics.describe(topic.name)).partitions[number]
        nodes = dict.fromkeys([*([info.leader] if info.leader else []), *info.isr, *info.replicas])
        failed: TidelogError | None = None
        for node in nodes:
            try:
                return await self._log.partitions.digest(topic.topic_id, number, node, (offset,))
            except TidelogError as error:
                failed = failed or error
        raise failed or refuse("NOT_LEADER", f"{topic.name}/{number} has no replicas")

    async def _write(self, name: str, data: bytes) -> None:
        """Write a file of the backup, in a thread."""
        await trio.to_thread.run_sync(self._store.write, name, data)
