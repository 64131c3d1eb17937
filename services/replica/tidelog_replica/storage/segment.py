"""One segment: a file of consecutive whole batches, and the sparse index over it.

The file is named after the offset of its first record. A segment is written at its end only; one that is full is
*closed*: its index is written to a file and released from memory until it is needed. Compaction replaces the file of
a closed segment by one with the same batches, some of their records removed. Headers are read, records never. A
header on the disk that cannot be right raises ``CorruptLog``: an ``OSError``, because the disk did not keep what was
written. A batch that is served is checked by its CRC. Headers that are read without their batches are used only if
they lead to the hash chain in the next index entry, so a damaged header is never believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.batch.format import (
    HEADER_BYTES,
    NO_CHAIN,
    BatchHeader,
    chain_after,
    check_batch,
    read_header,
    with_sent_crc,
)
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer

from tidelog_replica.storage.checkpoints import UNREADABLE, read_cache
from tidelog_replica.storage.encryption.files import HEAD_BYTES as ENCRYPTED_HEAD_BYTES
from tidelog_replica.storage.encryption.files import decrypt_beside, encrypt_beside, stored_size
from tidelog_replica.storage.index import (
    INTERVAL_BYTES,
    IndexCache,
    IndexEntry,
    SegmentSummary,
    SparseIndex,
    read_summary,
)
from tidelog_replica.storage.segment_reader import HEADERS_CHUNK_BYTES, SegmentReader, lost, open_window, walk
from tidelog_replica.storage.segment_reader import CorruptLog as CorruptLog

OTHER_CHAIN = "the hash chain of its headers is not the one noted when it was written"
"""The reason given for a damaged segment whose headers are well-formed but are not those that were written."""


class SegmentExtent(NamedTuple):
    """The bounds, the size and the age of a segment, as the rules of retention and compaction need them. ``end`` is
    exclusive."""

    base: int
    end: int
    bytes: int
    max_timestamp: int
    """Largest timestamp of the records, ms since 1970; -1 if there are none. For retention it is not later than the
    time at which the segment was written."""
    since_ms: int | None = None
    """When a check of this server first saw a record in it, by the wall clock (ms); None: not known."""


class Segment:
    """One segment of a log: the batches of the offsets ``base`` to ``end_offset`` (exclusive), ``size`` bytes in the
    file ``path``. A new object is empty; recovery and ``append`` fill it. It opens its file when it needs it, and
    belongs to one log until that is closed or the segment is deleted. Every method may raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str, base: int, chain: bytes = NO_CHAIN) -> None:
        self.base = base
        self.chain_before = self.chain = chain
        """The hash chain of the log up to ``base``, and (``chain``) up to ``end_offset``."""
        self.end_offset = base
        self.size = 0
        self.max_timestamp = -1
        """Largest timestamp of the records here, ms since 1970; -1 while there are none."""
        self.since_ms: int | None = None
        """When a check of the log first saw a record in this segment, by the wall clock (ms). If it was closed before
        any check saw it: the time of the check before. None: not known, since another process closed it."""
        self._written_ms: int | None = None
        self.rewrites = 0
        """How often compaction has replaced the segment's file."""
        self.path = f"{directory}/{base:020d}.log"
        self.index_path = f"{directory}/{base:020d}.index"
        self._disk = disk
        self._file: File | None = None
        self._index: SparseIndex | None = SparseIndex(chain)
        self._indexes: IndexCache | None = None
        self._written = False
        """Whether this process has written to the segment, and the segment is the log's active one."""

    def extent(self) -> SegmentExtent:
        """Return the segment's offsets, size in bytes, largest timestamp and age as a ``SegmentExtent``."""
        return SegmentExtent(self.base, self.end_offset, self.size, self.max_timestamp, self.since_ms)

    def begin_at(self, chain: bytes) -> None:
        """Set the hash chain of the log up to ``base``. The segment must still be empty."""
        assert not self.size
        self.chain_before = self.chain = chain
        self._index = SparseIndex(chain)

    def read_only_view(self) -> Segment:
        """Return a second object for the segment as it is now, with a file handle and an index of its own. A job in
        another thread may read through it as long as the file is only appended to. The job closes the view's file."""
        view = Segment(self._disk, self.path.rpartition("/")[0], self.base, self.chain_before)
        view.chain, view.end_offset, view.size = self.chain, self.end_offset, self.size
        in_memory_only = self._indexes is None  # the active segment's index has no file yet
        view._index = self._index.copy() if self._index is not None and in_memory_only else None
        return view

    # --- file and index ----------------------------------------------------------------------------------

    @property
    def file(self) -> File:
        """Return the segment's file, opened if it was not. Raises ``CorruptLog`` if the file is missing or the medium
        fails, and other ``OSError``s."""
        if self._file is None:
            try:
                self._file = self._disk.open(self.path)
            except OSError as error:
                raise lost(self.path, error) from error
        return self._file

    def file_size(self) -> int:
        """Return the length of the file in bytes, which may be more than belongs to the log."""
        try:
            return self.file.size()
        except OSError as error:
            raise lost(self.path, error) from error

    def window(self, chunk_bytes: int) -> SegmentReader:
        """Return a reader of the part of the file that belongs to the log; it reads ``chunk_bytes`` at a time. Opens
        the file if necessary. A failure to read counts as damage unless this process has written to the segment."""
        return open_window(self.file, self.size, chunk_bytes, None if self._written else self.path)

    def create(self) -> None:
        """Make the segment's file, empty, and open it. Its name becomes durable only with a ``sync_dir``."""
        self._file, self._written = self._disk.open(self.path, create=True), True
        if self._file.size():
            self._file.truncate(0)

    def release(self) -> File | None:
        """Return the segment's open file and keep no reference to it, so that the caller can close it; None if the
        file is not open. A later use opens the file again."""
        file, self._file = self._file, None
        return file

    @property
    def index(self) -> SparseIndex:
        """Return the sparse index: from memory, else loaded from its file, else made again from the headers. A closed
        segment's index is then kept in the shared cache. Raises ``CorruptLog`` if headers are damaged."""
        index = self._index
        if index is None:
            index = self._index = self._load_index() or self._scan_index()
            if self._indexes is not None:
                self._indexes.loaded(self, len(index))
        return index

    def drop_index(self) -> None:
        """Remove the index from memory; it is loaded again when it is needed."""
        self._index = None

    def release_memory(self, indexes: IndexCache) -> None:
        """Drop the index of a segment that was just closed, or found closed, from memory: its index file has it, or
        else it is made again from the headers. From now on the index is in memory only while the shared cache
        ``indexes`` has space for it. A failure to read the segment now counts as damage."""
        self._indexes, self._index, self._written = indexes, None, False

    def keep_in_memory(self) -> None:
        """Stop counting the index in the shared cache, which then cannot drop it any more. Called when the segment
        becomes the active one again or is removed from the log."""
        self._written_ms = None
        if self._indexes is not None:
            self._indexes.forget(self)
            self._indexes = None

    def _load_index(self) -> SparseIndex | None:
        """Return the index that the index file holds; None if that file is missing or damaged."""
        return SparseIndex.from_bytes(decrypt_beside(self.file, read_cache(self._disk, self.index_path)))

    def _scan_index(self) -> SparseIndex:
        """Return an index made from the batch headers in the file. Raises ``CorruptLog`` if a header is damaged or
        their hash chain is not the known one."""
        index, earlier, chain = SparseIndex(self.chain_before), -1, self.chain_before
        try:
            for position, header, head in walk(self.window(HEADERS_CHUNK_BYTES), 0, self.size):
                index.add(header.base_offset, position, earlier, chain)
                earlier = max(earlier, header.max_timestamp)
                chain = chain_after(chain, head)
        except CorruptBatch as error:
            raise CorruptLog(self.path, error.message) from error
        if chain != self.chain:
            raise CorruptLog(self.path, OTHER_CHAIN)
        return index

    def write_index_file(self) -> None:
        """Write the index and the summary of a full segment to the index file. The file is not synced, since it can
        be made again."""
        data = self.index.to_bytes(
            SegmentSummary(self.base, self.end_offset, self.size, self.max_timestamp, self.chain_before, self.chain)
        )
        file = self._disk.open(self.index_path, create=True)
        try:
            file.truncate(0)
            file.pwritev(encrypt_beside(self.file, data), 0)
        finally:
            file.close()

    def summary(self) -> SegmentSummary | None:
        """Return the summary of the segment from the head of its index file: offsets, size, largest timestamp and
        hash chains. Return None if that file is missing or damaged, or describes a segment with another base or
        length. An index file that the disk cannot read is deleted."""
        try:
            head = self._read_index_head()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            remove(self._disk, self.index_path)  # the index is made again when it is needed
            return None
        summary = read_summary(decrypt_beside(self.file, head, whole=False))
        if summary is None or (summary.base, summary.size) != (self.base, self.file_size()):
            return None
        return summary

    def _read_index_head(self) -> bytes:
        """Return the first bytes of the index file, as stored. Raises ``FileNotFoundError`` if it does not exist."""
        file = self._disk.open(self.index_path)
        try:
            return file.pread(ENCRYPTED_HEAD_BYTES, 0)
        finally:
            file.close()

    def trust(self, end_offset: int) -> bool:
        """Take the size, end, largest timestamp and hash chain of a full segment from its index file, without reading
        the segment, and return True. Return False, and change nothing, if there is no sound index file or it does not
        describe a segment that ends at ``end_offset`` and continues the hash chain before this one."""
        summary = self.summary()
        if summary is None or (summary.end_offset, summary.chain_before) != (end_offset, self.chain_before):
            return False
        _, self.end_offset, self.size, self.max_timestamp, _, self.chain = summary
        self._index = None
        return True

    def replace(self, index: SparseIndex, size: int) -> None:
        """Use the compacted file that was just renamed over the segment's file: close the old file, take over
        ``index`` and ``size`` (bytes) of the new one, and write its index file."""
        self.size, self._index, self._written_ms = size, index, None
        self.rewrites += 1
        self.write_index_file()
        self._index = None
        close(self)

    def newest_ms(self) -> int:
        """Return the largest timestamp of this full segment, ms since 1970, but at most the time at which its file
        was last written: a timestamp of the future must not make a segment younger than it is. Reads the file's
        modification time at the first call."""
        return min(self.max_timestamp, self.written_ms())

    def written_ms(self) -> int:
        """Return the time at which the file of this full segment was last written, ms since 1970; the largest
        timestamp if the disk does not know it. Reads the file's modification time at the first call."""
        if self._written_ms is None:
            written = self._disk.modified_ms(self.path)
            self._written_ms = self.max_timestamp if written is None else written
        return self._written_ms

    def unlink(self) -> None:
        """Delete the segment's file and index file if they exist, and stop counting its index in the shared cache.
        The deletion is durable only after a ``sync_dir``."""
        self.keep_in_memory()
        remove(self._disk, self.path)
        remove(self._disk, self.index_path)

    # --- writing -----------------------------------------------------------------------------------------

    def append(self, headers: Sequence[BatchHeader], batches: Sequence[Buffer]) -> None:
        """Write whole batches at the end of the file, in one write, and add them to the index, the hash chain, the
        size and the end offset. Nothing is synced. If the write raises ``OSError``, only the file may have
        changed."""
        self._written = True
        self.file.pwritev(batches, self.size)
        for header, batch in zip(headers, batches, strict=True):
            self.add_written(header, batch)

    def add_written(self, header: BatchHeader, batch: Buffer) -> None:
        """Add a batch that is already in the file, behind the last one, to the segment's index, hash chain, size, end
        offset and largest timestamp. Only the header of ``batch`` is read, and for a sparse batch the bytes behind
        it."""
        self.index.add(header.base_offset, self.size, self.max_timestamp, self.chain)
        self.chain = chain_after(self.chain, batch)
        self.size += stored_size(self.file, header.batch_length)
        self.end_offset = header.base_offset + header.record_count
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp

    def cut(self, end: int) -> None:
        """Cut the file so that the segment ends at offset ``end``; a batch that reaches across ``end`` is removed as
        a whole. Index, size and hash chain follow. Does nothing if the segment ends at or below ``end``. Nothing is
        synced. Raises ``CorruptLog`` if a header that is read is damaged."""
        begin = self.index.for_offset(end)
        earlier, chain = begin.earlier, begin.chain
        for position, header, head in self._walk(begin):
            if header.end_offset > end:
                self.index.truncate_to(position)
                self.file.truncate(position)
                self.size, self.end_offset = position, header.base_offset
                self.max_timestamp, self.chain = earlier, chain
                return
            earlier = max(earlier, header.max_timestamp)
            chain = chain_after(chain, head)

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int) -> list[Buffer]:
        """Return whole batches, each checked by its CRC, from the one that holds ``offset`` on. They end at or below
        offset ``end`` and have about ``max_bytes`` together, but at least one is returned if there is one. Return an
        empty list if there is none. It mostly takes one ``pread``. Raises ``CorruptLog`` if a batch or a header is
        damaged."""
        expected, position, _, _ = self.index.for_offset(offset)
        window = self.window(max_bytes + INTERVAL_BYTES)
        found: list[Buffer] = []
        used = 0
        while position < self.size:
            if found and not window.holds(position, HEADER_BYTES):
                break
            header = self._header(window, position)
            if header.base_offset != expected or header.end_offset > self.end_offset:
                raise CorruptLog(
                    self.path, f"at byte {position}: batch at offset {header.base_offset}, not {expected}"
                )
            size, expected = header.batch_length, header.end_offset
            if header.end_offset > end or (found and (used + size > max_bytes or not window.holds(position, size))):
                break
            if header.end_offset > offset:
                found.append(self._whole(window, position, size))
                used += size
            position += window.stored(size)
        return found

    def _whole(self, window: SegmentReader, position: int, size: int) -> memoryview:
        """Return the batch of ``size`` bytes at byte ``position``, checked by its CRC. Raises ``CorruptLog`` if the
        CRC is wrong, so that a batch that the disk has changed is never served."""
        try:
            batch = window.get(position, size)
            check_batch(batch)
        except CorruptBatch as error:
            raise CorruptLog(self.path, f"at byte {position}: {error.message}") from error
        return batch

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds ``offset`` to the end of the segment. Each has the
        CRC that its producer sent (``with_sent_crc``), so that a compacted log gives the same producer state as
        before. Raises ``CorruptLog`` if a header is damaged."""
        for _, header, head in self._walk(self.index.for_offset(offset)):
            if header.end_offset > offset:
                yield with_sent_crc(header, head)

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """Return the offset of the last batch boundary at or below ``offset``, and the hash chain of the log up to
        that boundary."""
        return self.place_at(offset)[1:]

    def place_at(self, offset: int) -> tuple[int, int, bytes]:
        """Return byte position and offset of the last batch boundary at or below ``offset``, and the hash chain of
        the log up to that boundary. If ``offset`` is at or above the end of the segment, the boundary is that end."""
        if offset >= self.end_offset:
            return self.size, self.end_offset, self.chain
        begin = self.index.for_offset(offset)
        chain = begin.chain
        for position, header, head in self._walk(begin):
            if header.end_offset > offset:
                return position, header.base_offset, chain
            chain = chain_after(chain, head)
        return self.size, self.end_offset, self.chain

    def first_timestamp(self) -> int:
        """Return the timestamp of the segment's first record, ms since 1970, as its producer set it. The segment must
        not be empty. The file is left open only if it was open before. Raises ``CorruptLog`` if the header is
        damaged."""
        was_open = self._file is not None
        try:
            return self._header(self.window(HEADER_BYTES), 0).first_timestamp
        finally:
            if not was_open:
                close(self)

    def first_since(self, timestamp_ms: int) -> BatchHeader | None:
        """Return the header of the first batch that has a record at or after ``timestamp_ms`` (ms since 1970); None
        if there is none."""
        if self.max_timestamp < timestamp_ms:
            return None
        for _, header, _ in self._walk(self.index.for_timestamp(timestamp_ms)):
            if header.max_timestamp >= timestamp_ms:
                return header
        return None

    def _walk(self, begin: IndexEntry) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yield byte position, header and header bytes of each batch from the index entry ``begin`` to the end of the
        segment. The batches between two index entries are yielded only when the hash chain in the next entry proves
        them undamaged. Raises ``CorruptLog`` if it does not."""
        last = (self.size, self.chain)
        edge, chain = self.index.edge_after(begin.position, last), begin.chain
        waiting: list[tuple[int, BatchHeader, memoryview]] = []
        try:
            window = self.window(HEADERS_CHUNK_BYTES)
            for position, header, head in walk(window, begin.position, self.size):
                chain = chain_after(chain, head)
                waiting.append((position, header, head))
                end = position + window.stored(header.size)
                if end < edge[0]:
                    continue
                if (end, chain) != edge:
                    raise CorruptLog(self.path, OTHER_CHAIN)
                yield from waiting
                waiting.clear()
                edge = self.index.edge_after(end, last)
        except CorruptBatch as error:
            raise CorruptLog(self.path, error.message) from error

    def _header(self, window: SegmentReader, position: int) -> BatchHeader:
        """Return the header of the batch at byte ``position``. Raises ``CorruptLog`` if it is damaged or its batch
        would reach past the end of the segment."""
        try:
            header = read_header(window.get(position, HEADER_BYTES))
        except CorruptBatch as error:
            raise CorruptLog(self.path, f"at byte {position}: {error.message}") from error
        if position + window.stored(header.batch_length) > self.size:
            raise CorruptLog(self.path, f"at byte {position}: batch declares length {header.batch_length}")
        return header


def close(segment: Segment) -> None:
    """Close the file of a segment if it is open; a later use of the segment opens the file again."""
    file = segment.release()
    if file is not None:
        file.close()


def remove(disk: Disk, path: str) -> None:
    """Delete a file; does nothing if it does not exist. Raises other ``OSError``s. The deletion is durable only after
    a ``sync_dir``."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
