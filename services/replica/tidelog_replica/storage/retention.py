"""Retention: which of a log's closed segments have had their time.

A log loses its oldest segments, whole ones, for one of three reasons (any of them is enough, each may be off):

    age        the newest record of the segment is older than ``retention_ms``
    bytes      without the segment the log still holds ``retention_bytes``
    records    without the segment the log still holds ``retention_records``

Never the segment that is written, and never one that holds a record at or past the high watermark: what is not
committed everywhere may still be fetched or cut. Age stops at the first segment that is too young. A timestamp of
the future makes no segment young: it counts as that of the last write to the segment's file
(``Segment.newest_ms``). The clock is the wall clock of the server that decides, which is the leader;
followers take its log start over, so clocks that disagree cost nothing but time (D9).

Retention's part of the disk: segments below a new log start go, in a thread.

The log has forgotten the segments before the job begins, so nobody else touches their files. The order is what makes
it safe: first the producers' state at the new start is durable, then the new start, then the names go. A snapshot
that is there already is written again: a sync of what a former life could not sync would say that all is well.
Where no sound snapshot tells the state at the new start and the segments that go are damaged, the state is what is in
memory of that time. It can lack batches that later ones have pushed out of memory. The job says so: that is final.
Whatever a crash leaves below the start, the next opening removes.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.runtime.disk import Disk
from tidelog.types import TopicConfig

from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import LogStartCheckpoint, write_origin
from tidelog_replica.storage.producer_snapshots import Snapshots, producers_below
from tidelog_replica.storage.segment import Segment, close


class Extent(NamedTuple):
    """A segment in numbers."""

    base: int
    end: int
    bytes: int
    max_timestamp: int
    """Of its newest record, ms since 1970; -1 where it has none. For retention it is not later than the segment was
    written."""
    since_ms: int | None = None
    """When a check of this server first saw a record in it, by the wall clock (ms); None: not known."""


def log_start(segments: Sequence[Extent], high_watermark: int, config: TopicConfig, now_ms: int) -> int:
    """Where the log should begin: the base of one of its ``segments``, of which the last is the one that is
    written."""
    total_bytes = sum(segment.bytes for segment in segments)
    total_records = segments[-1].end - segments[0].base
    for segment in segments[:-1]:
        total_bytes -= segment.bytes
        total_records -= segment.end - segment.base
        if segment.end > high_watermark or not (
            0 <= config.retention_ms < now_ms - segment.max_timestamp
            or 0 <= config.retention_bytes <= total_bytes
            or 0 <= config.retention_records <= total_records
        ):
            return segment.base
    return segments[-1].base


@dataclass(frozen=True, slots=True)
class DeleteSegments:
    """The log begins at ``origin`` now. A job (see ``jobs.py``)."""

    disk: Disk
    directory: str
    origin: LogStartCheckpoint
    segments: tuple[Segment, ...]
    """Those that go, oldest first; the job's own."""
    latest: ProducerState
    """At the log's end; nobody else's."""
    generation: int

    def run(self) -> bool:
        """Make it so. The result is False where damage has hidden what producers had written before the new start.
        Raises ``OSError``."""
        snapshots = Snapshots(self.disk, self.directory)
        start, is_whole = self.origin.start, True
        state = snapshots.read(start, self.origin.chain)
        if state is None:
            producers, is_whole = self._producers_at(start)
            state = producers.to_bytes()
        snapshots.write(start, self.origin.chain, state, sync=True)
        self.disk.sync_dir(self.directory)
        write_origin(self.disk, self.directory, self.origin)
        for segment in self.segments:
            close(segment)
            segment.unlink()
        snapshots.remove(below=start)
        self.disk.sync_dir(self.directory)
        return is_whole

    def _producers_at(self, start: int) -> tuple[ProducerState, bool]:
        """The state at ``start``, and whether it is all that the log told. Damage to what goes costs no copy: what is
        in memory of that time has to do."""
        try:
            return producers_below(self.disk, self.directory, self.segments, start, self.latest), True
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return self.latest.before(start), False
