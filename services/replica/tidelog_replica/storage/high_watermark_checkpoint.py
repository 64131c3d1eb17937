"""How far a log was committed, as its files tell: the high watermark, and what became of it.

Two ``Checkpoint``s. ``high-watermark`` is written now and then, never above what is durable: so a log that is found
to end before it has lost records that somebody was promised, whatever the recovery mark says (``recovery.py``).
``committed-once`` is there where that has happened and is known: the HW was up there once, the log ends before it,
and what lies between must come from others, or is lost. It goes down only where the loss itself is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.disk import Disk

from tidelog_replica.storage.checkpoint_files import COMMITTED_ONCE, HIGH_WATERMARK
from tidelog_replica.storage.offset_checkpoint import Checkpoint


class Committed:
    """``names``: of all files in the directory. Every method may raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._known = Checkpoint(disk, f"{directory}/{HIGH_WATERMARK}", there=HIGH_WATERMARK in names)
        self._once = Checkpoint(disk, f"{directory}/{COMMITTED_ONCE}", there=COMMITTED_ONCE in names)

    @property
    def high_watermark(self) -> int:
        """As last written down, of what the log holds."""
        return self._known.value or 0

    @property
    def once(self) -> int:
        """The high watermark, or what it was before the log lost its end."""
        return max(self.high_watermark, self._once.value or 0)

    def write(self, high_watermark: int, *, sync: bool = False) -> None:
        """Write the HW down: cheap, never torn; durable only with ``sync``."""
        is_new = self._known.value is None
        self._known.write(high_watermark, sync=sync)
        if sync and is_new:  # an older file's name became durable with what was flushed since
            self._disk.sync_dir(self._directory)

    def lower(self, high_watermark: int) -> None:
        """The HW goes back, durably: what lay between is not committed any more."""
        self._known.write(high_watermark, sync=True)
        if self.once > high_watermark:
            self._once.write(high_watermark, sync=True)

    def remember(self, high_watermark: int) -> None:
        """So far was committed what the log may be about to lose."""
        if self.once < high_watermark:
            self._once.write(high_watermark)

    def lack(self, end: int) -> None:
        """The log ends, or is about to end, at ``end``, without what was committed above; durably."""
        if self.high_watermark > end:
            self._once.write(self.once, sync=True)
            self._disk.sync_dir(self._directory)
            self._known.write(end, sync=True)
