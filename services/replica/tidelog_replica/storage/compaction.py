"""Compaction's part of the disk: closed segments get another file each, with the same batches, thinned out.

A ``Compaction`` is one pass (``storage/compaction_rule.py``), a job of several runs: the first learns the keys, and
each run rewrites one segment. The thread reads the old file through a handle of its own and writes
``<base>.log.cleaned``; when that is durable it removes the old index, durably too. The log then renames the new file
over the old one, in its owner's thread, so that it never reads the one through the index of the other, and only then
writes the new index.

Safe against a crash at each step: before the rename the old file stands, without an index perhaps, and the next
opening removes ``.cleaned``; after it the new one does, whose bytes were durable before. Nothing but a whole segment,
old or new, is ever found under its name; neither has gaps, and both have the same offsets, epochs and hash chain.
A run that finds no room for its new file removes it again; the log is as it was.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.compacted import emptied, first_compacted_ms, thin_batch
from tidelog.disk import Disk, File
from tidelog.errors import CorruptBatch
from tidelog.records import HEADER_BYTES, BatchHeader, Columns, chain_after, check_batch, decode_columns, read_header
from tidelog.types import Buffer

from tidelog_replica.replication.transaction_index import Ended, is_aborted
from tidelog_replica.storage.checkpoint_files import CLEANED
from tidelog_replica.storage.compaction_rule import LatestOffsets, tombstones
from tidelog_replica.storage.encryption.files import stored_size
from tidelog_replica.storage.index import SparseIndex
from tidelog_replica.storage.segment import OTHER_CHAIN, CorruptLog, Segment, remove
from tidelog_replica.storage.segment_reader import BATCHES_CHUNK_BYTES, lost, open_window

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors that say that the disk is full. A run that ends so changes nothing but that the pass is over."""


class Source(NamedTuple):
    """A closed segment as the pass finds it."""

    base: int
    end: int
    size: int
    path: str
    index_path: str
    chain_before: bytes
    chain: bytes


class Cleaned(NamedTuple):
    """The new file of a segment, durable beside the old one."""

    base: int
    entries: SparseIndex
    size: int
    tombstones_to: int
    """The tombstones that went, with nothing later of their keys in their place, lie below it."""


def source_of(segment: Segment) -> Source:
    """What the pass must know of a segment."""
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
    """One pass over ``sources``, of which those from offset ``dirty`` to ``end`` were not compacted yet."""

    disk: Disk
    directory: str
    sources: Sequence[Source]
    dirty: int
    end: int
    """The first run may bring it down: so far the map of keys reaches."""
    now_ms: int
    tombstone_retention_ms: int
    latest: LatestOffsets
    aborted: Sequence[Ended]
    """Transactions whose records nobody is to see: they go, and what they say of a key does not count."""
    generation: int
    number: int = 0
    """Of the source that the next run rewrites."""
    is_learnt: bool = False
    _tombstones_to: int = 0
    """As in ``Cleaned``, of the segment that is being rewritten."""

    @property
    def source(self) -> Source | None:
        """The segment that the next run rewrites; None: the pass is over."""
        if self.number < len(self.sources) and self.sources[self.number].base < self.end:
            return self.sources[self.number]
        return None

    def run(self) -> Cleaned | None:
        """Rewrite the next segment; None where it stays as it is. Raises ``OSError``."""
        if not self.is_learnt:
            self._learn()
        source = self.source
        assert source is not None
        return self._rewrite(source)

    def _learn(self) -> None:
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
        index, chain, earlier = SparseIndex(source.chain_before), source.chain_before, -1
        size, written, changed, self._tombstones_to = 0, 0, False, 0
        waiting: list[Buffer] = []
        for header, batch in self._batches(source):
            new = self._thin(header, batch)
            changed = changed or new is not batch
            index.note(header.base_offset, size, earlier, chain)
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
        return batch if thin == batch else thin  # some stay as they are

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a segment, each checked. Raises ``CorruptLog``."""
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
    """What is in a sound batch; None where its producer built a body that is none."""
    try:
        return decode_columns(batch)
    except CorruptBatch:
        return None
