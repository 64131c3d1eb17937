"""A disk with a bound on open files: idle ones are closed, and opened again when they are next used.

Ten thousand partitions keep more files open than a process may have descriptors. So this disk stands between the logs
and the real ``Disk``: a file that ``open`` returns stays valid until its user closes it, while its descriptor may be
closed in between. When more than ``limit`` files are open, the file whose last use is longest ago is closed. Three
kinds of files are never closed:

    in use      a thread is in a call of the file: its descriptor could become another file's
    unsynced    the file was written or cut since its last sync. A failure of the disk is reported to descriptors that
                were open when it happened; a sync through a new one may not report it (Linux remembers the failure
                for later descriptors only as long as the inode stays in memory)
    nameless    its path was unlinked or renamed, or another file took the path: it could not be opened again

If too many files are unsynced, such as those of topics that are never flushed, those whose last use is longest ago
are synced so that they can be closed. ``tidy`` does that, a job that runs when the files are ``crowded``
(``maintenance/file_pool.py``); if it comes too late, the next call that opens a file does it. If such a sync fails,
the server ends (``failure``), and every later sync of that file fails, too. Where nothing can be closed, the limit is
exceeded.

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
    """A file that one user has opened through the pool. It stays valid for the user while the pool closes and reopens
    its descriptor. All fields except the counts of changes belong to the pool and are guarded by its lock. Every call
    may raise ``OSError``, and does so once the user has closed the file."""

    __slots__ = ("_pool", "changes", "closed", "failed", "file", "named", "path", "synced", "users")

    def __init__(self, pool: OpenFiles, path: str, file: File) -> None:
        self._pool = pool
        self.path = path
        self.file: File | None = file
        self.users = 0
        self.named = True
        self.closed = False
        self.changes = 0
        """How many writes and cuts have begun."""
        self.synced = 0
        """The value of ``changes`` when the last successful sync began."""
        self.failed = False
        """Whether a sync has failed: another one would succeed and prove nothing, so every later sync raises."""

    def size(self) -> int:
        """Return the length of the file in bytes."""
        file = self._pool._enter(self)
        try:
            return file.size()
        finally:
            self._pool._leave(self)

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes from byte ``position`` on; fewer at the end of the file."""
        file = self._pool._enter(self)
        try:
            return file.pread(length, position)
        finally:
            self._pool._leave(self)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers, one after the other, at byte ``position``. The file then counts as unsynced, so its
        descriptor stays open until a sync."""
        file = self._pool._enter(self)
        self.changes += 1
        try:
            file.pwritev(buffers, position)
        finally:
            self._pool._leave(self)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes, or extend it with zeros. The file then counts as unsynced, so its
        descriptor stays open until a sync."""
        file = self._pool._enter(self)
        self.changes += 1
        try:
            file.truncate(size)
        finally:
            self._pool._leave(self)

    def sync(self) -> None:
        """Make data and size of the file durable. If the pool has closed the descriptor, the file is opened again and
        synced all the same, because an earlier process may have written its pages. Raises ``OSError``; once a sync
        has failed, every later sync raises, too."""
        self.sync_entered(self._pool._enter(self))

    def sync_entered(self, file: File) -> None:
        """Sync the open descriptor ``file``, for which the pool has already counted this call as a use, and end that
        use. Raises ``OSError``; once a sync has failed, every later sync raises, too."""
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
        """Close the file for its user, without a sync: every later call on it raises ``OSError``. The descriptor is
        closed when no other thread is in a call of the file."""
        self._pool._close(self)


class OpenFiles:
    """A ``Disk`` over another disk, ``disk``, that keeps at most ``limit`` files open as far as that is possible. A
    server has one for all its logs, from its start to its end."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._most = limit + max(4, limit // 8)
        """When this many files are open, opening another one waits for a sync."""
        self._lock = threading.Lock()
        self._resting: dict[_PooledFile, None] = {}
        """Open files that may be closed, the longest unused first."""
        self._unsynced: dict[_PooledFile, None] = {}
        """Open files that may be closed when they are synced, the longest unused first."""
        self._by_path: dict[str, list[_PooledFile]] = {}
        """All files that have a user and are still found under their path."""
        self.opened = 0
        """How many files are open now."""
        self.failure = ""
        """The error of a sync that this pool made in order to close a file, as text; empty if none has failed. The
        disk has failed then, and the server must end."""

    @property
    def crowded(self) -> bool:
        """Return whether more than three quarters of the limit are open files that are unsynced, so that ``tidy``
        should run."""
        return len(self._unsynced) > self._limit * 3 // 4

    def tidy(self) -> None:
        """Sync unsynced files, the longest unused first, until at most half of the limit is unsynced. Blocks on the
        disk. If a sync fails, stop and set ``failure``, upon which the server ends."""
        self._sync_all_but(self._limit // 2)

    def _sync_all_but(self, count: int) -> None:
        """Sync unsynced files, the longest unused first, until at most ``count`` are left. If a sync fails, stop and
        set ``failure``."""
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
        """Sync the unsynced file whose last use is longest ago if far too many files are open and none of them may be
        closed. The file can then be closed."""
        if self.opened >= self._most and not self._resting and self._unsynced:
            self._sync_all_but(len(self._unsynced) - 1)

    # --- files -------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing, creating it with ``create``, and return a handle that stays valid
        until its user closes it. If too many files are open, idle ones are synced and closed before. Raises
        ``OSError``."""
        self._make_room()
        with self._lock:
            self._shrink(self._limit - 1)
            pooled = _PooledFile(self, path, self._disk.open(path, create=create))
            self.opened += 1
            self._by_path.setdefault(path, []).append(pooled)
            self._resting[pooled] = None
            return pooled

    def _enter(self, pooled: _PooledFile) -> File:
        """Begin a use of the file: count it, and return the file's descriptor, which is opened again if the pool had
        closed it. The descriptor stays open until ``_leave``. Raises ``OSError``, also if the user has closed the
        file."""
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
        """End a use of the file. When no use is left, the pool may close the descriptor if the file is synced; it
        closes it at once if the user has closed the file."""
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
        """Close idle, synced files, the longest unused first, until at most ``limit`` are open or none is left to
        close."""
        while self.opened > limit and self._resting:
            pooled = next(iter(self._resting))
            del self._resting[pooled]
            self._close_file(pooled)

    def _close_file(self, pooled: _PooledFile) -> None:
        """Close the descriptor of a file. A later use of the file opens it again."""
        file, pooled.file = pooled.file, None
        self.opened -= 1
        assert file is not None
        file.close()

    def _close(self, pooled: _PooledFile) -> None:
        """Mark a file as closed by its user, and close its descriptor when no call uses it any more."""
        with self._lock:
            pooled.closed = True
            self._resting.pop(pooled, None)
            self._unsynced.pop(pooled, None)
            self._forget(pooled)
            if pooled.file is not None and not pooled.users:
                self._close_file(pooled)

    def _forget(self, pooled: _PooledFile) -> None:
        """Remove a file from the index of files by path. Does nothing if it is not in the index."""
        known = self._by_path.get(pooled.path, [])
        if pooled in known:
            known.remove(pooled)
            if not known:
                del self._by_path[pooled.path]

    def _hold(self, path: str) -> None:
        """Open the descriptors of all files that were opened under this path, and keep them open until their users
        close the files. The files are about to lose the path, so they could not be opened again."""
        for pooled in self._by_path.pop(path, []):
            if pooled.file is None:
                pooled.file = self._disk.open(path)
                self.opened += 1
            self._resting.pop(pooled, None)
            self._unsynced.pop(pooled, None)
            pooled.named = False

    # --- names -------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return the content of the whole file at ``path``. Raises ``OSError``."""
        return self._disk.read(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the content of the file at ``path`` by ``data``, durably and in one step. Handles of the old file
        stay valid. Raises ``OSError``."""
        with self._lock:
            self._hold(path)
        self._disk.write_atomic(path, data)

    def rename(self, source: str, target: str) -> None:
        """Rename the file ``source`` to ``target`` within its directory, over an existing file; durable only after a
        ``sync_dir``. Open handles of both files stay valid. Raises ``OSError``."""
        with self._lock:
            self._hold(source)
            self._hold(target)
            self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Delete the file at ``path``; durable only after a ``sync_dir``. Open handles of the file stay valid. Raises
        ``OSError``."""
        with self._lock:
            self._hold(path)
            self._disk.unlink(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names of the files and directories in the directory ``path``. Raises ``OSError``."""
        return self._disk.listdir(path)

    def mkdir(self, path: str) -> None:
        """Create a directory durably, with its parents. Raises ``OSError``."""
        self._disk.mkdir(path)

    def rmtree(self, path: str) -> None:
        """Remove a directory with all its files, none of which may be in use. Raises ``OSError``."""
        self._disk.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Make new, renamed and removed names in a directory durable. Raises ``OSError``."""
        self._disk.sync_dir(path)

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written, in ms since 1970; None if that is unknown."""
        return self._disk.modified_ms(path)

    def free(self, path: str) -> int:
        """Return how many bytes may still be written to the file system that holds ``path``. Raises ``OSError``."""
        return self._disk.free(path)

    def total(self, path: str) -> int:
        """Return how many bytes the file system that holds ``path`` has, free or not. Raises ``OSError``."""
        return self._disk.total(path)

    def allocate(self, path: str, size: int) -> None:
        """Create a file of ``size`` bytes at ``path`` that takes its disk space at once. Raises ``OSError``."""
        self._disk.allocate(path, size)
