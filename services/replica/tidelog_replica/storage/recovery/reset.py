"""Throwing a log away and beginning it anew at a later offset, safe against a crash at each step.

A follower whose log ends before its leader's begins starts its copy over there. The whole wish, with everything that
the new log must know of its past, is first written to the file ``reset``, in one durable step. From then on the old
log is nothing: ``finish`` removes it, makes the new, empty one, and takes the wish away last. Whoever opens the
directory finishes what was begun, from the first step, as often as it takes.

A ``reset`` that is damaged, or cannot be read, is passed over: it says nothing of when its log was touched, but a log
that lost segments below its mark is refused anyway.

The file: ``LogStartCheckpoint.to_bytes``, the state of the producers, and CRC32C of both (big-endian).
"""

from __future__ import annotations

import re
import struct

from crc32c import crc32c
from tidelog.runtime.disk import Disk

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.checkpoints import (
    COMPACTED,
    EPOCHS,
    HIGH_WATERMARK,
    LOG_START,
    MARK,
    ORIGIN_BYTES,
    RESET,
    TOMBSTONES,
    LogStartCheckpoint,
    read_cache,
    seed_of,
    write_origin,
)
from tidelog_replica.storage.producer_snapshots import Snapshots
from tidelog_replica.storage.segment import remove

_OF_THE_LOG = re.compile(
    rf"([0-9]{{20}}\.(log|index|tail)|producers-[0-9]{{20}}|{MARK}|{EPOCHS}|{HIGH_WATERMARK}|{LOG_START}|{COMPACTED}"
    rf"|{TOMBSTONES})(\.new|\.cleaned)?"
)
_CRC = struct.Struct(">I")


def begin(disk: Disk, directory: str, origin: LogStartCheckpoint, producers: bytes) -> None:
    """Write the wish down, with a state of the producers ``ProducerState.to_bytes``. Raises ``OSError``."""
    data = origin.to_bytes(directory) + producers
    disk.write_atomic(f"{directory}/{RESET}", data + _CRC.pack(crc32c(data)))


def finish(disk: Disk, directory: str) -> None:
    """Do what a ``reset`` that is there says. Raises ``OSError``."""
    wish = _read(read_cache(disk, f"{directory}/{RESET}"), directory)
    if wish is not None:
        _replace(disk, directory, *wish)
    remove(disk, f"{directory}/{RESET}")
    disk.sync_dir(directory)


def _read(data: bytes, directory: str) -> tuple[LogStartCheckpoint, bytes] | None:
    if len(data) < ORIGIN_BYTES + _CRC.size or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(data[: -_CRC.size]):
        return None
    origin = LogStartCheckpoint.from_bytes(data[:ORIGIN_BYTES], directory)
    return None if origin is None else (origin, data[ORIGIN_BYTES : -_CRC.size])


def _replace(disk: Disk, directory: str, origin: LogStartCheckpoint, producers: bytes) -> None:
    for name in reversed(disk.listdir(directory)):
        if _OF_THE_LOG.fullmatch(name):
            disk.unlink(f"{directory}/{name}")
    disk.sync_dir(directory)
    file = disk.open(f"{directory}/{origin.start:020d}.log", create=True)
    try:
        file.sync()
    finally:
        file.close()
    if origin.start:
        Snapshots(disk, directory).write(origin.start, origin.chain, producers, sync=True)
    entries = [(origin.last_epoch, origin.start - 1)] if origin.last_epoch >= 0 and origin.start else []
    disk.write_atomic(f"{directory}/{EPOCHS}", LeaderEpochCache(entries, seed_of(directory)).to_bytes())
    write_origin(disk, directory, origin)
