"""Where a log begins, on disk: the file ``log-start``.

Retention moves the beginning of a log up. What can then no longer be learned from the segments is kept here: the
offset, the leader epoch of the record before it and the hash chain up to it. The file is durable before the first
segment below it is unlinked, so a first segment that begins later than it says was lost, not retired; one that begins
earlier is the rest of a retention that a crash interrupted.

The file, big-endian: magic ``TLLS``, start i64, last epoch i64 (-1: none), chain 16 bytes, CRC32C of all that
(it begins with ``seed_of`` the directory).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c
from tidelog.disk import Disk
from tidelog.records import NO_CHAIN
from tidelog.types import Buffer

from tidelog_replica.storage.checkpoint_files import LOG_START, read_cache, seed_of

_FIELDS = struct.Struct(">4sqq16s")
_CRC = struct.Struct(">I")
_MAGIC = b"TLLS"
ORIGIN_BYTES = _FIELDS.size + _CRC.size


class Origin(NamedTuple):
    """The beginning of a log."""

    start: int = 0
    """Offset of the first record kept."""
    last_epoch: int = -1
    """Leader epoch of the record before it; -1 for none."""
    chain: bytes = NO_CHAIN
    """Hash chain of everything before it."""

    def to_bytes(self, directory: str) -> bytes:
        """The file, for this directory only."""
        fields = _FIELDS.pack(_MAGIC, *self)
        return fields + _CRC.pack(crc32c(fields, seed_of(directory)))

    @classmethod
    def from_bytes(cls, data: Buffer, directory: str) -> Origin | None:
        """What the file says; None where it is damaged, or of another directory."""
        if len(data) != ORIGIN_BYTES:
            return None
        fields = bytes(data[: _FIELDS.size])
        magic, *found = _FIELDS.unpack(fields)
        if magic != _MAGIC or _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(fields, seed_of(directory)):
            return None
        return cls._make(found)


def read_origin(disk: Disk, directory: str) -> Origin | None:
    """What the log in ``directory`` says of its beginning; None where the file is missing or damaged."""
    return Origin.from_bytes(read_cache(disk, f"{directory}/{LOG_START}"), directory)


def write_origin(disk: Disk, directory: str, origin: Origin) -> None:
    """Durably, in one step. Raises ``OSError``."""
    disk.write_atomic(f"{directory}/{LOG_START}", origin.to_bytes(directory))
