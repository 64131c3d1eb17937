"""One segment: a file of consecutive whole batches, and the sparse index over it.

The file is named after the offset of its first record. A segment is written at its end only; one that is full is
*sealed*: its index goes to a file, and memory needs neither until somebody reads there. Headers are read, records
never. What a header on disk must not say is ``CorruptLog``: an ``OSError``, because the disk broke its promise.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

from tidelog.disk import Disk, File
from tidelog.errors import CorruptBatch
from tidelog.records import HEADER_BYTES, BatchHeader, read_header
from tidelog.types import Buffer

from tidelog_replica.log.index import HEAD_BYTES, INTERVAL_BYTES, SparseIndex, Summary, read_summary

HEADERS_CHUNK_BYTES = 64 << 10
BATCHES_CHUNK_BYTES = 1 << 20


class CorruptLog(OSError):
    """Bytes that were durable are damaged or gone. The partition must not serve; its data must come from another
    replica."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(errno.EIO, message, path)


class Window:
    """Reads a file in chunks, going forward."""

    def __init__(self, file: File, size: int, chunk_bytes: int) -> None:
        self._file = file
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")
        self._start = 0

    def holds(self, position: int, length: int) -> bool:
        """Whether these bytes need no further read."""
        return self._start <= position and position + length <= self._start + len(self._chunk)

    def get(self, position: int, length: int) -> memoryview:
        """The bytes there; fewer only at the end of the file. Raises ``OSError``."""
        if not self.holds(position, length):
            wanted = min(max(length, self._chunk_bytes), self._size - position)
            self._chunk = memoryview(self._file.pread(wanted, position))
            self._start = position
        return self._chunk[position - self._start : position - self._start + length]


def walk(file: File, position: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches from ``position`` to ``size``; raises ``CorruptBatch`` at the first that
    is bad or cut short."""
    window = Window(file, size, HEADERS_CHUNK_BYTES)
    while position < size:
        header = read_header(window.get(position, HEADER_BYTES))
        if position + header.size > size:
            raise CorruptBatch(f"batch declares length {header.size} but {size - position} bytes follow")
        yield position, header
        position += header.size


class Segment:
    """Offsets ``base`` to ``end_offset``, ``size`` bytes, in the file ``path``. Made empty; recovery and ``append``
    fill it. Every method may raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str, base: int) -> None:
        self.base = base
        self.end_offset = base
        self.size = 0
        self.max_timestamp = -1
        """Largest of all records here, ms; -1 while there are none."""
        self.path = f"{directory}/{base:020d}.log"
        self.index_path = f"{directory}/{base:020d}.index"
        self._disk = disk
        self._file: File | None = None
        self._index: SparseIndex | None = SparseIndex()

    # --- file and index ----------------------------------------------------------------------------------

    @property
    def file(self) -> File:
        """The open file."""
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def create(self) -> None:
        """Make the file, empty. Its name is durable after a ``sync_dir``."""
        self._file = self._disk.open(self.path, create=True)
        if self._file.size():
            self._file.truncate(0)

    def release(self) -> File | None:
        """Give up the open file, for the caller to close."""
        file, self._file = self._file, None
        return file

    @property
    def index(self) -> SparseIndex:
        """The sparse index: in memory, from its file, or made again from the headers."""
        if self._index is None:
            self._index = self._load_index() or self._scan_index()
        return self._index

    def _load_index(self) -> SparseIndex | None:
        try:
            return SparseIndex.from_bytes(self._disk.read(self.index_path))
        except FileNotFoundError:
            return None

    def _scan_index(self) -> SparseIndex:
        index, earlier = SparseIndex(), -1
        for position, header in self._walk(0):
            index.note(header.base_offset, position, earlier)
            earlier = max(earlier, header.max_timestamp)
        return index

    def seal(self) -> None:
        """Nothing more will be written here: put the index beside the file. Not synced: it can be made again."""
        data = self.index.to_bytes(Summary(self.base, self.end_offset, self.size, self.max_timestamp))
        file = self._disk.open(self.index_path, create=True)
        try:
            file.truncate(0)
            file.pwritev([data], 0)
        finally:
            file.close()

    def trust(self, end_offset: int) -> bool:
        """Take size, end and timestamp of a full segment from its index file; False, and nothing is taken, where the
        index does not describe a segment of the file's length that ends at ``end_offset``."""
        try:
            file = self._disk.open(self.index_path)
        except FileNotFoundError:
            return False
        try:
            summary = read_summary(file.pread(HEAD_BYTES, 0))
        finally:
            file.close()
        size = self.file.size()
        if summary is None or summary[:3] != (self.base, end_offset, size):
            return False
        self.end_offset, self.size, self.max_timestamp = end_offset, size, summary.max_timestamp
        self._index = None
        return True

    # --- writing -----------------------------------------------------------------------------------------

    def append(self, headers: Sequence[BatchHeader], batches: Sequence[Buffer]) -> None:
        """Write whole batches at the end, in one write."""
        self.file.pwritev(batches, self.size)
        for header in headers:
            self.note(header)

    def note(self, header: BatchHeader) -> None:
        """The next batch of the file is this one."""
        assert self._index is not None
        self._index.note(header.base_offset, self.size, self.max_timestamp)
        self.size += header.batch_length
        self.end_offset = header.base_offset + header.record_count
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp

    def cut(self, end: int) -> None:
        """End at offset ``end``, or before the batch that holds it; not synced."""
        start, earlier = self.index.for_offset(end)
        for position, header in self._walk(start):
            if header.end_offset > end:
                self.index.truncate_to(position)
                self.file.truncate(position)
                self.size, self.end_offset, self.max_timestamp = position, header.base_offset, earlier
                return
            earlier = max(earlier, header.max_timestamp)

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int) -> list[Buffer]:
        """Whole batches from the one that holds ``offset``, below ``end``; at least one if there is any. Mostly one
        ``pread``."""
        position, _ = self.index.for_offset(offset)
        window = Window(self.file, self.size, max_bytes + INTERVAL_BYTES)
        found: list[Buffer] = []
        used = 0
        while position < self.size:
            if found and not window.holds(position, HEADER_BYTES):
                break
            header = self._header(window, position)
            size = header.batch_length
            if header.end_offset > end or (found and (used + size > max_bytes or not window.holds(position, size))):
                break
            if header.end_offset > offset:
                found.append(window.get(position, size))
                used += size
            position += size
        return found

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds ``offset``."""
        for _, header in self._walk(self.index.for_offset(offset)[0]):
            if header.end_offset > offset:
                yield header

    def first_since(self, timestamp_ms: int) -> BatchHeader | None:
        """Header of the first batch with a record at or after ``timestamp_ms``."""
        if self.max_timestamp < timestamp_ms:
            return None
        for _, header in self._walk(self.index.for_timestamp(timestamp_ms)[0]):
            if header.max_timestamp >= timestamp_ms:
                return header
        return None

    def _walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        try:
            yield from walk(self.file, position, self.size)
        except CorruptBatch as error:
            raise CorruptLog(self.path, error.message) from error

    def _header(self, window: Window, position: int) -> BatchHeader:
        try:
            header = read_header(window.get(position, HEADER_BYTES))
        except CorruptBatch as error:
            raise CorruptLog(self.path, f"at byte {position}: {error.message}") from error
        if position + header.batch_length > self.size:
            raise CorruptLog(self.path, f"at byte {position}: batch declares length {header.batch_length}")
        return header
