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
    """Reads a segment's file in chunks, going forward. ``path``: where it is; None: it is being written."""

    def __init__(self, file: File, size: int, chunk_bytes: int, path: str | None) -> None:
        self._file = file
        self._path = path
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
        if position + header.size > size:
            raise CorruptBatch(f"batch declares length {header.size} but {size - position} bytes follow")
        yield position, header, window.get(position, min(SPARSE_HEADER_BYTES, size - position))
        position += header.size
