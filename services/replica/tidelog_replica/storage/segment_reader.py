"""A segment's file as it is read: in chunks, and with what it means that the medium does not give it back.

A segment that cannot be read is as good as damaged, and may be had from others. Not so where this process has written
to it as the log's last one: then the disk fails, and it is not known what of that is there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from tidelog.batch.format import HEADER_BYTES, SPARSE_HEADER_BYTES, BatchHeader, read_header
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import File

from tidelog_replica.storage.checkpoints import UNREADABLE
from tidelog_replica.storage.encryption.files import HEAD_BYTES, cipher_of, decrypt_head, decrypt_rest, stored_bytes
from tidelog_replica.storage.encryption.keyring import Cipher

HEADERS_CHUNK_BYTES = 64 << 10
BATCHES_CHUNK_BYTES = 1 << 20


class CorruptLog(OSError):
    """Durable bytes of a log are damaged, missing or unreadable. The partition must not serve, and needs another
    replica's data. ``doubt``: a ``DoubtfulLog`` that describes the tail, if recovery found that the log is sound only
    below the synced offset; None otherwise."""

    def __init__(self, path: str, message: str, doubt: OSError | None = None) -> None:
        super().__init__(errno.EIO, message, path)
        self.doubt = doubt


def lost(path: str, error: OSError) -> OSError:
    """What an error means that was met in opening or reading the segment at ``path``, which is not written."""
    if isinstance(error, CorruptLog) or error.errno not in UNREADABLE:
        return error
    return CorruptLog(path, f"it cannot be read: {error.strerror or error}")


class SegmentReader:
    """Reads a segment's file in chunks, going forward. ``path``: where it is; None: it is being written. ``size``: so
    far, in bytes as they are stored. See ``open_window``."""

    def __init__(self, file: File, size: int, chunk_bytes: int, path: str | None) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")
        self._start = 0

    def stored(self, length: int) -> int:
        """So many bytes a batch of ``length`` takes in the file."""
        return length

    def holds(self, position: int, length: int) -> bool:
        """Whether a batch of that length needs no further read."""
        return self._start <= position and position + length <= self._start + len(self._chunk)

    def get(self, position: int, length: int) -> memoryview:
        """The first bytes of the batch that is stored there; fewer only at the end of the file. Raises ``OSError``,
        and ``CorruptBatch`` where it is encrypted and does not open, as when ``length`` is beyond its header and not
        the whole of it."""
        if not (self._start <= position and position + length <= self._start + len(self._chunk)):
            wanted = min(max(length, self._chunk_bytes), self._size - position)
            try:
                self._chunk = memoryview(self._file.pread(wanted, position))
            except OSError as error:
                if self._path is None:
                    raise
                raise lost(self._path, error) from error
            self._start = position
        return self._chunk[position - self._start : position - self._start + length]


class _SealedWindow(SegmentReader):
    """A window over the file of an encrypted segment."""

    def __init__(self, cipher: Cipher, file: File, size: int, chunk_bytes: int, path: str | None) -> None:
        super().__init__(file, size, chunk_bytes, path)
        self._cipher = cipher
        self._head = (-1, b"")
        """Where a batch was opened last, and how it begins."""

    def stored(self, length: int) -> int:
        return stored_bytes(length)

    def holds(self, position: int, length: int) -> bool:
        return super().holds(position, stored_bytes(length))

    def get(self, position: int, length: int) -> memoryview:
        if self._head[0] != position:
            self._head = (position, decrypt_head(self._cipher, super().get(position, HEAD_BYTES)))
        head = self._head[1]
        if length <= len(head):
            return memoryview(head)[:length]
        return memoryview(head + decrypt_rest(self._cipher, super().get(position, stored_bytes(length))))


def open_window(file: File, size: int, chunk_bytes: int, path: str | None) -> SegmentReader:
    """A ``SegmentReader`` on a file that is encrypted, or is not. Raises ``OSError``."""
    cipher = cipher_of(file) if size else None
    if cipher is None:
        return SegmentReader(file, size, chunk_bytes, path)
    return _SealedWindow(cipher, file, size, chunk_bytes, path)


def walk(window: SegmentReader, position: int, size: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Position, header and header's bytes of the batches from ``position`` to ``size``; raises ``CorruptBatch`` at
    the first that is bad or cut short."""
    while position < size:
        header = read_header(window.get(position, HEADER_BYTES))
        if position + window.stored(header.size) > size:
            raise CorruptBatch(f"batch declares length {header.size} but {size - position} bytes follow")
        yield position, header, window.get(position, min(SPARSE_HEADER_BYTES, size - position))
        position += window.stored(header.size)
