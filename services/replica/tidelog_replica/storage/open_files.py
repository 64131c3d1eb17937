"""A disk whose open files are bounded: those that are idle are closed, and opened again when they are next used.

Ten thousand partitions keep more files open than a process may have descriptors. So this stands between the logs and
the ``Disk``: what ``open`` gives stays valid for as long as its user likes, the descriptor below it does not. When
more than ``limit`` are open, the file whose last use is longest ago is closed. Never closed is

    a file in use      some thread is in a call of it: its descriptor could become another file's an unsynced one
    written or cut since its last sync: whether the disk took that is reported to descriptors that were
                       open when it failed, and a sync through a new one may know nothing of it (Linux remembers the
                       failure for those that come later only as long as the inode stays in memory)
    a nameless one     its path was unlinked or renamed, or another file took it: it could not be opened again

Where too many are unsynced, as those of topics that are never flushed, those whose last use is longest ago are synced
so that they can be closed: by ``tidy``, a job that is wanted when the files are ``crowded``
(``maintenance/file_pool.py``), and where that comes too late by the next call that opens a file. A sync that failed
there is the server's end (``failure``), and every later sync of that file fails, too. Beyond that the limit is
passed.

Every method may be called in any thread; calls of different files run side by side, and no call waits for the disk
under the lock but the opening, closing and renaming of files.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence

from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer


class _PooledFile:
    """One user's file. All fields but the counts of changes are the pool's, under its lock."""

    __slots__ = ("_pool", "changes", "closed", "failed", "file", "named", "path", "synced", "users")

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
        self.failed = False
        """A sync failed: another one would succeed, and prove nothing."""

    def size(self) -> int:
        """Return the length in bytes; see ``File``."""
        file = self._pool._enter(self)
        try:
            return file.size()
        finally:
            self._pool._leave(self)

    def pread(self, length: int, position: int) -> bytes:
        """Read up to ``length`` bytes at a position; see ``File``."""
        file = self._pool._enter(self)
        try:
            return file.pread(length, position)
        finally:
            self._pool._leave(self)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers at a position; see ``File``."""
        file = self._pool._enter(self)
        self.changes += 1
        try:
            file.pwritev(buffers, position)
        finally:
            self._pool._leave(self)

    def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros; see ``File``."""
        file = self._pool._enter(self)
        self.changes += 1
        try:
            file.truncate(size)
        finally:
            self._pool._leave(self)

    def sync(self) -> None:
        """Make data and size durable; see ``File``. A file that was closed meanwhile is synced too: its pages may be
        an earlier process's."""
        self.sync_entered(self._pool._enter(self))

    def sync_entered(self, file: File) -> None:
        """Sync it and leave it."""
        changes = self.changes
        try:
            if self.failed:
                raise OSError(errno.EIO, "a sync of the file failed earlier", self.path)
            file.sync()
            self.synced = changes
        except OSError:
            self.failed = True
            raise
        finally:
            self._pool._leave(self)

    def close(self) -> None:
        """Release the file, without a sync; see ``File``."""
        self._pool._close(self)


class OpenFiles:
    """``Disk`` over ``disk``, with at most ``limit`` files open as far as that is possible."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._most = limit + max(4, limit // 8)
        """So many are open before the next one to be opened waits for a sync."""
        self._lock = threading.Lock()
        self._resting: dict[_PooledFile, None] = {}
        """Open files that may be closed, the longest unused first."""
        self._unsynced: dict[_PooledFile, None] = {}
        """Open files that may be closed when they are synced, the longest unused first."""
        self._by_path: dict[str, list[_PooledFile]] = {}
        """All files that have a user and are still found under their path."""
        self.opened = 0
        """Files that are open now."""
        self.failure = ""
        """The error with which a file could not be synced that no flush was about to sync; the disk has failed
        then."""

    @property
    def crowded(self) -> bool:
        """Most of what may be open is unsynced: time to ``tidy``."""
        return len(self._unsynced) > self._limit * 3 // 4

    def tidy(self) -> None:
        """Sync unsynced files, the longest unused first, until half of what may be open is not."""
        self._sync_all_but(self._limit // 2)

    def _sync_all_but(self, count: int) -> None:
        while not self.failure:
            with self._lock:
                if len(self._unsynced) <= count:
                    return
                pooled = next(iter(self._unsynced))
                del self._unsynced[pooled]
                pooled.users += 1
                file = pooled.file
            assert file is not None
            try:
                pooled.sync_entered(file)
            except OSError as error:
                self.failure = f"{pooled.path}: {error}"

    def _make_room(self) -> None:
        """Before a file is opened: where far too many are open, and all unsynced, wait for the disk."""
        if self.opened >= self._most and not self._resting and self._unsynced:
            self._sync_all_but(len(self._unsynced) - 1)

    # --- files -------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; see ``Disk``."""
        self._make_room()
        with self._lock:
            self._shrink(self._limit - 1)
            pooled = _PooledFile(self, path, self._disk.open(path, create=create))
            self.opened += 1
            self._by_path.setdefault(path, []).append(pooled)
            self._resting[pooled] = None
            return pooled

    def _enter(self, pooled: _PooledFile) -> File:
        if pooled.file is None:
            self._make_room()
        with self._lock:
            self._resting.pop(pooled, None)
            self._unsynced.pop(pooled, None)
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
            if pooled.users or pooled.file is None:
                return
            if pooled.closed:
                self._close_file(pooled)
            elif pooled.named and pooled.synced == pooled.changes:
                self._resting[pooled] = None
                self._shrink(self._limit)
            elif pooled.named and not pooled.failed:
                self._unsynced[pooled] = None

    def _shrink(self, limit: int) -> None:
        while self.opened > limit and self._resting:
            pooled = next(iter(self._resting))
            del self._resting[pooled]
            self._close_file(pooled)

    def _close_file(self, pooled: _PooledFile) -> None:
        file, pooled.file = pooled.file, None
        self.opened -= 1
        assert file is not None
        file.close()

    def _close(self, pooled: _PooledFile) -> None:
        with self._lock:
            pooled.closed = True
            self._resting.pop(pooled, None)
            self._unsynced.pop(pooled, None)
            self._forget(pooled)
            if pooled.file is not None and not pooled.users:
                self._close_file(pooled)

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
            self._unsynced.pop(pooled, None)
            pooled.named = False

    # --- names -------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Read a whole file; see ``Disk``."""
        return self._disk.read(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file durably; see ``Disk``."""
        with self._lock:
            self._hold(path)
        self._disk.write_atomic(path, data)

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its directory; see ``Disk``."""
        with self._lock:
            self._hold(source)
            self._hold(target)
            self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file; see ``Disk``."""
        with self._lock:
            self._hold(path)
            self._disk.unlink(path)

    def listdir(self, path: str) -> list[str]:
        """List the names in a directory; see ``Disk``."""
        return self._disk.listdir(path)

    def mkdir(self, path: str) -> None:
        """Create a directory durably, with its parents; see ``Disk``."""
        self._disk.mkdir(path)

    def rmtree(self, path: str) -> None:
        """Remove a directory whose files are not used any more; see ``Disk``."""
        self._disk.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Make the changes of a directory durable; see ``Disk``."""
        self._disk.sync_dir(path)

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written; see ``Disk``."""
        return self._disk.modified_ms(path)

    def free(self, path: str) -> int:
        """Return how many bytes may still be written; see ``Disk``."""
        return self._disk.free(path)

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes disk space; see ``Disk``."""
        self._disk.allocate(path, size)
