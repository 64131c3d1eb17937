"""Appends as a leader does it, for tests of the log below the leader."""

from __future__ import annotations

from tidelog.batch.format import read_header, stamp_prefix
from tidelog_replica.storage.log import Log


def append_as_leader(log: Log, batch: bytes, leader_epoch: int) -> int:
    """Give the batch the next offset and the epoch; returns the offset."""
    base = log.end
    prefix = stamp_prefix(base, leader_epoch, read_header(batch).crc32c)
    log.append([prefix + batch[len(prefix) :]])
    return base
