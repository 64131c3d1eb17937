"""How far a log is compacted and how far it has lost tombstones, so that no deleted key comes back.

Theory. Each copy of a partition is compacted at a time of its own. A copy that holds ``k=v`` and fetches only after
its leader has dropped the tombstone of ``k`` never gets the deletion: it would hold ``v`` for ever. Two offsets on
the disk prevent that. Both are ``OffsetCheckpoint``s:

    compacted_to     below it every record is gone that a later one below it replaces or deletes
    tombstones_to    below it tombstones may be gone; never above ``compacted_to``

``compacted_to`` may lie above the log's end: the copy is then being filled from a leader that was compacted up to
there when the copy was empty. A pass drops tombstones below ``compacted_to`` only, and raises ``tombstones_to``
first, durably.

A copy may continue from its end with the batches of a source, unless the source has lost tombstones between that end
and the source's ``tombstones_to`` which a record in the copy needs (``lacks``). No record needs a tombstone below the
copy's own ``compacted_to``, and an empty copy needs none. ``before_append`` and ``before_fill`` keep both offsets
true for the batches that are about to be written.

A log of an earlier release has no ``tombstones_to``: its passes may have dropped every tombstone below
``compacted_to``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.runtime.disk import Disk

from tidelog_replica.storage.checkpoints import COMPACTED, TOMBSTONES, OffsetCheckpoint


class Compacted(NamedTuple):
    """Two offsets that describe a log from which batches come: the log is compacted below ``compacted_to``, and may
    have lost tombstones below ``tombstones_to``. The default, twice 0, stands for unknown."""

    compacted_to: int = 0
    tombstones_to: int = 0


UNKNOWN = Compacted()
"""The value for batches that come from a producer, or from a server of an earlier release."""


class Deletions:
    """The two offsets ``compacted_to`` and ``tombstones_to`` of one log, in memory and in files. It lives as long as
    the log is open. ``names`` are the names of all files in the directory. Making the object reads the files and
    repairs an offset that is missing or too low. Every method may raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._compacted = OffsetCheckpoint(disk, f"{directory}/{COMPACTED}", there=COMPACTED in names)
        self._tombstones = OffsetCheckpoint(disk, f"{directory}/{TOMBSTONES}", there=TOMBSTONES in names)
        if self._tombstones.value is None and self._compacted.value:
            self._tombstones.write(self._compacted.value)
        if self.compacted_to < self.tombstones_to:  # ``compacted_to`` was not synced and is lost
            self._compacted.write(self.tombstones_to)

    @property
    def compacted_to(self) -> int:
        """Return the offset below which every record is gone that a later one below it replaces or deletes. It may be
        above the log's end."""
        return self._compacted.value or 0

    @property
    def tombstones_to(self) -> int:
        """Return the offset below which tombstones may be gone. It may be above the log's end."""
        return self._tombstones.value or 0

    def reach_behind(self, offset: int) -> bool:
        """Return whether ``compacted_to`` or ``tombstones_to`` of this log is above ``offset``."""
        return (self._compacted.value or 0) > offset or (self._tombstones.value or 0) > offset

    def lacks(self, start: int, end: int, source: Compacted) -> bool:
        """Return whether this log, which holds the offsets ``start`` to ``end`` (exclusive), may hold values whose
        tombstones it would never get if it continued with the batches of ``source`` from ``end`` on. Always False for
        an empty log."""
        return start < end and source.tombstones_to > max(end, self.compacted_to)

    def before_append(self, start: int, end: int, source: Compacted) -> None:
        """Adapt ``compacted_to`` and ``tombstones_to`` before batches of ``source`` are appended to this log, which
        holds the offsets ``start`` to ``end`` (exclusive). An empty log takes over the ``compacted_to`` of the
        source; that of another log is lowered to the source's or to ``end``, whichever is higher. ``tombstones_to``
        becomes the source's if that is above ``end``. What a crash must not lose is synced. This log must not lack
        tombstones of ``source``."""
        if source is UNKNOWN and not self.reach_behind(0):
            return
        compacted_to = source.compacted_to
        if start < end:
            compacted_to = min(self.compacted_to, max(compacted_to, end))
        if max(self.compacted_to, compacted_to, self.tombstones_to, source.tombstones_to) > end:
            tombstones_to = min(self.tombstones_to, end)
            self._become(compacted_to, source.tombstones_to if source.tombstones_to > end else tombstones_to)

    def fault_of_fill(self, base: int, source: Compacted) -> str | None:
        """Return a text that says why a hole in this log, which begins at offset ``base``, must not be filled with
        batches of ``source``; None if it may be. It must not if the batches may hold values whose tombstones this log
        has dropped, or if they lack tombstones of values that this log holds."""
        if self.tombstones_to > base and source.compacted_to < self.tombstones_to:
            return (
                f"the leader is compacted to {source.compacted_to}, this log lost tombstones to {self.tombstones_to}"
            )
        if source.tombstones_to > base and self.compacted_to < source.tombstones_to:
            return (
                f"the leader lost tombstones to {source.tombstones_to}, this log is compacted to {self.compacted_to}"
            )
        return None

    def before_fill(self, base: int, source: Compacted) -> None:
        """Adapt both offsets before a hole in this log that begins at offset ``base`` is filled with batches of
        ``source``. ``compacted_to`` is lowered to that of the source or to ``base``, whichever is higher.
        ``tombstones_to`` is raised to that of the source if that is above ``base``. What a crash must not lose is
        synced. ``fault_of_fill`` must have returned None."""
        compacted_to = min(self.compacted_to, max(source.compacted_to, base))
        tombstones_to = source.tombstones_to if source.tombstones_to > base else 0
        self._become(compacted_to, max(self.tombstones_to, tombstones_to))

    def on_cut(self, end: int) -> None:
        """Lower ``compacted_to`` and ``tombstones_to`` to at most ``end``, durably, before the log is cut there."""
        self._become(min(self.compacted_to, end), min(self.tombstones_to, end))

    def before_tombstones_go(self, end: int) -> None:
        """Raise ``tombstones_to`` to at least ``end``, durably, because the compacted file that is about to be put in
        place lacks tombstones below ``end``. ``end`` must not be above ``compacted_to``."""
        assert end <= self.compacted_to
        self._become(self.compacted_to, max(self.tombstones_to, end))

    def on_pass(self, end: int) -> None:
        """Set ``compacted_to`` to ``end``, because a compaction pass up to that offset is over. The write is not
        synced: if a crash loses it, that part is compacted once more."""
        if self._tombstones.value is None:
            self._tombstones.write(0)
        self._compacted.write(end)

    def _become(self, compacted_to: int, tombstones_to: int) -> None:
        """Write ``compacted_to`` and ``tombstones_to``. Both are durable on return, except for a ``compacted_to``
        that rises."""
        if tombstones_to != self.tombstones_to:
            self._tombstones.write(tombstones_to, sync=True)
            self._disk.sync_dir(self._directory)
        if compacted_to != self.compacted_to:
            self._compacted.write(compacted_to, sync=compacted_to < self.compacted_to)
