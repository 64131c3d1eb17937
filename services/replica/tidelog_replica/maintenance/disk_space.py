"""Disk space: a reserve that is removed when the disk is full, so that retention and deletion can go on.

A full disk accepts nothing, not even the few bytes that a server must write to start, to lead, or to let retention
delete old segments. So a file of ``reserve_bytes`` is kept in the data directory while there is enough disk space.
The server checks the free space every ``CHECK_S``, and whenever half of the reserve's bytes were appended since:

    enough  the reserve is created if twice its size stays free besides it
    full    less than its size was free, and the reserve is removed. Nothing is appended: producers are refused
            (``DISK_FULL``), leaders are not asked for more, nothing is compacted or repaired. This server leaves a
            partition to the other replicas in sync, if there are any. With commit rule ``quorum`` it leaves only what
            it leads, and only if a majority of them asks for more: otherwise a server that is full too would be
            elected again and again. Reads go on, and so do deletions and retention, which is checked often now. A
            follower, which hears nothing of its leader, applies the topic's retention itself
    enough  again, when three times its size was free and the reserve could be created

The server makes the same check before the first write of an incarnation. If that write fails although the check
passed (a quota, no more inodes), the server removes the reserve and tries the write one more time. A write that meets
a full disk later, since other programs fill it faster, ends the process like any other write that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.runtime.disk import Disk

from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import RESERVE_DISK
from tidelog_replica.storage.compaction import NO_ROOM

NAME = "reserve"
"""Name of the reserve's file in the data directory."""
CHECK_S = 1.0
"""Pause between two checks of the free space, in seconds."""
RETRY_S = 60.0
"""Pause in seconds before the next try to create a reserve for which there was not enough disk space."""
ERROR_RETRY_S = 5.0
"""Pause in seconds before the next try after another error. It is short, since a server whose disk was full accepts
no records until the reserve exists."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """The job that creates the reserve's file ``path`` of ``size`` bytes. It has no result."""

    disk: Disk
    path: str
    size: int

    def run(self) -> None:
        """Create the reserve's file. If the disk fails, or has too little space, remove the file again and raise the
        ``OSError``."""
        try:
            self.disk.allocate(self.path, self.size)
        except OSError:
            remove_reserve(self.disk, self.path)
            raise


def remove_reserve(disk: Disk, path: str) -> bool:
    """Remove the reserve's file, so that its bytes are free. Return whether there was one. The removal need not be
    durable. Raises ``OSError`` if the disk fails."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


class DiskSpace:
    """The part of a node that checks the free space of the data directory, and keeps a *reserve*: a file of
    ``reserve_bytes`` that is removed when the disk is full, so that retention can still work. While the disk counts
    as full, ``effects.full`` holds the reason, by which all other parts refuse appends. If the setting
    ``reserve_bytes`` is 0 nothing is checked. It lives as long as the node."""

    def __init__(self, context: NodeContext) -> None:
        self.free_bytes = 0
        """Free bytes of the disk at the last check; 0 before the first one."""
        self.size_bytes = 0
        """Size of the disk at the last check; 0 before the first one."""
        self._disk = context.disk
        self._directory = context.directory
        self._path = f"{context.directory}/{NAME}"
        self._reserve_bytes = context.settings.reserve_bytes
        self._effects = context.effects
        self._timers = context.timers
        self._has_reserve = False
        self._known_full = False
        """The value of ``is_full`` that ``on_input_over`` last compared."""
        self._appended = 0
        """Total bytes that the server had appended by the last check."""
        self._make_at = 0.0
        self._due: float | None = None

    @property
    def is_full(self) -> bool:
        """Return whether the disk counts as full, so that the server accepts no records."""
        return bool(self._effects.full)

    def start(self, now: float, begin: Callable[[], None]) -> None:
        """Create the data directory, check its free space, and call ``begin``, which writes the incarnation's first
        bytes. If ``begin`` fails for want of space, remove the reserve and call ``begin`` one more time. Raises
        ``OSError`` if the second call fails too, if there was no reserve to remove, or if the error has another
        cause."""
        if self._reserve_bytes:
            self._disk.mkdir(self._directory)
            self._has_reserve = NAME in self._disk.listdir(self._directory)
            self._due = now
            self._check()
        try:
            begin()
        except OSError as error:
            if error.errno not in NO_ROOM or not self._remove_reserve():
                raise
            if self._reserve_bytes:
                self._become_full()
                self._make_at = now + RETRY_S
            begin()

    def on_tick(self, now: float) -> None:
        """Do nothing. The timer only causes an input, and ``on_input_over`` is called at the end of every input."""

    def on_input_over(self, now: float) -> bool:
        """Check the free space if ``CHECK_S`` has passed since the last regular check, or if half of the reserve's
        bytes were appended since the last check. Then, if the reserve is missing and there is enough space, start the
        job that creates it. Return whether the disk has become full, or has stopped being full, since the last call.
        Does nothing and returns False if ``reserve_bytes`` is 0."""
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
            if (
                not self._has_reserve
                and self.free_bytes >= 3 * size
                and now >= self._make_at
                and not jobs.busy(RESERVE_DISK)
            ):
                jobs.start(RESERVE_DISK, Allocate(self._disk, self._path, size), self._on_allocated)
        known, self._known_full = self._known_full, bool(self._effects.full)
        return known != self._known_full

    def _check(self) -> None:
        """Measure the free bytes of the disk. If they are fewer than the reserve has, remove the reserve and forbid
        appends."""
        counts = self._effects.counts
        self._appended = counts.produced_bytes + counts.replicated_bytes
        self.free_bytes, self.size_bytes = self._disk.free(self._directory), self._disk.total(self._directory)
        if self.free_bytes < self._reserve_bytes:
            self._become_full()

    def _become_full(self) -> None:
        """Remove the reserve, forbid appends by setting ``effects.full``, and log ``disk_full`` if the disk was not
        full before."""
        gave_up = self._remove_reserve()
        if not self._effects.full:
            self._effects.event("disk_full", free_bytes=self.free_bytes, reserve_given_up=gave_up)
        self._effects.full = f"{self.free_bytes} bytes are free in {self._directory}"

    def _remove_reserve(self) -> bool:
        """Remove the reserve's file, and record that there is none. Return whether there was one. Raises ``OSError``
        if the disk fails."""
        self._has_reserve = False
        return remove_reserve(self._disk, self._path)

    def _on_allocated(self, result: object, now: float) -> None:
        """Act on the end of the job that creates the reserve: record that the reserve exists, and if the disk is not
        full any more allow appends again and log ``disk_roomy``. After an error log ``reserve_failed`` and try again
        after a pause."""
        if isinstance(result, OSError):
            self._make_at = now + (RETRY_S if result.errno in NO_ROOM else ERROR_RETRY_S)
            self._effects.event("reserve_failed", reason=str(result))
            return
        self._has_reserve = True
        self._check()
        if self._has_reserve and self._effects.full:
            self._effects.full = ""
            self._effects.event("disk_roomy", free_bytes=self.free_bytes)
