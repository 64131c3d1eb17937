"""Compaction: of all records with the same key only the last one stays.

Theory. A log under ``compact`` is a table with its own history: for each key the last record is its value, and a
record without a value (a *tombstone*) deletes the key. A pass reads the part that was not compacted yet and remembers
the last offset of every key in it. Then it rewrites the whole closed log: a record is dropped if its key has a later
one. A reader that begins at any offset knows the same table at the end as before.

    never touched    the active segment, uncommitted records, and records younger than ``compaction_min_lag_ms`` (but
                     see the maximal lag below)
    kept for ever    records without a key (a broker that refused them would have to decode every batch), control
                     batches, and batches whose body does not have the format
    tombstones       are dropped ``tombstone_retention_ms`` after their batch was first compacted, if an earlier pass
                     over this log has covered them: then no older record of their key is left. A slower reader may
                     miss a deletion, a faster one never does; a replica misses none (``storage/tombstones.py``)

The map of keys is bounded: a pass ends where the map is full, at the end of a batch, and the next pass begins there.
Keys are remembered by their BLAKE2b-128. Segments are rewritten oldest first: when a tombstone is marked as
compacted, the records that it deletes are gone, also after a crash in between. A batch without records takes about 95
bytes.

A pass begins when the dirty part of the log is large enough (``dirty_part``), or when one of its records has waited
for ``max_compaction_lag_ms`` (KIP-354). The active segment is closed early enough for that (``roll_age_ms``). The age
of a segment counts from when this server first saw a record in it, not from the producers' timestamps: a producer
with a wrong clock delays no deletion. After a restart the closed segments that were not compacted count as overdue at
once; records that are younger than ``compaction_min_lag_ms`` by their timestamps still wait, unless the timestamps
lie in the future. So a record is dropped at most ``max_compaction_lag_ms`` after it was replaced, plus two intervals
between checks (``retention_check_interval_s``) and the time of a pass.

Compaction replaces the file of each closed segment by one with the same batches, some of their records removed.

A ``Compaction`` is one pass, a job of several runs: the first run learns the keys, and each run rewrites one segment.
``Compactor`` begins the passes over one log, and puts in place what each run made. The thread reads the old file
through a handle of its own and writes ``<base>.log.cleaned``. When that is durable, it removes the old index, durably
too. The log then renames the new file over the old one in its owner's thread, so that it never reads one file through
the index of the other, and only then writes the new index.

Safe against a crash at each step: before the rename the old file is in place, possibly without an index, and the next
opening removes ``.cleaned``; after it the new file is, whose bytes were durable before. Only a whole segment, old or
new, is ever found under its name. Both have the same offsets, epochs and hash chain, and no gaps.
A run that finds no disk space for its new file removes it again; the log is as it was.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from tidelog.batch.format import (
    HEADER_BYTES,
    BatchHeader,
    Columns,
    chain_after,
    check_batch,
    decode_columns,
    read_header,
)
from tidelog.batch.sparse import emptied, first_compacted_ms, thin_batch
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer, TopicConfig

from tidelog_replica.replication.transaction_index import EndedTransaction, TransactionIndex, is_aborted
from tidelog_replica.storage.checkpoints import CLEANED
from tidelog_replica.storage.encryption.files import stored_size
from tidelog_replica.storage.index import SparseIndex
from tidelog_replica.storage.segment import OTHER_CHAIN, CorruptLog, Segment, SegmentExtent, remove
from tidelog_replica.storage.segment_list import SegmentList
from tidelog_replica.storage.segment_reader import BATCHES_CHUNK_BYTES, lost, open_window
from tidelog_replica.storage.tombstones import Deletions

KEYS_AT_ONCE = 1 << 18
"""How many keys a pass remembers at most: about 40 MB."""


def compactable_end(segments: Sequence[SegmentExtent], high_watermark: int, config: TopicConfig, now_ms: int) -> int:
    """Return the offset at which the part of the log ends that may be compacted now. The part begins at the log start
    and has the closed segments up to the first one that is not wholly below ``high_watermark`` or is too young. The
    last of ``segments`` is the one that is written; ``now_ms`` is the wall clock, ms since 1970."""
    end = segments[0].base
    for segment in segments[:-1]:
        young = config.compaction_min_lag_ms > 0 and now_ms - segment.max_timestamp < config.compaction_min_lag_ms
        if segment.end > high_watermark or (young and not _overrides_youth(segment, config, now_ms)):
            break
        end = segment.end
    return end


def _overrides_youth(segment: SegmentExtent, config: TopicConfig, now_ms: int) -> bool:
    """Return whether the segment must be compacted although its timestamps are too young: its known age exceeds
    ``max_compaction_lag_ms``, or its age is unknown and its timestamps lie in the future. Return False if the topic
    sets no such lag."""
    if segment.since_ms is None:
        return config.max_compaction_lag_ms > 0 and segment.max_timestamp > now_ms
    return _is_overdue(segment, config, now_ms)


def dirty_part(segments: Sequence[SegmentExtent], compacted_to: int, end: int) -> float:
    """Return which part of the bytes below offset ``end``, from 0 to 1, is still uncompacted: it lies in segments
    that reach above ``compacted_to``. Return 0 if there are no bytes."""
    whole = sum(segment.bytes for segment in segments if segment.end <= end)
    dirty = sum(segment.bytes for segment in segments if compacted_to < segment.end <= end)
    return dirty / whole if whole else 0.0


def has_overdue(
    segments: Sequence[SegmentExtent], compacted_to: int, end: int, config: TopicConfig, now_ms: int
) -> bool:
    """Return whether a record in a closed segment has waited for compaction for ``max_compaction_lag_ms``. Only
    segments that end above offset ``compacted_to`` and at or below ``end`` are considered. ``now_ms`` is the wall
    clock, ms since 1970."""
    return any(
        compacted_to < segment.end <= end and _is_overdue(segment, config, now_ms) for segment in segments[:-1]
    )


def _is_overdue(segment: SegmentExtent, config: TopicConfig, now_ms: int) -> bool:
    """Return whether the segment's first record has waited for compaction for ``max_compaction_lag_ms``. Return False
    if the topic sets no such lag, and True if the segment's age is unknown."""
    if not config.max_compaction_lag_ms:
        return False
    return segment.since_ms is None or now_ms - segment.since_ms >= config.max_compaction_lag_ms


def roll_age_ms(config: TopicConfig) -> int:
    """Return the age in ms, counted from its first record, at which the active segment is closed:
    ``segment_max_age_ms`` of the topic. If the topic sets a maximal compaction lag, it may be less, so that the
    segment's last record is ``compaction_min_lag_ms`` old when its first one has to be compacted."""
    if "compact" not in config.cleanup or not config.max_compaction_lag_ms:
        return config.segment_max_age_ms
    return min(config.segment_max_age_ms, max(0, config.max_compaction_lag_ms - config.compaction_min_lag_ms))


class LatestOffsets:
    """The last offset of each key in the part of a log that one compaction pass covers. At most about ``limit`` keys
    are kept, by their hash."""

    def __init__(self, limit: int = KEYS_AT_ONCE) -> None:
        self._limit = limit
        self._offsets: dict[bytes, int] = {}

    @property
    def is_full(self) -> bool:
        """Return whether the limit of keys is reached, so that the next batch must be left to another pass."""
        return len(self._offsets) >= self._limit

    def learn(self, columns: Columns) -> None:
        """Record the offset of each key in ``columns``, the decoded records of the next batch. Batches must be given
        in the order of the log. Records without a key are skipped."""
        for offset, key in zip(columns.offsets, columns.keys, strict=True):
            if key is not None:
                self._offsets[_digest(key)] = offset

    def survivors(self, columns: Columns) -> list[int]:
        """Return the places, within a decoded batch, of the records that stay in the log: those whose key has no
        later record, and those without a key."""
        offsets, kept = self._offsets, []
        for place, (offset, key) in enumerate(zip(columns.offsets, columns.keys, strict=True)):
            if key is None or offsets.get(_digest(key), -1) <= offset:
                kept.append(place)
        return kept


def tombstones(columns: Columns, places: Sequence[int]) -> list[int]:
    """Return the places among ``places``, within a decoded batch, whose records are tombstones: they have a key and
    no value."""
    return [place for place in places if columns.values[place] is None and columns.keys[place] is not None]


def _digest(key: bytes) -> bytes:
    """Return the BLAKE2b-128 hash of a key, by which the key is remembered."""
    return blake2b(key, digest_size=16).digest()


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The errors that report a full disk. A run that fails with one ends the pass and changes nothing else."""


class Source(NamedTuple):
    """A closed segment as a compaction pass finds it: its offsets, size in bytes, files, and the hash chain before
    and after it."""

    base: int
    end: int
    size: int
    path: str
    index_path: str
    chain_before: bytes
    chain: bytes


class Cleaned(NamedTuple):
    """The result of one run of a compaction pass: the compacted file of one segment, which is durable beside the old
    file, its index and its size in bytes. ``Log.complete_compaction`` puts it in the old file's place."""

    base: int
    entries: SparseIndex
    size: int
    tombstones_to: int
    """An offset above every tombstone that was dropped here without a later record of its key; 0 if none was."""


def source_of(segment: Segment) -> Source:
    """Return the base and end offset, size in bytes, file paths and hash chains of a closed segment, as a compaction
    pass needs them in another thread."""
    return Source(
        segment.base,
        segment.end_offset,
        segment.size,
        segment.path,
        segment.index_path,
        segment.chain_before,
        segment.chain,
    )


@dataclass(slots=True)
class Compaction:
    """One compaction pass over the closed segments of a log, which ``sources`` describe. It is a job of several runs,
    each of which rewrites one segment. The segments that hold offsets from ``dirty`` to ``end`` (exclusive) were not
    compacted before. ``Log.begin_compaction`` makes it, and each run's result goes to ``Log.complete_compaction``."""

    disk: Disk
    directory: str
    sources: Sequence[Source]
    dirty: int
    end: int
    """The end of the part that the pass covers. The first run may lower it to where the map of keys is full."""
    now_ms: int
    tombstone_retention_ms: int
    latest: LatestOffsets
    aborted: Sequence[EndedTransaction]
    """The aborted transactions: their records are dropped and do not count for their keys."""
    generation: int
    number: int = 0
    """Place in ``sources`` of the segment that the next run rewrites."""
    is_learnt: bool = False
    _tombstones_to: int = 0
    """``Cleaned.tombstones_to`` of the segment that is being rewritten."""

    @property
    def source(self) -> Source | None:
        """Return the segment that the next run rewrites; None if the pass is over."""
        if self.number < len(self.sources) and self.sources[self.number].base < self.end:
            return self.sources[self.number]
        return None

    def run(self) -> Cleaned | None:
        """Write a compacted copy of the next segment to a new file, durably, and delete the segment's index file.
        Return a description of the new file; if nothing in the segment changes, return None and leave no file. The
        first run also reads the keys of the uncompacted part. Blocks on the disk. Raises ``CorruptLog`` if the
        segment is damaged, and other ``OSError``s; if the disk is full, the new file is deleted."""
        if not self.is_learnt:
            self._learn()
        source = self.source
        assert source is not None
        return self._rewrite(source)

    def _learn(self) -> None:
        """Read the uncompacted part of the log and record the last offset of each key. If the map of keys is full
        before the end, the pass ends at that batch."""
        for source in self.sources:
            if source.end <= self.dirty:
                continue
            for header, batch in self._batches(source):
                if header.end_offset <= self.dirty or is_aborted(header, self.aborted):
                    continue
                if self.latest.is_full:
                    self.end = header.base_offset
                    self.is_learnt = True
                    return
                columns = _columns(batch)
                if columns is not None:
                    self.latest.learn(columns)
        self.is_learnt = True

    def _rewrite(self, source: Source) -> Cleaned | None:
        """Write the compacted file of a segment durably beside the old one, delete the old index file, and return the
        description of the new file; None, without a file, if nothing changes. If the disk is full, the new file is
        deleted and the ``OSError`` is raised."""
        path = source.path + CLEANED
        try:
            index, size, changed = self._write(source, path)
        except OSError as error:
            if error.errno in NO_ROOM:
                remove(self.disk, path)
            raise
        if not changed:
            remove(self.disk, path)
            return None
        remove(self.disk, source.index_path)
        self.disk.sync_dir(self.directory)
        return Cleaned(source.base, index, size, self._tombstones_to)

    def _write(self, source: Source, path: str) -> tuple[SparseIndex, int, bool]:
        """Write the compacted batches of a segment to the file at ``path``. Return their index, the size in bytes,
        and whether anything changed; only then the file is synced."""
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            index, size, changed = self._fill(source, file)
            if changed:
                file.sync()
        finally:
            file.close()
        return index, size, changed

    def _fill(self, source: Source, file: File) -> tuple[SparseIndex, int, bool]:
        """Write the compacted batches of a segment to an open file. Return their index, the size in bytes, and
        whether anything changed. Raises ``CorruptLog`` if the hash chain is not that of the segment."""
        index, chain, earlier = SparseIndex(source.chain_before), source.chain_before, -1
        size, written, changed, self._tombstones_to = 0, 0, False, 0
        waiting: list[Buffer] = []
        for header, batch in self._batches(source):
            new = self._thin(header, batch)
            changed = changed or new is not batch
            index.add(header.base_offset, size, earlier, chain)
            chain = chain_after(chain, new)
            earlier = max(earlier, header.max_timestamp)
            waiting.append(new)
            size += stored_size(file, len(new))
            if size - written >= BATCHES_CHUNK_BYTES:
                file.pwritev(waiting, written)
                waiting, written = [], size
        file.pwritev(waiting, written)
        if chain != source.chain:
            raise CorruptLog(source.path, OTHER_CHAIN)
        return index, size, changed

    def _thin(self, header: BatchHeader, batch: memoryview) -> Buffer:
        """Return a copy of the batch without the records that later ones replace and the tombstones that are old
        enough to go; a batch of an aborted transaction loses all its records. Return the same object if nothing
        changes."""
        if header.end_offset > self.end or header.is_control:
            return batch
        columns = _columns(batch)
        if columns is None:
            return batch
        if is_aborted(header, self.aborted):
            return emptied(batch) if columns.offsets else batch
        since, keep = first_compacted_ms(batch), self.latest.survivors(columns)
        deleting = tombstones(columns, keep)
        is_old = since is not None and self.now_ms - since > self.tombstone_retention_ms
        if deleting and is_old and header.end_offset <= self.dirty:
            self._tombstones_to = columns.offsets[deleting[-1]] + 1
            keep = [place for place in keep if place not in deleting]
        if len(keep) == len(columns.offsets) and (header.is_sparse or not deleting):
            return batch
        thin = thin_batch(columns, batch, keep, self.now_ms)
        return batch if thin == batch else thin  # some batches cannot get smaller

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield header and bytes of each batch of a segment, checked by its CRC. Raises ``CorruptLog`` if the file is
        missing, unreadable or damaged."""
        try:
            file = self.disk.open(source.path)
        except OSError as error:
            raise lost(source.path, error) from error
        position = 0
        try:
            window = open_window(file, source.size, BATCHES_CHUNK_BYTES, source.path)
            while position < source.size:
                header = read_header(window.get(position, HEADER_BYTES))
                batch = window.get(position, header.batch_length)
                check_batch(batch)
                yield header, batch
                position += window.stored(header.batch_length)
        except CorruptBatch as error:
            raise CorruptLog(source.path, f"at byte {position}: {error.message}") from error
        finally:
            file.close()


def _columns(batch: Buffer) -> Columns | None:
    """Return the decoded records of a sound batch; None if its producer made a body that cannot be decoded."""
    try:
        return decode_columns(batch)
    except CorruptBatch:
        return None


class Compactor:
    """The part of a log that begins compaction passes and puts compacted files in place. ``segments`` are the log's
    segments, and ``deletions`` records how far the log is compacted. It lives as long as the log is open."""

    def __init__(self, disk: Disk, directory: str, segments: SegmentList, deletions: Deletions) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._deletions = deletions

    def begin_pass(
        self,
        transactions: TransactionIndex,
        config: TopicConfig,
        high_watermark: int,
        now_ms: int,
        min_dirty_ratio: float,
        keys_at_once: int,
        generation: int,
    ) -> Compaction | None:
        """Return a job for a compaction pass over the closed segments below the last stable offset; None if none is
        due. A pass is due if the uncompacted part of the bytes is at least ``min_dirty_ratio``, or if a record in it
        has waited for ``max_compaction_lag_ms``. The pass keeps at most about ``keys_at_once`` keys in memory.
        ``transactions`` are those of the log, ``now_ms`` is the wall clock (ms since 1970), and ``generation`` is the
        present one of the log."""
        segments, extents = self._segments, self._segments.extents()
        last_stable_offset = transactions.last_stable_offset(high_watermark)
        dirty = max(segments.start, min(self._deletions.compacted_to, segments.end_offset))
        end = compactable_end(extents, last_stable_offset, config, now_ms)
        if end <= dirty:
            return None
        overdue = has_overdue(extents, dirty, end, config, now_ms)
        if not overdue and dirty_part(extents, dirty, end) < min_dirty_ratio:
            return None
        return Compaction(
            self._disk,
            self._directory,
            [source_of(segment) for segment in segments if segment.end_offset <= end],
            dirty,
            end,
            now_ms,
            config.tombstone_retention_ms,
            LatestOffsets(keys_at_once),
            transactions.aborted_from(segments.start),
            generation,
        )

    def replaced_by(self, cleaned: Cleaned) -> Segment | None:
        """Return the segment whose file the compacted file ``cleaned`` replaces; None if that segment is no longer in
        the log."""
        found = self._segments.segment_after(cleaned.base - 1)
        return found if found is not None and found.base == cleaned.base else None

    def put_in_place(self, segment: Segment, cleaned: Cleaned) -> None:
        """Rename the compacted file over the file of ``segment``, which must be closed, durably; then use its index
        and size. Before the rename, ``tombstones_to`` is raised durably to cover the tombstones that are gone. Raises
        ``OSError``."""
        self._deletions.before_tombstones_go(cleaned.tombstones_to)
        self._disk.rename(segment.path + CLEANED, segment.path)
        self._disk.sync_dir(self._directory)
        self._segments.replace_file(segment, cleaned.entries, cleaned.size)

    def discard(self, cleaned: Cleaned) -> None:
        """Delete a compacted file whose segment was cut or deleted meanwhile; does nothing if the file does not
        exist. Raises ``OSError``."""
        remove(self._disk, f"{self._directory}/{cleaned.base:020d}.log{CLEANED}")

    def complete_run(self, compaction: Compaction) -> bool:
        """Count a run of the pass as done, and skip the segments that retention has deleted. Return True if another
        run follows. If none does, record that the log is compacted up to the end of the pass, and return False.
        Raises ``OSError``."""
        compaction.number += 1
        while (source := compaction.source) is not None and source.base < self._segments.start:
            compaction.number += 1  # retention has deleted that segment
        if source is None:
            self._deletions.on_pass(compaction.end)
        return source is not None
