"""The disk seam: what the replica server's log asks of a file system, and the real one.

All calls are synchronous and may block. The log writes to the page cache in the caller's thread (measured
cheaper than a thread hop) and the shell calls ``sync`` in a worker thread, so the simulation replaces the disk,
not the log. Every call may raise ``OSError``. Nothing is durable before ``File.sync`` (data and size of one file) or
``Disk.sync_dir`` (creations, renames and removals in one directory) has returned. A ``sync`` that failed is never
tried again as if nothing had happened: the pages may be gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tidelog.private import DIRECTORY_MODE, FILE_MODE
from tidelog.runtime.operating_system import drop_from_cache, reserve, sync_all, sync_data
from tidelog.types import Buffer

IOV_MAX = 1024
"""Most buffers that one ``pwritev`` takes (Linux)."""
GIVE_BACK_PARTS = 4
"""Pages are dropped from the page cache whenever ``cached_bytes``, divided by this number, were written since the
last time."""


class File(Protocol):
    """An open file, read and written at explicit positions, in bytes. Every method blocks and may raise
    ``OSError``."""

    def size(self) -> int:
        """Return the length of the file in bytes, as written, whether durable or not."""

    def pread(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes from ``position`` on; fewer, or none, only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers, one after the other, from ``position`` on. They are not durable before ``sync``. After
        an ``OSError`` the content of the range is unknown."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, or extend it with zeros to that length. Not durable before ``sync``."""

    def sync(self) -> None:
        """Make everything written so far durable, and the length of the file. Blocks until it is; may run
        in a thread while others write."""

    def close(self) -> None:
        """Close the file. What was written since the last ``sync`` may be lost in a crash of the machine."""


class Disk(Protocol):
    """A file system, real or simulated. Paths are texts with ``/``. Every method blocks and may raise ``OSError``."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing, and return it. With ``create`` a missing file is created; otherwise
        ``FileNotFoundError`` is raised."""

    def read(self, path: str) -> bytes:
        """Return the content of a whole file. Raises ``FileNotFoundError`` if it is missing."""

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the content of a file by ``data``, durably when this returns: after a crash the file holds the old
        bytes or the new ones. A missing file is created."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file within one directory, atomically; a file named ``target`` is replaced. Durable after
        ``sync_dir``."""

    def unlink(self, path: str) -> None:
        """Remove a file; durable after ``sync_dir``. Raises ``FileNotFoundError`` if it is missing."""

    def listdir(self, path: str) -> list[str]:
        """Return the names of the files and directories in a directory, sorted. Raises ``FileNotFoundError`` if it is
        missing."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its missing parents, durably when this returns. Does nothing if it exists."""

    def rmtree(self, path: str) -> None:
        """Remove a directory and everything in it, durably when this returns."""

    def sync_dir(self, path: str) -> None:
        """Make the creations, renames and removals of files in this directory durable."""

    def modified_ms(self, path: str) -> int | None:
        """Return when the file was last written, in milliseconds since 1970 of the wall clock; None if the file
        system does not know."""

    def free(self, path: str) -> int:
        """Return how many bytes may still be written to the file system that has this directory."""

    def total(self, path: str) -> int:
        """Return how many bytes the file system that has this directory holds, free or not."""

    def allocate(self, path: str, size: int) -> None:
        """Create a file that reserves ``size`` bytes of disk space until it is removed. Its content has no
        meaning."""


class _RealFile:
    """A file of the operating system, open under the descriptor ``fd``. ``cached_bytes``: as for ``RealDisk``."""

    def __init__(self, fd: int, cached_bytes: int = 0) -> None:
        self._fd = fd
        self._cached_bytes = cached_bytes
        self._given_back = 0
        """The end of the last range that was dropped from the page cache."""

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        while len(data) < length:  # a short read is the end of the file or a signal: ask on
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        pending = [memoryview(b) for b in buffers]
        while pending:
            written = os.pwritev(self._fd, pending[:IOV_MAX], position)
            position += written
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]
        if self._cached_bytes:
            self._give_back(position - self._cached_bytes)

    def _give_back(self, until: int) -> None:
        """Drop the pages of the file before ``until`` (a position in bytes) from the page cache, in parts. The first
        time only begins to write pages that are not on the disk yet. So each part is named again with those that
        follow it."""
        if until - self._given_back >= self._cached_bytes / GIVE_BACK_PARTS:
            start = max(0, self._given_back - self._cached_bytes)
            drop_from_cache(self._fd, start, until - start)
            self._given_back = until

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        sync_data(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """The file system of the operating system. ``cached_bytes``: about so many bytes before the place of the last
    write stay in the page cache, for each file; 0: the kernel decides."""

    def __init__(self, cached_bytes: int = 0) -> None:
        self._cached_bytes = cached_bytes

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _RealFile(os.open(path, flags, FILE_MODE), self._cached_bytes)

    def read(self, path: str) -> bytes:
        file = _RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # a third of the price of ``Path.read_bytes``
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            sync_all(fd)
        finally:
            os.close(fd)
        Path(temporary).replace(path)
        self.sync_dir(str(Path(path).parent))

    def rename(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def unlink(self, path: str) -> None:
        Path(path).unlink()

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 (names, not paths)

    def mkdir(self, path: str) -> None:
        if os.path.isdir(path):  # noqa: PTH112 (a tenth of the price)
            return
        made = Path(path)
        self.mkdir(str(made.parent))
        made.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self.sync_dir(str(made.parent))

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)
        self.sync_dir(str(Path(path).parent))

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(fd)
        finally:
            os.close(fd)

    def modified_ms(self, path: str) -> int | None:
        return Path(path).stat().st_mtime_ns // 1_000_000

    def free(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def allocate(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            reserve(fd, size)
        finally:
            os.close(fd)
