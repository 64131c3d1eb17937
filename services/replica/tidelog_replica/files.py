"""A disk whose open files are bounded: those that rest are closed, and opened again when they are next used.

Ten thousand partitions keep more files open than a process may have descriptors. So this stands between the logs and
the ``Disk``: what ``open`` gives stays valid for as long as its user likes, the descriptor below it does not. When
more than ``limit`` are open, the file whose last use is longest ago is closed. Never closed is

    a file in use      some thread is in a call of it: its descriptor could become another file's
    an unsynced one    written or cut since its last sync: whether the disk took that is told to descriptors that were
                       open when it failed, and a sync through a new one may know nothing of it
    a nameless one     its path was unlinked or renamed, or another file took it: it could not be opened again

Where nothing else is left the limit is passed. Every method may be called in any thread; calls of different files run
side by side, and no call waits for the disk under the lock but the opening of a file.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence

from tidelog.disk import Disk, File
from tidelog.types import Buffer


class _PooledFile:
    """One user's file. All fields but the counts of changes are the pool's, under its lock."""

    __slots__ = ("_pool", "changes", "closed", "file", "named", "path", "synced", "users")

    def __init__(self, pool: OpenFiles, path: str, file: File) -> None:
        self._pool = pool
        self.path = path
        self.file: File | None = file
        self.users = 0
        self.named = True
        self.closed = False
        self.changes = 0
        """Counts writes and cuts, before each begins."""
        self.synced = 0
        """``changes`` as it was when the last sync that succeeded began."""

    def size(self) -> int:
        """See ``File``."""
        file = self._pool._enter(self)
        try:
            return file.size()
        finally:
            self._pool._leave(self)

    def pread(self, length: int, position: int) -> bytes:
        """See ``File``."""
        file = self._pool._enter(self)
        try:
            return file.pread(length, position)
        finally:
            self._pool._leave(self)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """See ``File``."""
        file = self._pool._enter(self)
        self.changes += 1
        try:
            file.pwritev(buffers, position)
        finally:
            self._pool._leave(self)

    def truncate(self, size: int) -> None:
        """See ``File``."""
        file = self._pool._enter(self)
        self.changes += 1
        try:
            file.truncate(size)
        finally:
            self._pool._leave(self)

    def sync(self) -> None:
        """See ``File``. A file that was closed meanwhile is synced too: its pages may be a former life's."""
        file = self._pool._enter(self)
        changes = self.changes
        try:
            file.sync()
            self.synced = changes
        finally:
            self._pool._leave(self)

    def close(self) -> None:
        """See ``File``."""
        self._pool._close(self)


class OpenFiles:
    """``Disk`` over ``disk``, with at most ``limit`` files open as far as that is possible."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._resting: dict[_PooledFile, None] = {}
        """Open files that may be closed, the longest unused first."""
        self._by_path: dict[str, list[_PooledFile]] = {}
        """All files that have a user and are still found under their path."""
        self.opened = 0
        """Files that are open now."""

    # --- files -------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        """See ``Disk``."""
        with self._lock:
            self._shrink(self._limit - 1)
            pooled = _PooledFile(self, path, self._disk.open(path, create=create))
            self.opened += 1
            self._by_path.setdefault(path, []).append(pooled)
            self._resting[pooled] = None
            return pooled

    def _enter(self, pooled: _PooledFile) -> File:
        with self._lock:
            self._resting.pop(pooled, None)
            if pooled.closed:
                raise OSError(errno.EBADF, "the file is closed", pooled.path)
            if pooled.file is None:
                self._shrink(self._limit - 1)
                pooled.file = self._disk.open(pooled.path)
                self.opened += 1
            pooled.users += 1
            return pooled.file

    def _leave(self, pooled: _PooledFile) -> None:
        with self._lock:
            pooled.users -= 1
            if not pooled.users and pooled.named and pooled.file is not None and pooled.synced == pooled.changes:
                self._resting[pooled] = None
                self._shrink(self._limit)

    def _shrink(self, limit: int) -> None:
        while self.opened > limit and self._resting:
            pooled = next(iter(self._resting))
            del self._resting[pooled]
            file, pooled.file = pooled.file, None
            self.opened -= 1
            assert file is not None
            file.close()

    def _close(self, pooled: _PooledFile) -> None:
        with self._lock:
            pooled.closed = True
            self._resting.pop(pooled, None)
            self._forget(pooled)
            file, pooled.file = pooled.file, None
            if file is not None:
                self.opened -= 1
                file.close()

    def _forget(self, pooled: _PooledFile) -> None:
        known = self._by_path.get(pooled.path, [])
        if pooled in known:
            known.remove(pooled)
            if not known:
                del self._by_path[pooled.path]

    def _hold(self, path: str) -> None:
        """The files that are open under this path are about to lose it: they stay open until they are closed."""
        for pooled in self._by_path.pop(path, []):
            if pooled.file is None:
                pooled.file = self._disk.open(path)
                self.opened += 1
            self._resting.pop(pooled, None)
            pooled.named = False

    # --- names -------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """See ``Disk``."""
        return self._disk.read(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        """See ``Disk``."""
        with self._lock:
            self._hold(path)
        self._disk.write_atomic(path, data)

    def rename(self, source: str, target: str) -> None:
        """See ``Disk``."""
        with self._lock:
            self._hold(source)
            self._hold(target)
            self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """See ``Disk``."""
        with self._lock:
            self._hold(path)
            self._disk.unlink(path)

    def listdir(self, path: str) -> list[str]:
        """See ``Disk``."""
        return self._disk.listdir(path)

    def mkdir(self, path: str) -> None:
        """See ``Disk``."""
        self._disk.mkdir(path)

    def rmtree(self, path: str) -> None:
        """See ``Disk``. Nobody uses the files in it any more."""
        self._disk.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """See ``Disk``."""
        self._disk.sync_dir(path)
