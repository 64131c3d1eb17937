"""Resetting a log: throwing it away and starting it again at a later offset, safe against a crash at each step.

A follower whose log ends before its leader's log begins starts its copy anew at the leader's log start. The intent,
with everything that the new log must know of its past, is first written to the file ``reset``, in one durable step.
From then on the old log does not count: ``finish`` removes it, makes the new, empty one, and removes the intent last.
Every opening of the directory carries out an intent that it finds, from the first step on.

A file ``reset`` that is damaged, or cannot be read, is ignored. It does not show whether the old log was touched, but
a log that lost segments below its recovery point is refused anyway.

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
    LOG_START_BYTES,
    RECOVERY_POINT,
    RESET,
    TOMBSTONES,
    LogStartCheckpoint,
    read_cache,
    seed_of,
    write_log_start,
)
from tidelog_replica.storage.producer_snapshots import Snapshots
from tidelog_replica.storage.segment import remove

_OF_THE_LOG = re.compile(
    rf"([0-9]{{20}}\.(log|index|tail)|producers-[0-9]{{20}}|{RECOVERY_POINT}|{EPOCHS}|{HIGH_WATERMARK}|{LOG_START}|{COMPACTED}"
    rf"|{TOMBSTONES})(\.new|\.cleaned)?"
)
_CRC = struct.Struct(">I")


def begin(disk: Disk, directory: str, log_start: LogStartCheckpoint, producers: bytes) -> None:
    """Write the durable file ``reset``: the intent to delete the log in ``directory`` and to begin it anew at
    ``log_start`` with the producer state ``producers`` (bytes of ``ProducerState.to_bytes``). From then on the old
    log does not count, and ``finish`` or the next opening replaces it. Raises ``OSError``."""
    data = log_start.to_bytes(directory) + producers
    disk.write_atomic(f"{directory}/{RESET}", data + _CRC.pack(crc32c(data)))


def finish(disk: Disk, directory: str) -> None:
    """Carry out the intent in the file ``reset`` if there is a sound one: delete the old log and make the new, empty
    one, durably. Then delete the file ``reset``, durably, also one that is damaged. Raises ``OSError``."""
    intent = _read(read_cache(disk, f"{directory}/{RESET}"), directory)
    if intent is not None:
        _replace(disk, directory, *intent)
    remove(disk, f"{directory}/{RESET}")
    disk.sync_dir(directory)


def _read(data: bytes, directory: str) -> tuple[LogStartCheckpoint, bytes] | None:
    """Return the log start and the producer state in ``data``, the content of a file ``reset``; None if the bytes are
    damaged or come from another directory."""
    if len(data) < LOG_START_BYTES + _CRC.size or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(data[: -_CRC.size]):
        return None
    log_start = LogStartCheckpoint.from_bytes(data[:LOG_START_BYTES], directory)
    return None if log_start is None else (log_start, data[LOG_START_BYTES : -_CRC.size])


def _replace(disk: Disk, directory: str, log_start: LogStartCheckpoint, producers: bytes) -> None:
    """Delete all files of the old log and create those of a new, empty one that begins at ``log_start``, all of it
    durably."""
    for name in reversed(disk.listdir(directory)):
        if _OF_THE_LOG.fullmatch(name):
            disk.unlink(f"{directory}/{name}")
    disk.sync_dir(directory)
    file = disk.open(f"{directory}/{log_start.start:020d}.log", create=True)
    try:
        file.sync()
    finally:
        file.close()
    if log_start.start:
        Snapshots(disk, directory).write(log_start.start, log_start.chain, producers, sync=True)
    entries = [(log_start.last_epoch, log_start.start - 1)] if log_start.last_epoch >= 0 and log_start.start else []
    disk.write_atomic(f"{directory}/{EPOCHS}", LeaderEpochCache(entries, seed_of(directory)).to_bytes())
    write_log_start(disk, directory, log_start)
