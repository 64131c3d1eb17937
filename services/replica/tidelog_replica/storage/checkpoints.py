"""The small files in a log's directory: their names, what binds them to the directory, and their formats.

An ``OffsetCheckpoint`` holds one offset that is cheap to move: the recovery point and the high watermark. A write is
one small ``pwritev`` without a sync. It goes round a ring of slots, each with a sequence number and a CRC. A crash
may lose or tear what was not synced, but an older value still exists: the reader takes the valid slot with the
highest sequence. The file is open only while it is read or written, because a server has many of them.

``log-start`` holds the offset at which a log begins. Retention moves it up. The file keeps what the segments no
longer show then: the offset, the leader epoch of the record before it, and the hash chain up to it. It is durable
before the first segment below it is unlinked. So if the first segment begins later than that offset, a segment was
lost. If it begins earlier, a crash has interrupted a retention. The format, big-endian: magic ``TLLS``, start i64,
last epoch i64 (-1: none), chain 16 bytes, CRC32C of everything before, which begins with ``seed_of`` the directory.

``high-watermark`` holds the offset up to which the log was committed. It is written now and then, never above what is
durable. So a log that is found to end below it has lost committed records, whatever the recovery point is
(``recovery/recovery.py``). ``committed-once`` exists if that has happened and is known: the high watermark had
reached its offset, the log ends before it, and the records between must come from other replicas or are lost. It is
lowered only when the loss itself is decided.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c
from tidelog.batch.format import NO_CHAIN
from tidelog.runtime.disk import Disk
from tidelog.runtime.operating_system import FAILED_MEDIUM
from tidelog.types import Buffer

RECOVERY_POINT = "recovery-mark"
"""The offset below which everything was synced: an ``OffsetCheckpoint``."""
EPOCHS = "leader-epochs"
"""The first offset of each leader epoch: a ``LeaderEpochCache``."""
HIGH_WATERMARK = "high-watermark"
HIGHEST_COMMITTED = "committed-once"
"""This file and ``high-watermark`` belong to ``HighWatermarkCheckpoint``; each is an ``OffsetCheckpoint``."""
PENDING_LOSSES = "pending-losses"
"""Losses that the controller does not know of yet: see ``pending_losses.py``."""
LOG_START = "log-start"
"""The log start: a ``LogStartCheckpoint``."""
COMPACTED = "compacted-to"
"""The offset below which the log was compacted at least once: an ``OffsetCheckpoint``."""
TOMBSTONES = "tombstones-to"
"""The offset below which tombstones may be gone: an ``OffsetCheckpoint``. See ``storage/tombstones.py``."""
RESET = "reset"
"""The intent to throw the log away and begin it anew: see ``reset.py``."""
CLEANED = ".cleaned"
"""Ending of the name of a compacted segment that is not in its place yet."""
REPAIR = ".repair"
"""Ending of the name of a file that fills a hole in the log: see ``damage.py``."""


UNREADABLE = (*FAILED_MEDIUM, errno.ENOENT)
"""The errors with which the system reports a missing file or a failing medium when a file is opened or read. Other
errors (no rights, no descriptors, no memory) do not show what is there."""


def seed_of(directory: str) -> int:
    """Return the start value of the CRCs in the small files of ``directory``. It is made from the directory's name,
    so that a file of another partition counts as damaged here."""
    seed: int = crc32c(directory.rpartition("/")[2].encode())
    return seed


def read_cache(disk: Disk, path: str) -> bytes:
    """Return the content of a file that can be made again; empty bytes if the file is missing. A file that the medium
    fails to return counts as missing and is deleted, because every later write or start would fail on it, too. Raises
    other ``OSError``s."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        disk.unlink(path)
        return b""


_NUMBERS = struct.Struct(">Qq")
_SLOT = struct.Struct(">QqI")
_SLOTS = 64


class OffsetCheckpoint:
    """One offset in a small file of a log's directory. Making the object reads the file. ``value`` is the offset in
    the file, None if the file is missing or damaged. ``synced`` is the value that was last known to be durable; at
    first that is the value found, or 0. ``there`` is False if the file is known not to exist."""

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
        """Write the offset ``value`` to the file, creating the file if necessary. The write is durable only with
        ``sync``. Does nothing if the offset is unchanged and ``sync`` is not set. Raises ``OSError``."""
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
        """Make the present content of the file durable; may be called in any thread. Does nothing if the file does
        not exist, because the log was deleted meanwhile. The caller sets ``synced`` afterwards. Raises
        ``OSError``."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()


_FIELDS = struct.Struct(">4sqq16s")
_CRC = struct.Struct(">I")
_MAGIC = b"TLLS"
LOG_START_BYTES = _FIELDS.size + _CRC.size
"""The length of the file in bytes."""


class LogStartCheckpoint(NamedTuple):
    """The first offset of a log, and the facts about the records before it that the segments do not show. It is the
    content of the file ``log-start``."""

    start: int = 0
    """Offset of the first record that is kept."""
    last_epoch: int = -1
    """Leader epoch of the record before ``start``; -1: there is none."""
    chain: bytes = NO_CHAIN
    """Hash chain of everything before ``start``."""

    def to_bytes(self, directory: str) -> bytes:
        """Return the content of the file ``log-start`` with this log start. The CRC makes it valid in ``directory``
        only."""
        fields = _FIELDS.pack(_MAGIC, *self)
        return fields + _CRC.pack(crc32c(fields, seed_of(directory)))

    @classmethod
    def from_bytes(cls, data: Buffer, directory: str) -> LogStartCheckpoint | None:
        """Return the log start in ``data``, the content of a file ``log-start``; None if it is damaged or comes from
        another directory."""
        if len(data) != LOG_START_BYTES:
            return None
        fields = bytes(data[: _FIELDS.size])
        magic, *found = _FIELDS.unpack(fields)
        if magic != _MAGIC or _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(fields, seed_of(directory)):
            return None
        return cls._make(found)


class CopyStart(NamedTuple):
    """The facts that another replica needs to begin a copy of a log at its log start: offset, epoch, hash chain and
    producer state. A leader sends them to a replica that has to start over, which resets its log with them."""

    start: int
    last_epoch: int
    """Leader epoch of the record before ``start``; -1: there is none."""
    chain: bytes
    """Hash chain of everything before ``start``."""
    producers: bytes
    """The producer state at ``start``, as bytes of ``ProducerState.to_bytes``."""


def read_log_start(disk: Disk, directory: str) -> LogStartCheckpoint | None:
    """Return the log start in the file ``log-start`` of ``directory``; None if that file is missing or damaged.
    Raises ``OSError``."""
    return LogStartCheckpoint.from_bytes(read_cache(disk, f"{directory}/{LOG_START}"), directory)


def write_log_start(disk: Disk, directory: str, log_start: LogStartCheckpoint) -> None:
    """Replace the file ``log-start`` of ``directory`` by one with ``log_start``, durably and in one step. Raises
    ``OSError``."""
    disk.write_atomic(f"{directory}/{LOG_START}", log_start.to_bytes(directory))


class HighWatermarkCheckpoint:
    """The record of how far a log was committed, in two files: the high watermark, and the highest committed offset
    if the log has lost its end. It lives as long as the log is open. ``names`` are the names of all files in the
    directory. Every method may raise ``OSError``."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._known = OffsetCheckpoint(disk, f"{directory}/{HIGH_WATERMARK}", there=HIGH_WATERMARK in names)
        self._highest_committed = OffsetCheckpoint(
            disk, f"{directory}/{HIGHEST_COMMITTED}", there=HIGHEST_COMMITTED in names
        )

    @property
    def high_watermark(self) -> int:
        """Return the high watermark that was last written to its file, which lies within the log; 0 if none was."""
        return self._known.value or 0

    @property
    def highest_committed(self) -> int:
        """Return the highest committed offset: the high watermark, or what it was before the log lost its end."""
        return max(self.high_watermark, self._highest_committed.value or 0)

    def write(self, high_watermark: int, *, sync: bool = False) -> None:
        """Write the HW to its file, which is cheap and never torn. It is durable only with ``sync``."""
        is_new = self._known.value is None
        self._known.write(high_watermark, sync=sync)
        if sync and is_new:  # the name of an older file is durable since an earlier flush
            self._disk.sync_dir(self._directory)

    def lower(self, high_watermark: int) -> None:
        """Lower the HW and the highest committed offset to ``high_watermark``, durably, because the records above are
        not committed any more."""
        self._known.write(high_watermark, sync=True)
        if self.highest_committed > high_watermark:
            self._highest_committed.write(high_watermark, sync=True)

    def remember(self, high_watermark: int) -> None:
        """Raise the highest committed offset to ``high_watermark`` in its file, unsynced, because the log may be
        about to lose its end. Does nothing if it is as high already."""
        if self.highest_committed < high_watermark:
            self._highest_committed.write(high_watermark)

    def lack(self, end: int) -> None:
        """Record durably that the log ends at ``end``, or is about to, and lacks the committed records above: write
        the highest committed offset to its file first, and then lower the HW to ``end``. Does nothing if the HW is
        not above ``end``."""
        if self.high_watermark > end:
            self._highest_committed.write(self.highest_committed, sync=True)
            self._disk.sync_dir(self._directory)
            self._known.write(end, sync=True)
