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

from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import RESERVE_DISK
from tidelog_replica.storage.compaction import NO_ROOM

NAME = "reserve"
"""Name of the reserve's file in the data directory."""
CHECK_S = 1.0
"""Pause between two checks."""
RETRY_S = 60.0
"""Pause before the next try to make a reserve for which there was no disk space."""
ERROR_RETRY_S = 5.0
"""Pause before the next try after another error: the disk may be fine by then, and a server whose disk was full takes
no records until the reserve is there."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """The job that makes the file of the reserve, of ``size`` bytes. It has no result."""

    disk: Disk
    path: str
    size: int

    def run(self) -> None:
        """Make the reserve's file; see ``Job``. If that fails the file is removed. Raises ``OSError``."""
        try:
            self.disk.allocate(self.path, self.size)
        except OSError:
            give_up(self.disk, self.path)
            raise


def give_up(disk: Disk, path: str) -> bool:
    """Remove the reserve's file. Return whether there was one. The removal need not be durable. Raises
    ``OSError``."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True


class DiskSpace:
    """The part of a node that watches the free space of the data directory, and keeps the reserve. It sets
    ``effects.full``, by which all other parts refuse appends. If the setting ``reserve_bytes`` is 0 nothing is
    checked."""

    def __init__(self, context: NodeContext) -> None:
        self.free_bytes = 0
        """Free bytes of the disk at the last check."""
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
        """Bytes that the server had appended in total at the last check."""
        self._make_at = 0.0
        self._due: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether the disk counts as full, so that no records are taken."""
        return bool(self._effects.full)

    def start(self, now: float, begin: Callable[[], None]) -> None:
        """Check the disk, then call ``begin``, which writes the incarnation's first bytes. If ``begin`` fails for
        want of space, remove the reserve and call it one more time. Raises ``OSError``."""
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
        """Do nothing: the timer only makes an input, at whose end ``on_input_over`` checks."""

    def on_input_over(self, now: float) -> bool:
        """Check the free space if ``CHECK_S`` has passed or half of the reserve was appended since the last check,
        and start to make a missing reserve if there is enough space. Return whether the disk has become full, or has
        enough space again, since the last call."""
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
        """Measure the free bytes; if they are fewer than the reserve, the disk counts as full from now on."""
        counts = self._effects.counts
        self._appended = counts.produced_bytes + counts.replicated_bytes
        self.free_bytes = self._disk.free(self._directory)
        if self.free_bytes < self._reserve_bytes:
            self._become_full()

    def _become_full(self) -> None:
        """Remove the reserve, forbid appends, and log ``disk_full`` if the disk was not full before."""
        gave_up = self._give_up()
        if not self._effects.full:
            self._effects.event("disk_full", free_bytes=self.free_bytes, reserve_given_up=gave_up)
        self._effects.full = f"{self.free_bytes} bytes are free in {self._directory}"

    def _give_up(self) -> bool:
        """Remove the reserve's file; return whether there was one."""
        self._has_reserve = False
        return give_up(self._disk, self._path)

    def _on_allocated(self, result: object, now: float) -> None:
        """Record that the reserve was made, and allow appends again if the disk was full. After an error log
        ``reserve_failed`` and try again later."""
        if isinstance(result, OSError):
            self._make_at = now + (RETRY_S if result.errno in NO_ROOM else ERROR_RETRY_S)
            self._effects.event("reserve_failed", reason=str(result))
            return
        self._has_reserve = True
        self._check()
        if self._has_reserve and self._effects.full:
            self._effects.full = ""
            self._effects.event("disk_roomy", free_bytes=self.free_bytes)
