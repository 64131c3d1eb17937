"""The number and the checksum of a Raft store's last commit, in a small file beside its database.

A write-ahead log ends at its first bad frame: after a flipped bit the database opens as an older one, and nothing in
it says so. This file says how far the database must reach (decision 18). It is written and synced after each commit
of the database and before the commit counts, so an honest crash leaves the database at the number in this file or
one ahead of it, never behind.

The file has two slots, 4096 bytes apart, so that no torn write and no bad sector hits both. Commit N is written
to slot N mod 2; the other slot keeps commit N - 1. Each slot carries its own CRC-32. Bytes of a slot, big-endian:

    0 magic (8) | 8 number (8) | 16 checksum (4) | 20 CRC-32 of the store's name (4) | 24 CRC-32 of bytes 0 to 23 (4)
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from tidelog.private import FILE_MODE
from tidelog.runtime.operating_system import sync_all, sync_data

SLOT_BYTES = 4096
_MAGIC = b"tl-raft1"
_SLOT = struct.Struct(">8sQI4s")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class LastCommit:
    """One commit of a Raft store. ``number`` counts commits from 1; 0 stands for a store without any. ``checksum``
    covers the whole content of the store after the commit, and the checksum of the commit before."""

    number: int
    checksum: int


NO_COMMIT = LastCommit(0, 0)


class LastCommitFile:
    """The file ``raft.db-commits`` of one store, which names the last commit of the database. It is open from a
    successful ``read`` or ``create`` until ``close``. Its methods block on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._store = b""

    def read(self, store: str) -> LastCommit | None:
        """Open the file and return the last commit that it names for the store with this name. Return None, with
        nothing opened, if there is no file or it belongs to another store. Raises ``ValueError`` if no slot is
        valid."""
        slots = self._slots()
        if slots is None:
            return None
        if not slots:
            raise ValueError(f"{self.path.name} is damaged")
        self._store = _crc(store.encode())
        own = [commit for name, commit in slots if name == self._store]
        if not own:
            return None
        self._descriptor = os.open(self.path, os.O_RDWR)
        return max(own, key=lambda commit: commit.number)

    def count(self) -> int:
        """Return the number of the last commit that the file names, whatever store it belongs to; 0 if there is no
        file or no valid slot."""
        return max((commit.number for _, commit in self._slots() or ()), default=0)

    def create(self, store: str) -> None:
        """Make and open the file of a store without commits, in place of any earlier file. Content and name of the
        file are durable when this returns."""
        self._store = _crc(store.encode())
        unfinished = self.path.with_name(self.path.name + ".new")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE)
        self._descriptor = descriptor
        os.pwrite(descriptor, bytes(2 * SLOT_BYTES), 0)
        os.pwrite(descriptor, self._encode(NO_COMMIT), 0)
        sync_all(descriptor)
        unfinished.replace(self.path)
        sync_path(self.path.parent)

    def write(self, commit: LastCommit) -> None:
        """Write a commit over the older one of the two in the file, and sync it. The file must be open. An
        ``OSError`` is final: the store must not be used any more."""
        assert self._descriptor is not None
        os.pwrite(self._descriptor, self._encode(commit), commit.number % 2 * SLOT_BYTES)
        sync_data(self._descriptor)

    def close(self) -> None:
        """Close the file. Whatever ``write`` wrote is durable already. Does nothing if the file is not open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _slots(self) -> list[tuple[bytes, LastCommit]] | None:
        """Return the commits in the valid slots, each with the CRC-32 of its store's name; None if there is no
        file."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        found = []
        for offset in (0, SLOT_BYTES):
            slot = data[offset : offset + _SLOT.size + _CRC.size]
            if slot[_SLOT.size :] == _crc(slot[: _SLOT.size]):
                magic, number, checksum, store = _SLOT.unpack(slot[: _SLOT.size])
                if magic == _MAGIC:
                    found.append((store, LastCommit(number, checksum)))
        return found

    def _encode(self, commit: LastCommit) -> bytes:
        slot = _SLOT.pack(_MAGIC, commit.number, commit.checksum, self._store)
        return slot + _crc(slot)


def sync_path(path: Path) -> None:
    """Sync the content of a file, or the names in a directory, to stable storage; blocks until that is done."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_all(descriptor)
    finally:
        os.close(descriptor)


def _crc(data: bytes) -> bytes:
    return _CRC.pack(zlib.crc32(data))
