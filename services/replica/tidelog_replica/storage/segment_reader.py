"""Reading a segment's file in chunks, and what a failure to read it means.

A segment that cannot be read counts as damaged: another replica has its records. The active segment does not, if this
process has written to it: then the disk fails, and it is unknown which of the writes are on it.
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
"""Bytes that are read at a time where only headers are needed."""
BATCHES_CHUNK_BYTES = 1 << 20
"""Bytes that are read at a time where whole batches are needed."""


class CorruptLog(OSError):
    """An error that says that durable bytes of a log are damaged, missing or unreadable. The partition must then not
    serve, and needs the data of another replica. ``doubt`` is a ``DoubtfulLog`` that describes the end of the log if
    recovery found that the log is sound only below the synced offset; otherwise None."""

    def __init__(self, path: str, message: str, doubt: OSError | None = None) -> None:
        super().__init__(errno.EIO, message, path)
        self.doubt = doubt


def lost(path: str, error: OSError) -> OSError:
    """Return the error to raise in place of ``error``, which opening or reading the file ``path`` of a closed segment
    has raised: a ``CorruptLog`` if the file is missing or the medium fails, otherwise ``error`` itself."""
    if isinstance(error, CorruptLog) or error.errno not in UNREADABLE:
        return error
    return CorruptLog(path, f"it cannot be read: {error.strerror or error}")


class SegmentReader:
    """A reader of the batches in one segment's file, which reads forward in chunks of ``chunk_bytes``. ``size`` is
    the number of stored bytes that may be read. ``path`` is the file's path, or None if the segment is still written:
    then a failing disk is not reported as damage. ``open_window`` makes it for one pass over the file."""

    def __init__(self, file: File, size: int, chunk_bytes: int, path: str | None) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._chunk = memoryview(b"")
        self._start = 0

    def stored(self, length: int) -> int:
        """Return how many bytes a batch of ``length`` bytes takes in the file."""
        return length

    def holds(self, position: int, length: int) -> bool:
        """Return whether the batch of ``length`` bytes at byte ``position`` lies in the chunk that is in memory, so
        that ``get`` needs no disk read."""
        return self._start <= position and position + length <= self._start + len(self._chunk)

    def get(self, position: int, length: int) -> memoryview:
        """Return the first ``length`` bytes of the batch that is stored at byte ``position``; fewer at the end of the
        file. Reads another chunk from the disk if necessary. Raises ``OSError``, and ``CorruptBatch`` if the batch is
        encrypted and cannot be decrypted. In an encrypted file, ``length`` must lie within the header or be the whole
        batch; otherwise it raises ``CorruptBatch``."""
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


class _EncryptedSegmentReader(SegmentReader):
    """A reader of the file of an encrypted segment, which decrypts the batches with ``cipher``."""

    def __init__(self, cipher: Cipher, file: File, size: int, chunk_bytes: int, path: str | None) -> None:
        super().__init__(file, size, chunk_bytes, path)
        self._cipher = cipher
        self._head = (-1, b"")
        """The position of the batch that was decrypted last, and its first bytes."""

    def stored(self, length: int) -> int:
        """Return how many bytes a batch of ``length`` bytes takes in the file when it is encrypted."""
        return stored_bytes(length)

    def holds(self, position: int, length: int) -> bool:
        """Return whether the encrypted form of the batch of ``length`` bytes at byte ``position`` lies in the chunk
        that is in memory, so that ``get`` needs no disk read."""
        return super().holds(position, stored_bytes(length))

    def get(self, position: int, length: int) -> memoryview:
        """Return the first ``length`` bytes of the batch at byte ``position``, decrypted. Raises ``OSError``, and
        ``CorruptBatch`` if the bytes cannot be decrypted. ``length`` must lie within the header or be the whole
        batch; otherwise it raises ``CorruptBatch``."""
        if self._head[0] != position:
            self._head = (position, decrypt_head(self._cipher, super().get(position, HEAD_BYTES)))
        head = self._head[1]
        if length <= len(head):
            return memoryview(head)[:length]
        return memoryview(head + decrypt_rest(self._cipher, super().get(position, stored_bytes(length))))


def open_window(file: File, size: int, chunk_bytes: int, path: str | None) -> SegmentReader:
    """Return a reader for the batches in a segment's file, encrypted or not. ``size`` is the number of stored bytes
    that may be read, ``chunk_bytes`` the size of one disk read. ``path`` is the file's path, or None if the segment
    is still written, so that a failing disk is not reported as damage. Raises ``KeyMissing`` if no known key opens
    the file, and other ``OSError``s."""
    cipher = cipher_of(file) if size else None
    if cipher is None:
        return SegmentReader(file, size, chunk_bytes, path)
    return _EncryptedSegmentReader(cipher, file, size, chunk_bytes, path)


def walk(window: SegmentReader, position: int, size: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield byte position, header and header bytes of each batch that the reader ``window`` finds from byte
    ``position`` to byte ``size``. Raises ``CorruptBatch`` at the first batch whose header is bad or that is cut
    short."""
    while position < size:
        header = read_header(window.get(position, HEADER_BYTES))
        if position + window.stored(header.size) > size:
            raise CorruptBatch(f"batch declares length {header.size} but {size - position} bytes follow")
        yield position, header, window.get(position, min(SPARSE_HEADER_BYTES, size - position))
        position += window.stored(header.size)
