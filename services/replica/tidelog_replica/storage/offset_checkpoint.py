"""One number on disk that is cheap to move: the recovery mark, the high watermark.

A write is one small ``pwritev`` without a sync. It goes round a ring of slots, each with a sequence number and a CRC,
so that a crash may lose or tear what was not synced and an older value is still there: the reader takes the valid
slot with the highest sequence. The file is open only while it is read or written: a server has many of them.
"""

from __future__ import annotations

import struct

from crc32c import crc32c
from tidelog.disk import Disk

from tidelog_replica.storage.checkpoint_files import read_cache, seed_of

_NUMBERS = struct.Struct(">Qq")
_SLOT = struct.Struct(">QqI")
_SLOTS = 64


class Checkpoint:
    """``value`` is what the file holds; None in a new or damaged one. ``synced`` is what it held when it was last
    known to be durable; what is there at first is taken for that. ``there``: False where it is known not to be."""

    def __init__(self, disk: Disk, path: str, *, there: bool = True) -> None:
        self.value: int | None = None
        self.synced = 0
        self._disk = disk
        self._path = path
        self._sequence = 0
        self._seed = seed_of(path.rpartition("/")[0])
        data = read_cache(disk, path) if there else b""
        for position in range(0, len(data) - _SLOT.size + 1, _SLOT.size):
            sequence, value, crc = _SLOT.unpack_from(data, position)
            if crc == crc32c(_NUMBERS.pack(sequence, value), self._seed) and sequence > self._sequence:
                self._sequence, self.value = sequence, value
        self.synced = self.value or 0

    def write(self, value: int, *, sync: bool = False) -> None:
        """Move it; durable only with ``sync``. Raises ``OSError``."""
        if value == self.value and not sync:
            return
        self._sequence += 1
        slot = _SLOT.pack(self._sequence, value, crc32c(_NUMBERS.pack(self._sequence, value), self._seed))
        file = self._disk.open(self._path, create=True)
        try:
            file.pwritev([slot], self._sequence % _SLOTS * _SLOT.size)
            if sync:
                file.sync()
                self.synced = value
        finally:
            file.close()
        self.value = value

    def sync(self) -> None:
        """Make durable what the file holds, in any thread; nothing where the log was thrown away meanwhile. Raises
        ``OSError``."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()
