"""Appends to a log as a leader does, for tests of the log alone."""

from __future__ import annotations

from tidelog.batch.format import read_header, stamp_prefix
from tidelog_replica.storage.log import Log


def append_as_leader(log: Log, batch: bytes, leader_epoch: int) -> int:
    """Append a batch with the next offset and a leader epoch, and return the offset."""
    base = log.end
    prefix = stamp_prefix(base, leader_epoch, read_header(batch).crc32c)
    log.append([prefix + batch[len(prefix) :]])
    return base
