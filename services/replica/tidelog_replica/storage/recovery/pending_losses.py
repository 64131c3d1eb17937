"""Losses that the controller does not know of yet: the file ``pending-losses`` in a log's directory.

A copy has to cut records that its leader does not have. Often no other server holds them, so its report is the only
trace of the loss. The report must survive a crash: it is written to this file, durably, before the records are cut,
and removed when the controller has recorded it, or refuses it for good. A server that restarts in between reports
again; the controller records a repeated report a single time.

The file: the CRC32C of the rest (big-endian), seeded with the name of the directory, then a JSON list of losses, each
a list of the fields of ``LostRange``. A damaged file counts as missing. An earlier release ignores the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c
from tidelog.runtime.disk import Disk

from tidelog_replica.storage.checkpoints import PENDING_LOSSES, read_cache, seed_of
from tidelog_replica.storage.segment import remove

_CRC = struct.Struct(">I")


class LostRange(NamedTuple):
    """Records of one partition, from offset ``start`` to ``end`` (exclusive), that this copy has lost and that the
    leader does not have either."""

    leader_epoch: int
    """The leader epoch in which the copy lost them."""
    start: int
    end: int
    possible: bool
    """True: the records lay above every high watermark that this copy knew, so they may have been committed. False:
    they were committed."""


class PendingLosses:
    """The losses of one log that the controller has not recorded yet, in memory and in a file, so that a restarted
    server reports them again. ``names`` are the names of all files in the directory. Methods that write raise
    ``OSError``."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        self.ranges: tuple[LostRange, ...] = ()
        """The losses, oldest first."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{PENDING_LOSSES}"
        if PENDING_LOSSES in names:
            self.ranges = self._parse(read_cache(disk, self._path))

    def add(self, ranges: Sequence[LostRange]) -> None:
        """Add losses in memory and, durably, in the file. Losses that are in the file already are skipped."""
        new = [lost for lost in ranges if lost not in self.ranges]
        if new:
            self._write((*self.ranges, *new))

    def remove(self, lost: LostRange) -> None:
        """Remove a loss that the controller has recorded or refused for good, from memory and from the file. Does
        nothing if the loss is not pending. If a crash undoes the removal, the loss is reported once more, which does
        no harm."""
        if lost in self.ranges:
            self._write(tuple(other for other in self.ranges if other != lost))

    def _write(self, ranges: tuple[LostRange, ...]) -> None:
        """Replace the losses in memory and in the file. The file is written durably; with no losses it is deleted
        instead, unsynced."""
        if ranges:
            text = json.dumps(ranges).encode()
            self._disk.write_atomic(self._path, _CRC.pack(crc32c(text, seed_of(self._directory))) + text)
        else:
            remove(self._disk, self._path)
        self.ranges = ranges

    def _parse(self, data: bytes) -> tuple[LostRange, ...]:
        """Return the losses in ``data``, the content of the file; no losses if it is damaged or comes from another
        directory."""
        if len(data) < _CRC.size or _CRC.unpack_from(data)[0] != crc32c(data[_CRC.size :], seed_of(self._directory)):
            return ()
        return tuple(LostRange(*fields) for fields in json.loads(data[_CRC.size :]))
