"""Disk space: a reserve that is given up when the disk is full, so that retention and deletion can go on.

A full disk takes nothing, not even the few bytes that a server must write to start, to lead, or to let retention
delete what has had its time. So a file of ``reserve_bytes`` stands in the data directory while there is enough
disk space. Every ``CHECK_S``, and whenever half of the reserve was appended since, the server checks how much is
free:

    enough  the reserve is made where, besides it, twice its size stays free
    full    less than its size was free: the reserve is gone. Nothing is appended: producers are refused
            (``DISK_FULL``), leaders are not asked for more, nothing is compacted or repaired. Where others are in
            sync this server leaves them the partition; with commit rule ``quorum`` only what it leads, and only if
            a majority of them asks for more: so a server that is full, too, is not elected again and again. Reads go
            on, and so do deletions and retention, which is looked at often now; a follower, which hears nothing of
            its leader, goes by the topic's itself
    enough  again, when three times its size was free, and the reserve could be made

The same check comes before an incarnation writes its first byte. Where that write fails all the same (a quota, no
more inodes) the reserve goes, too, and the write is tried one more time. A write that meets a full disk in spite of
all that, since others fill it faster, ends the process like any other that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.runtime.disk import Disk
from tidelog.types import TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.storage.compaction import NO_ROOM

KEY = TopicPartition("", -3)
"""Of the job: it works on no partition."""
NAME = "reserve"
"""Of the file, in the data directory."""
CHECK_S = 1.0
"""Pause between two checks."""
RETRY_S = 60.0
"""Pause before a reserve for which there was no disk space is tried again."""
ERROR_RETRY_S = 5.0
"""Pause before a reserve is tried again that could not be made for another reason: the disk may be fine by now, and
a server whose disk was full takes no records until the reserve is there."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make the reserve. No result. Where the disk cannot hold it after all, no part of it is left."""

    disk: Disk
    path: str
    size: int

    def run(self) -> None:
        """Make the file of the reserve; see ``Job``."""
        try:
            self.disk.allocate(self.path, self.size)
        except OSError:
            give_up(self.disk, self.path)
            raise


def give_up(disk: Disk, path: str) -> bool:
    """Remove the reserve, if there is one; whether there was. That need not be durable."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


class DiskSpace:
    """Of one data directory. ``effects.full`` is how the rest of the server knows. With the setting
    ``reserve_bytes`` 0 nothing is looked at."""

    def __init__(self, context: NodeContext) -> None:
        self.free_bytes = 0
        """Free bytes at the last check."""
        self._disk = context.disk
        self._directory = context.directory
        self._path = f"{context.directory}/{NAME}"
        self._reserve_bytes = context.settings.reserve_bytes
        self._effects = context.effects
        self._timers = context.timers
        self._has_reserve = False
        self._known_full = False
        """Whether the rest of the server was last notified of a full disk."""
        self._appended = 0
        """Bytes that were appended until the last check."""
        self._make_at = 0.0
        self._due: float | None = None

    @property
    def is_full(self) -> bool:
        """No records are taken."""
        return bool(self._effects.full)

    def start(self, now: float, begin: Callable[[], None]) -> None:
        """Begin the incarnation by ``begin``, after a check of the disk. Raises ``OSError``."""
        if self._reserve_bytes:
            self._disk.mkdir(self._directory)
            self._has_reserve = NAME in self._disk.listdir(self._directory)
            self._due = now
            self._check()
        try:
            begin()
        except OSError as error:
            if error.errno not in NO_ROOM or not self._give_up():
                raise
            if self._reserve_bytes:
                self._become_full()
                self._make_at = now + RETRY_S
            begin()

    def on_tick(self, now: float) -> None:
        """Do nothing: the end of every input calls ``on_input_over``."""

    def on_input_over(self, now: float) -> bool:
        """Check the disk, if it is time or much was appended. Return whether it has become full, or has enough space
        again."""
        if self._due is None:
            return False
        counts = self._effects.counts
        appended = counts.produced_bytes + counts.replicated_bytes - self._appended
        is_due = now >= self._due
        if is_due:
            self._due = now + CHECK_S
            self._timers.set(self, self._due)
        if is_due or appended >= self._reserve_bytes // 2:
            self._check()
            size, jobs = self._reserve_bytes, self._effects.jobs
            if not self._has_reserve and self.free_bytes >= 3 * size and now >= self._make_at and not jobs.busy(KEY):
                jobs.start(KEY, Allocate(self._disk, self._path, size), self._on_allocated)
        known, self._known_full = self._known_full, bool(self._effects.full)
        return known != self._known_full

    def _check(self) -> None:
        counts = self._effects.counts
        self._appended = counts.produced_bytes + counts.replicated_bytes
        self.free_bytes = self._disk.free(self._directory)
        if self.free_bytes < self._reserve_bytes:
            self._become_full()

    def _become_full(self) -> None:
        gave_up = self._give_up()
        if not self._effects.full:
            self._effects.event("disk_full", free_bytes=self.free_bytes, reserve_given_up=gave_up)
        self._effects.full = f"{self.free_bytes} bytes are free in {self._directory}"

    def _give_up(self) -> bool:
        self._has_reserve = False
        return give_up(self._disk, self._path)

    def _on_allocated(self, result: object, now: float) -> None:
        if isinstance(result, OSError):
            self._make_at = now + (RETRY_S if result.errno in NO_ROOM else ERROR_RETRY_S)
            self._effects.event("reserve_failed", reason=str(result))
            return
        self._has_reserve = True
        self._check()
        if self._has_reserve and self._effects.full:
            self._effects.full = ""
            self._effects.event("disk_roomy", free_bytes=self.free_bytes)
