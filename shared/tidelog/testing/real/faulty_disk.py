"""The disk of a replica server in a test: real files, which can be slow, and to which a killed server writes nothing
more.

Nothing is synced. A test kills servers, not the machine, and what a killed process has written is in the page cache.
So tests wait for no device, and how long a sync takes is up to ``slow_down`` alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from tidelog.runtime.disk import File, RealDisk
from tidelog.types import Buffer


class SlowSync:
    """How long each sync of one server's files takes. It outlives the server's restarts. Threads may use it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._quick = threading.Event()

    def slow_down(self, seconds: float) -> None:
        """Let each sync that begins from now on take so many seconds. With 0 syncs take no time, and those that wait
        return at once."""
        waiting, self._quick, self._seconds = self._quick, threading.Event(), seconds
        waiting.set()

    def release(self) -> None:
        """Let the syncs that wait return at once; those that begin later take as long as before."""
        self.slow_down(self._seconds)

    def wait(self) -> None:
        """Wait for as long as a sync takes. Blocks."""
        if self._seconds > 0:
            self._quick.wait(self._seconds)


class FaultyDisk(RealDisk):
    """The disk of one incarnation of a replica server. After ``kill`` every change is dropped without an error: a
    killed server, whose last tasks are still being cancelled, leaves its files as they were at that moment."""

    def __init__(self, slow: SlowSync) -> None:
        super().__init__()
        self.is_dead = False
        self.slow = slow

    def kill(self) -> None:
        """Drop every change from now on, and let the syncs that wait return."""
        self.is_dead = True
        self.slow.release()

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file; see ``Disk.open``. Instead of a file that would have to be created after ``kill`` it opens the
        null device."""
        if self.is_dead and create and not Path(path).exists():
            path = os.devnull
        return _FaultyFile(super().open(path, create=create), self)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file by another one that is renamed to its name; see ``Disk.write_atomic``."""
        if not self.is_dead:
            temporary = f"{path}.new"
            file = super().open(temporary, create=True)
            try:
                file.truncate(0)
                file.pwritev([data], 0)
            finally:
                file.close()
            super().rename(temporary, path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file; see ``Disk.rename``."""
        if not self.is_dead:
            super().rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file; see ``Disk.unlink``."""
        if not self.is_dead:
            super().unlink(path)

    def mkdir(self, path: str) -> None:
        """Create a directory; see ``Disk.mkdir``."""
        if not self.is_dead:
            super().mkdir(path)

    def rmtree(self, path: str) -> None:
        """Remove a directory; see ``Disk.rmtree``."""
        if not self.is_dead:
            super().rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Do nothing: see the docstring of this module."""

    def allocate(self, path: str, size: int) -> None:
        """Reserve disk space; see ``Disk.allocate``."""
        if not self.is_dead:
            super().allocate(path, size)


class _FaultyFile:
    """An open file of a ``FaultyDisk``."""

    def __init__(self, file: File, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        if not self._disk.is_dead:
            self._file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        if not self._disk.is_dead:
            self._file.truncate(size)

    def sync(self) -> None:
        if not self._disk.is_dead:
            self._disk.slow.wait()

    def close(self) -> None:
        self._file.close()
