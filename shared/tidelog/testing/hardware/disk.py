"""A disk in memory that loses power: ``tidelog.runtime.disk.Disk`` for the simulation and for the log's own tests.

Theory. Every file has two contents: what programs read (the page cache) and what is *stable*, with the list of
changes in between, which ``File.sync`` applies. Names have the same two forms, per directory, and ``sync_dir``. At
``crash`` every change that was not synced meets its own fate, whatever became of the others: kept, lost, torn at any
byte, torn with a flipped bit, there as zeros (the size arrived, the data did not), or in any of its sectors. Real
file systems are kinder (ordered journals); code that survives this one survives them.

A sync that fails drops its changes: they can still be read, no later sync makes them stable, and a power loss takes
them. That is what ext4 does after a failed write-back.

Nothing here is random but the generator given to ``crash``. A process that is killed while the machine goes on needs
no call at all: it opens its files anew.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import NoReturn

from tidelog.runtime.disk import File
from tidelog.testing.hardware.inode import Inode, Resize, Write
from tidelog.testing.hardware.name_index import Listing, parent
from tidelog.types import Buffer


class PowerLost(BaseException):
    """The machine has no power. Every call of a disk raises it from the loss until ``crash``. It is no ``Exception``,
    so that no handler of errors catches it."""


@dataclass(slots=True)
class _Fault:
    """An injected error of one kind of call. The first ``after`` calls succeed, all later ones raise until healed.
    ``only``: the calls are only those whose path ends with this text. ``error`` 0: no fault."""

    error: int = 0
    after: int = 0
    only: str = ""

    def strike(self, what: str) -> None:
        """Raise ``OSError`` if the fault applies to a call for this path; count down if it does not yet."""
        if not self.error or not what.endswith(self.only):
            return
        if self.after:
            self.after -= 1
            return
        raise OSError(self.error, f"simulated: {os.strerror(self.error)}", what)


class _SimFile:
    """An open file of a simulated disk (``tidelog.runtime.disk.File``). Calls after a power loss raise ``PowerLost``,
    calls after ``close`` raise ``OSError``."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self._closed = False

    def _check(self) -> None:
        if self._life != self._disk.life:
            raise PowerLost(f"{self._path} was opened before the power loss")
        if self._closed:
            raise OSError(errno.EBADF, "simulated: the file is closed", self._path)

    def size(self) -> int:
        self._check()
        self._disk._read(self._path)
        return len(self._inode.content)

    def pread(self, length: int, position: int) -> bytes:
        self._check()
        self._disk._read(self._path)
        return bytes(self._inode.content[position : position + length])

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._check()
        data = b"".join(buffers)
        power = self._disk._change()
        try:
            self._disk._writes.strike(self._path)
            if position + len(data) > len(self._inode.content):
                self._disk._check_room(self._path, position + len(data) - len(self._inode.content))
        except OSError:
            self._inode.change(Write(position, data[: len(data) // 2]))  # what stands there now is unknown
            raise
        if data:
            self._inode.change(Write(position, data))
        if not power:
            self._disk._die()

    def truncate(self, size: int) -> None:
        self._check()
        power = self._disk._change()
        self._inode.change(Resize(size))
        if not power:
            self._disk._die()

    def sync(self) -> None:
        self._check()
        if not self._disk._change():
            self._disk._die()
        try:
            self._disk._syncs.strike(self._path)
        except OSError:
            self._inode.pending.clear()
            raise
        self._inode.sync()

    def close(self) -> None:
        self._check()
        self._closed = True


_Names = dict[str, Inode | None]


class SimDisk:
    """A file system in memory that loses power and fails on command. ``life`` counts power losses, ``changes`` the
    calls that change something: a test counts them in one run and loses power at each of them in the next runs."""

    def __init__(self) -> None:
        self.life = 0
        self.changes = 0
        self._names: dict[str, Inode] = {}
        self._stable: dict[str, Inode] = {}
        self._pending: dict[str, list[_Names]] = {}
        self._directories: dict[str, None] = {"/": None, "": None}
        self._listing = Listing()
        self._writes, self._reads, self._syncs = _Fault(), _Fault(), _Fault()
        self._power: int | None = None
        self._dead = False
        self.full = False
        """While True, no file grows and none is created: such calls raise ``OSError`` (ENOSPC)."""
        self.capacity = 1 << 40
        """The number of bytes that all files together may have; 1 << 40 means no limit."""
        self._allocated: dict[str, int] = {}
        self._quiet = False
        self.modified: dict[str, int] = {}
        """The time of the last write of a file in ms, by path. Only tests set it."""
        self.rots = False
        """Whether a bit of any file was ever flipped."""

    # --- Disk --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; see ``Disk``."""
        self._read(path)
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "simulated: no such file", path)
            self._check_room(path)
            inode = Inode()
            self._rename({path: inode})
        return _SimFile(self, path, inode)

    def read(self, path: str) -> bytes:
        """Read a whole file; see ``Disk``."""
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file in the steps of the real disk; the power may go between any two. See ``Disk``."""
        file = self.open(path + ".new", create=True)
        file.truncate(0)
        file.pwritev([data], 0)
        file.sync()
        self.rename(path + ".new", path)
        self.sync_dir(parent(path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its directory; see ``Disk``."""
        self._rename({source: None, target: self._inode(source)})

    def unlink(self, path: str) -> None:
        """Remove a file; see ``Disk``."""
        self._inode(path)
        self._rename({path: None})

    def listdir(self, path: str) -> list[str]:
        """List the names in a directory; see ``Disk``."""
        self._read(path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "simulated: no such directory", path)
        return self._listing.of(path, self._names, self._directories)

    def mkdir(self, path: str) -> None:
        """Create a directory, durable at once; see ``Disk``."""
        if path in self._directories:
            return
        self.mkdir(parent(path))
        if not self._change():
            self._die()
        self._directories[path] = None
        self._listing.add(path)

    def rmtree(self, path: str) -> None:
        """Remove a directory file by file; see ``Disk``."""
        self._read(path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "simulated: no such directory", path)
        below = path + "/"
        for name in sorted(self._names):
            if name.startswith(below):
                self.unlink(name)
                self.sync_dir(parent(name))
        if not self._change():
            self._die()
        for name in sorted(self._directories):
            if name == path or name.startswith(below):
                del self._directories[name]
                self._listing.remove(name)

    def sync_dir(self, path: str) -> None:
        """Make the changes of a directory durable; see ``Disk``."""
        if not self._change():
            self._die()
        self._syncs.strike(path)
        for change in self._pending.pop(path, []):
            _apply(self._stable, change)

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written; see ``Disk``."""
        return self.modified.get(path)

    def free(self, path: str) -> int:
        """Return the bytes left of the whole disk; see ``Disk``."""
        held = sum(size for name, size in self._allocated.items() if name in self._names)
        used = sum(len(inode.content) for inode in self._names.values()) if self.capacity < 1 << 40 else 0
        return 0 if self.full else max(0, self.capacity - used - held)

    def total(self, path: str) -> int:
        """Return the size of the whole disk; see ``Disk``."""
        return self.capacity

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes disk space; see ``Disk``."""
        self.open(path, create=True).close()
        self._allocated.pop(path, None)
        self._check_room(path, size)
        self._allocated[path] = size

    # --- faults ------------------------------------------------------------------------------------------

    def fail_writes(self, error: int = errno.EIO, after: int = 0) -> None:
        """Make every write after the next ``after`` ones write half of its bytes and fail with ``error``, until
        ``heal``. Error 0 ends the fault, as in the next two methods."""
        self._writes = _Fault(error, after)

    def fail_reads(self, error: int = errno.EIO, after: int = 0, only: str = "") -> None:
        """Make every read after the next ``after`` ones fail with ``error``, until ``heal``. ``only``: reads of files
        whose path ends with this text."""
        self._reads = _Fault(error, after, only)

    def fail_syncs(self, error: int = errno.EIO, after: int = 0) -> None:
        """Make every sync after the next ``after`` ones fail with ``error``, until ``heal``. A failed sync drops the
        pending changes of its file: they stay readable and never become stable."""
        self._syncs = _Fault(error, after)

    def heal(self) -> None:
        """End all injected errors, the full disk and a planned power loss. A power loss that has happened needs
        ``crash``."""
        self._writes, self._reads, self._syncs = _Fault(), _Fault(), _Fault()
        self._power = None
        self.full = False

    def lose_power(self, after: int = 0) -> None:
        """Plan a power loss in the middle of a change (write, resize, sync, rename), after ``after`` more changes.
        That call and every later one raise ``PowerLost`` until ``crash``."""
        self._power = after

    def crash(self, rng: Random) -> None:
        """Lose power and restart: each unsynced change of content or of names is kept, lost or damaged at random,
        open files become unusable, and injected errors end. A full disk stays full."""
        kept = rng.choice((0.0, 0.3, 0.7, 1.0))
        for directory in sorted(self._pending):
            for change in self._pending[directory]:
                if rng.random() < kept:
                    _apply(self._stable, change)
        self._pending.clear()
        for path in sorted(self._stable):
            self._stable[path].crash(rng, kept)
        self._names = dict(self._stable)
        self._listing.forget()
        full = self.full
        self.heal()
        self.full = full
        self._dead = False
        self.life += 1

    def replace(self, path: str, data: bytes) -> None:
        """Set the bytes of a file, durably, as damage from outside. Files that are open keep the old content."""
        self._names[path] = self._stable[path] = Inode(bytearray(data), bytearray(data))
        self._pending.pop(parent(path), None)
        self._listing.add(path)

    def flip(self, path: str, position: int, bit: int) -> None:
        """Invert one bit of a file, durably, as bit rot. Open files read the changed bit."""
        self.rots = True
        self._names[path].flip(position, bit)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For the duration of the block, reads meet neither injected errors nor flipped bits: a check of the
        simulation reads, and no process."""
        rotten = [inode for inode in self._names.values() if inode.flips] if self.rots else []
        for inode in rotten:
            inode.turn(0)
        self._quiet = True
        yield
        self._quiet = False
        for inode in rotten:
            inode.turn(0)

    @property
    def rotten(self) -> list[str]:
        """The paths of files with a flipped bit that was not overwritten."""
        return [path for path, inode in self._names.items() if inode.flips]

    def files(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(self._names)

    def stable(self, path: str) -> bytes:
        """Return the bytes of a file that a power loss leaves at least; b"" if the file does not exist."""
        return bytes(self._names[path].stable) if path in self._names else b""

    def stable_size(self, path: str) -> int:
        """Return how many bytes of a file are stable and not cut off by a later truncation that is not."""
        inode = self._names[path]
        return min(len(inode.stable), len(inode.content))

    def exists(self, path: str) -> bool:
        """Return whether a file of this path exists."""
        return path in self._names

    def clone(self) -> SimDisk:
        """Return an independent copy of the disk with its pending changes. Open files stay with the original."""
        twins: dict[int, Inode] = {}

        def twin(inode: Inode) -> Inode:
            """Of a file that has several names, stable or not yet, there is one copy."""
            return twins.get(id(inode)) or twins.setdefault(id(inode), inode.clone())

        other = copy.copy(self)
        other._names = {path: twin(inode) for path, inode in self._names.items()}
        other._stable = {path: twin(inode) for path, inode in self._stable.items()}
        other._pending = {
            path: [{name: inode and twin(inode) for name, inode in change.items()} for change in changes]
            for path, changes in self._pending.items()
        }
        other._directories = dict(self._directories)
        other._listing = Listing()
        other._writes, other._reads, other._syncs = map(copy.copy, (self._writes, self._reads, self._syncs))
        other._allocated = dict(self._allocated)
        other.modified = dict(self.modified)
        return other

    # --- inside ------------------------------------------------------------------------------------------

    def _inode(self, path: str) -> Inode:
        self._read(path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "simulated: no such file", path)
        return self._names[path]

    def _rename(self, change: _Names) -> None:
        path = next(iter(change))
        if parent(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "simulated: no such directory", path)
        power = self._change()
        _apply(self._names, change)
        for name, inode in change.items():
            (self._listing.remove if inode is None else self._listing.add)(name)
        self._pending.setdefault(parent(path), []).append(change)
        if not power:
            self._die()

    def _read(self, path: str) -> None:
        if self._dead:
            self._die()
        if not self._quiet:
            self._reads.strike(path)

    def _check_room(self, path: str, size: int = 0) -> None:
        """Raise ``OSError`` (ENOSPC) if the disk is full or has fewer than ``size`` bytes left."""
        if self.full or (self.capacity < 1 << 40 and size > self.free("")):
            raise OSError(errno.ENOSPC, "simulated: no space left", path)

    def _change(self) -> bool:
        """Count a change and return True, or return False if the power goes during this change."""
        if self._dead:
            self._die()
        self.changes += 1
        if self._power is None:
            return True
        self._power -= 1
        return self._power >= 0

    def _die(self) -> NoReturn:
        self._dead = True
        raise PowerLost("the power is gone")


def _apply(names: dict[str, Inode], change: _Names) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
