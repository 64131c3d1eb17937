"""Retention: which of a log's closed segments are deleted, and when.

A log loses its oldest segments, whole ones, for one of three reasons (any of them is enough, each may be off):

    age        the newest record of the segment is older than ``retention_ms``
    bytes      without the segment the log still holds ``retention_bytes``
    records    without the segment the log still holds ``retention_records``

The active segment always stays, and so does a segment with a record at or past the high watermark: an uncommitted
record may still be fetched or cut. Retention ends at the first segment that none of the reasons applies to. A
timestamp of the future does not make a segment young: the time of the last write to its file counts instead
(``Segment.newest_ms``). The clock is the wall clock of the server that decides, which is the leader. Followers adopt
the leader's log start, so clocks that differ delay the deletion and do no other harm (D9).

Retention may have to wait for consumer groups (``maintenance/retention_waits.py``). ``awaited_start`` is that rule: a
segment with a record that the slowest group has not read stays, within a bound of bytes and of time. The time counts
from the last write to the segment's file, so that records with old timestamps do not end the wait at once.

Three parts do that. ``log_start`` is the rule: where the log should begin. ``Retention`` moves the start of
one log in two halves, ``begin_deletion`` and ``complete_deletion``. ``DeleteSegments`` is the job between them, for a
thread: it makes the new start durable and removes the segments below it.

The log has forgotten the segments before the job begins, so nothing else touches their files. The order of the job's
steps makes it safe: first the producers' state at the new start is durable, then the new start, then the files are
removed. A snapshot that exists already is written again: a sync of what an earlier process could not sync would
succeed and prove nothing. If no sound snapshot holds the state at the new start and the segments to delete are
damaged, the job uses what memory still holds of that state. It can lack batches that later ones have pushed out of
memory. That loss is final, and the job reports it. The next opening removes whatever a crash leaves below the start.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.runtime.disk import Disk
from tidelog.types import TopicConfig

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import LogStartCheckpoint, write_log_start
from tidelog_replica.storage.producer_snapshots import Snapshots, producers_below
from tidelog_replica.storage.segment import Segment, SegmentExtent, close
from tidelog_replica.storage.segment_list import SegmentList


def log_start(segments: Sequence[SegmentExtent], high_watermark: int, config: TopicConfig, now_ms: int) -> int:
    """Return the offset at which the log should begin by the topic's retention settings: the base of the first of
    ``segments`` that must stay. Only segments wholly below ``high_watermark`` may go. The last one, which is written,
    always stays. ``now_ms`` is the wall clock, ms since 1970."""
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
class AwaitedStart:
    """Where a log begins whose retention waits for consumer groups, and what the wait costs."""

    start: int
    """Offset at which the log should begin now."""
    held_bytes: int
    """Bytes of the segments that are kept only for the groups."""
    share: float
    """Share of its bound that the wait has used, from 0 to 1; 0 without a bound."""
    unread: int
    """Records below ``start`` that a group has not read: the bound of the wait is passed."""


def awaited_start(
    segments: Sequence[SegmentExtent], due: int, position: int, config: TopicConfig, now_ms: int
) -> AwaitedStart:
    """Return where the log should begin if retention would have it begin at offset ``due``, and the slowest group has
    read up to ``position`` (-1: not known, or it has read nothing). ``segments`` are those that retention would
    delete, oldest first; ``max_timestamp`` of each is when it was last written. A segment with a record at or above
    ``position`` stays, but while the kept segments exceed a bound of the wait the oldest of them goes."""
    kept = [segment for segment in segments if segment.end > position]
    start, unread = (kept[0].base if kept else due), 0
    held_bytes, share = sum(segment.bytes for segment in kept), 0.0
    for segment in kept:
        share = _share_used(held_bytes, now_ms - segment.max_timestamp, config)
        if share <= 1:
            break
        start = segment.end
        unread += segment.end - max(position, segment.base)
        held_bytes -= segment.bytes
    return AwaitedStart(start, held_bytes, share if held_bytes else 0.0, unread)


def _share_used(held_bytes: int, age_ms: int, config: TopicConfig) -> float:
    """Return which share of its bounds a wait has used, the larger one: above 1 it must end. ``held_bytes`` are kept,
    and the oldest of them were written ``age_ms`` ago."""
    overdue_ms = age_ms - max(0, config.retention_ms)
    bounds = ((held_bytes, config.retention_waits_max_bytes), (overdue_ms, config.retention_waits_max_ms))
    return max((used / bound for used, bound in bounds if used > 0 < bound), default=0.0)


@dataclass(frozen=True, slots=True)
class DeleteSegments:
    """A job that makes a new log start durable and deletes the segments and producer snapshots below it.
    ``Log.begin_advance`` makes it, a thread runs it, and then it goes to ``Log.complete_advance``."""

    disk: Disk
    directory: str
    log_start: LogStartCheckpoint
    segments: tuple[Segment, ...]
    """The segments to delete, oldest first. They belong to the job."""
    latest: ProducerState
    """The producer state at the log's end; a copy that belongs to the job."""
    generation: int

    def run(self) -> bool:
        """Write the producer snapshot at the new start and then the log start checkpoint, both durably; then delete
        the segments and the snapshots below. Blocks on the disk. Return False if damage in those segments hid a part
        of the producer state at the new start, so that some producers are forgotten; otherwise True. Raises
        ``OSError``."""
        snapshots = Snapshots(self.disk, self.directory)
        start, is_whole = self.log_start.start, True
        state = snapshots.read(start, self.log_start.chain)
        if state is None:
            producers, is_whole = self._producers_at(start)
            state = producers.to_bytes()
        snapshots.write(start, self.log_start.chain, state, sync=True)
        self.disk.sync_dir(self.directory)
        write_log_start(self.disk, self.directory, self.log_start)
        for segment in self.segments:
            close(segment)
            segment.unlink()
        snapshots.remove(below=start)
        self.disk.sync_dir(self.directory)
        return is_whole

    def _producers_at(self, start: int) -> tuple[ProducerState, bool]:
        """Return the producer state at offset ``start``, and whether it is complete. If the segments that are deleted
        are damaged, the state is what memory still holds of that time, and counts as incomplete. Raises ``OSError``
        if the disk reports another error than a damaged or unreadable file."""
        try:
            return producers_below(self.disk, self.directory, self.segments, start, self.latest), True
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return self.latest.before(start), False


class Retention:
    """The part of a log that moves its start: it removes the segments below the new start from ``segments``, and
    hands out the job that deletes their files. It lives as long as the log is open. ``log_start`` is the start on the
    disk."""

    def __init__(self, disk: Disk, directory: str, segments: SegmentList, log_start: LogStartCheckpoint) -> None:
        self.log_start = log_start
        """Where the log begins on the disk. While a job runs, that may be below the first segment."""
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._running: DeleteSegments | None = None

    @property
    def is_running(self) -> bool:
        """Return whether a job that moves the log start is under way."""
        return self._running is not None

    def segments_below(self, offset: int) -> list[Segment]:
        """Return the closed segments whose records are all below ``offset``, oldest first. Return an empty list if
        there are none, or while a deletion job is under way."""
        if self._running is not None:
            return []
        return [segment for segment in self._segments.closed() if segment.end_offset <= offset]

    def begin_deletion(
        self, gone: Sequence[Segment], epochs: LeaderEpochCache, producers: ProducerState, generation: int
    ) -> DeleteSegments:
        """Remove the segments ``gone``, the log's oldest, from the list, remove the leader epochs and transactions
        below the new log start from memory, and return the job that deletes the files. ``producers`` is the state at
        the log end; the job gets a copy. The segments' files must be closed. The caller has the job run and then
        calls ``complete_deletion``, but nothing more if the job failed."""
        self._segments.drop_first(len(gone))
        first = self._segments[0]
        start = LogStartCheckpoint(first.base, epochs.epoch_before(first.base), first.chain_before)
        epochs.advance_to(first.base)
        producers.transactions.forget_below(first.base)
        self._running = DeleteSegments(self._disk, self._directory, start, tuple(gone), producers.copy(), generation)
        return self._running

    def complete_deletion(self, job: DeleteSegments) -> None:
        """Record that the deletion job has run, so that the log begins at the new start on the disk, too, and another
        job may begin. Does nothing if ``job`` is not the one under way."""
        if job is self._running:
            self._running, self.log_start = None, job.log_start
