"""A segment's file as it is read: in chunks, and with what it means that the medium does not give it back.

A segment that cannot be read is as good as damaged, and may be had from others. Not so where this process has written
to it as the log's last one: then the disk fails, and nobody can say what of that is there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from tidelog.disk import File
from tidelog.errors import CorruptBatch
from tidelog.records import HEADER_BYTES, SPARSE_HEADER_BYTES, BatchHeader, read_header

from tidelog_replica.log.files import UNREADABLE
from tidelog_replica.log.sealed import HEAD_BYTES, cipher_of, open_head, open_rest, stored_size

HEADERS_CHUNK_BYTES = 64 << 10
BATCHES_CHUNK_BYTES = 1 << 20


class CorruptLog(OSError):
    """Bytes that were durable are damaged or gone. The partition must not serve; its data must come from another
    replica."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(errno.EIO, message, path)


def lost(path: str, error: OSError) -> OSError:
    """What an error means that was met in opening or reading the segment at ``path``, which is not written."""
    if isinstance(error, CorruptLog) or error.errno not in UNREADABLE:
        return error
    return CorruptLog(path, f"it cannot be read: {error.strerror or error}")


class Window:
    """Reads a segment's file in chunks, going forward. ``path``: where it is; None: it is being written. ``size``: so
    far, in bytes as they are stored."""

    def __init__(self, file: File, size: int, chunk_bytes: int, path: str | None) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")
        self._start = 0
        self._cipher = cipher_of(file) if size else None
        self._head = (-1, b"")
        """Where a batch was opened last, and how it begins."""

    def stored(self, length: int) -> int:
        """So many bytes a batch of ``length`` takes in the file."""
        return stored_size(self._file, length)

    def holds(self, position: int, length: int) -> bool:
        """Whether a batch of that length needs no further read."""
        return self._holds(position, self.stored(length))

    def get(self, position: int, length: int) -> memoryview:
        """The first bytes of the batch that is stored there; fewer only at the end of the file. Raises ``OSError``,
        and ``CorruptBatch`` where it is encrypted and does not open, as when ``length`` is beyond its header and not
        the whole of it."""
        if self._cipher is None:
            return self._raw(position, length)
        if self._head[0] != position:
            self._head = (position, open_head(self._cipher, self._raw(position, HEAD_BYTES)))
        head = self._head[1]
        if length <= len(head):
            return memoryview(head)[:length]
        return memoryview(head + open_rest(self._cipher, self._raw(position, self.stored(length))))

    def _holds(self, position: int, length: int) -> bool:
        return self._start <= position and position + length <= self._start + len(self._chunk)

    def _raw(self, position: int, length: int) -> memoryview:
        if not self._holds(position, length):
            wanted = min(max(length, self._chunk_bytes), self._size - position)
            try:
                self._chunk = memoryview(self._file.pread(wanted, position))
            except OSError as error:
                if self._path is None:
                    raise
                raise lost(self._path, error) from error
            self._start = position
        return self._chunk[position - self._start : position - self._start + length]


def walk(window: Window, position: int, size: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and header's bytes of the batches from ``position`` to ``size``; raises ``CorruptBatch`` at
    the first that is bad or cut short."""
    while position < size:
        header = read_header(window.get(position, HEADER_BYTES))
        if position + window.stored(header.size) > size:
            raise CorruptBatch(f"batch declares length {header.size} but {size - position} bytes follow")
        yield position, header, window.get(position, min(SPARSE_HEADER_BYTES, size - position))
        position += window.stored(header.size)
