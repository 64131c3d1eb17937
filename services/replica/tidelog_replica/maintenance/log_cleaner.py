"""Frees disk space: starts retention, compaction and the closing of old segments, in rounds over all partitions. It
also has the snapshot of the producers' state written that is due when a segment is closed.

A round begins every ``retention_check_interval_s``. It cleans a few partitions at a time, so that ten thousand of
them delay no request. The leader decides where the log begins. A follower adopts its leader's log start at once, but
never beyond its own HW; so what the leader has removed does not come back when the follower leads. Long work is done
by jobs: see ``storage/retention.py`` and ``storage/compaction.py``. A partition with another job under way waits for
the next round, and so does a compaction for which there is not enough disk space. When a compaction has ended the
partition is cleaned again at once: first retention, then the next pass of the compaction if one is due. Where
retention waits for consumer groups (``retention_waits.py``), they are asked before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tidelog.types import NodeId, TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.maintenance.retention_waits import GroupRead, RetentionWaits
from tidelog_replica.partition.partition import Partition
from tidelog_replica.storage.compaction import NO_ROOM, Cleaned, Compaction
from tidelog_replica.storage.producer_snapshots import WriteProducerSnapshot
from tidelog_replica.storage.retention import AwaitedStart, DeleteSegments, awaited_start, log_start

FULL_INTERVAL_S = 5.0
"""Longest interval between two rounds while the disk is full, in seconds."""
TURNS_AT_ONCE = 64
"""Partitions that are cleaned in one tick."""


class LogCleaner:
    """The part of a node that closes old active segments, and starts retention and compaction, for all open
    partitions in rounds. It also has due producer snapshots written, and lets a follower's log start follow its
    leader's. ``partitions`` are the open partitions, a live view, and ``coordinator_of`` returns the server that
    coordinates a consumer group. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        partitions: Mapping[TopicPartition, Partition],
        coordinator_of: Callable[[str], NodeId | None],
    ) -> None:
        self._partitions = partitions
        self.retention_waits = RetentionWaits(context, partitions, coordinator_of)
        self._interval_s = context.settings.retention_check_interval_s
        self._min_dirty_ratio = context.settings.compaction_min_dirty_ratio
        self._effects = context.effects
        self._timers = context.timers
        self._wall_ms = context.wall_ms
        self._waiting: list[TopicPartition] = []
        """Partitions that are still to be cleaned in this round, the next one last."""
        self._pause_s = self._interval_s
        self._due: float | None = None

    def start(self, now: float) -> None:
        """Set the timer for the first round, one ``retention_check_interval_s`` from now."""
        self._due = now + self._interval_s
        self._timers.set(self, self._due)

    def on_tick(self, now: float) -> None:
        """Clean the next partitions of the round if the pause since the last ones is over, and set the timer."""
        if self._due is not None and self._due <= now:
            self._clean_next(now)
        self._timers.set(self, self._due)

    def _clean_next(self, now: float) -> None:
        """Clean the next partitions of the round, up to ``TURNS_AT_ONCE``, and set the time of the next ones so that
        a round takes one interval. If the round is over begin another one with all open partitions. Skips partitions
        that were closed meanwhile."""
        if not self._waiting:
            self.retention_waits.forget_closed()
            self._waiting = list(self._partitions)[::-1]
            turns = -(-len(self._waiting) // TURNS_AT_ONCE)
            interval_s = min(self._interval_s, FULL_INTERVAL_S) if self._effects.full else self._interval_s
            self._pause_s = interval_s / max(1, turns)
        self._due = now + self._pause_s
        for _ in range(min(TURNS_AT_ONCE, len(self._waiting))):
            partition = self._partitions.get(self._waiting.pop())
            if partition is not None:
                partition.guard(partial(self._clean, partition))

    def _clean(self, partition: Partition) -> None:
        """Roll the partition's active segment if it is old. Then start a job that deletes old segments, or, if none
        may be deleted, one that compacts the log. If retention waits for consumer groups, ask them first. Does
        nothing if this server has no role in the partition; starts no job while another job of the partition
        runs."""
        if partition.role is None:
            return
        log, wall_ms = partition.log, self._wall_ms()
        log.roll_if_old(wall_ms)
        if self._effects.jobs.busy(partition.key):
            return
        start, cause = self._wanted_start(partition, wall_ms)
        if cause == "retention" and partition.config.awaited_groups:
            self.retention_waits.ask(partition, partial(self._on_read, partition))
            return
        self.retention_waits.forget(partition.key)
        if not self._advance(partition, start, cause):
            self._compact(partition, wall_ms)

    def _on_read(self, partition: Partition, slowest: GroupRead) -> None:
        """Go on with cleaning a partition when it is known how far the slowest consumer group has read that its
        retention waits for. Does nothing if the partition was closed meanwhile."""
        if self._partitions.get(partition.key) is partition:
            partition.guard(partial(self._delete_read, partition, slowest))

    def _delete_read(self, partition: Partition, slowest: GroupRead) -> None:
        """Start a job that deletes the old segments that the slowest group has read, or for which the wait was too
        long, or, if there are none, one that compacts the log. Does nothing if retention here no longer decides about
        the partition, or if another job of the partition runs."""
        if partition.role is None or self._effects.jobs.busy(partition.key):
            return
        wall_ms = self._wall_ms()
        due, cause = self._wanted_start(partition, wall_ms)
        if cause != "retention":
            return
        extents = partition.log.segments.written_extents(due)
        result = awaited_start(extents, due, slowest.position, partition.config, wall_ms)
        self.retention_waits.record(partition.key, slowest, result)
        old = partition.log.start
        if not self._advance(partition, result.start, cause):
            self._compact(partition, wall_ms)
        elif result.unread:
            self._report_unread(partition, slowest, result, old)

    def _report_unread(self, partition: Partition, slowest: GroupRead, result: AwaitedStart, old: int) -> None:
        """Count the records that were deleted although a group has not read them, and log ``retention_wait_ended``.
        ``old`` is the log start before."""
        self._effects.counts.retention_unread_records += result.unread
        self._effects.event(
            "retention_wait_ended",
            topic_id=partition.key.topic_id,
            partition=partition.key.partition,
            group=slowest.group,
            position=slowest.position,
            reason=slowest.error or ("" if slowest.position >= 0 else "the group has no position"),
            old=old,
            start=result.start,
            records=result.unread,
        )

    def _compact(self, partition: Partition, wall_ms: int) -> None:
        """Start the first run of a compaction pass, if the topic is compacted, enough bytes of the log are
        uncompacted, and the disk is not full."""
        if "compact" in partition.config.cleanup and not self._effects.full:
            compaction = partition.log.begin_compaction(partition.high_watermark, wall_ms, self._min_dirty_ratio)
            if compaction is not None:
                self._run_on(partition, compaction)

    def _advance(self, partition: Partition, start: int, cause: str) -> bool:
        """Move the log start up to ``start``, and start a job that deletes the segments below. Log
        ``log_start_moved`` with the old and new start and the ``cause``. Return False and do nothing if no segment
        can be deleted."""
        old = partition.log.start
        advance = partition.log.begin_advance(start)
        if advance is None:
            return False
        self._effects.jobs.start(partition.key, advance, partial(self._on_advanced, partition, advance))
        self._effects.event(
            "log_start_moved",
            topic_id=partition.key.topic_id,
            partition=partition.key.partition,
            old=old,
            start=partition.log.start,
            cause=cause,
        )
        return True

    def on_disk_space(self, now: float) -> None:
        """Begin a new round of cleaning at once, since the disk has become full, or has enough space again. The round
        under way ends."""
        self._waiting, self._due = [], now
        self.on_tick(now)

    def on_settled(self, partition: Partition) -> None:
        """Start the work that an input has made due in a partition: a job that writes a producer snapshot, or else
        the move of a follower's log start to its leader's, at most up to the follower's HW. Does nothing if neither
        is due, and does not move the log start while another job of the partition runs."""
        key, log, jobs, following = partition.key, partition.log, self._effects.jobs, partition.following
        if log.snapshot_due is not None and (snapshot := log.begin_snapshot()) is not None:
            jobs.start(key, snapshot, partial(self._on_snapshot, partition, snapshot))
        elif following is not None and following.leader_start > log.start:
            start = _leaders_start(partition)
            if start > log.start and not jobs.busy(key):
                partition.guard(partial(self._follow, partition, start))

    def _follow(self, partition: Partition, start: int) -> None:
        """Move a follower's log start up to ``start``, the log start of its leader, and have a job delete the
        segments below. If ``start`` is the log end, close the active segment first, so that it can be deleted too."""
        if start == partition.log.end:  # the leader has removed all of it, and goes on in a new segment
            partition.log.roll()
        self._advance(partition, start, "leader")

    def _on_snapshot(self, partition: Partition, snapshot: WriteProducerSnapshot, result: object, now: float) -> None:
        """Record in the log that a job has written the producer snapshot. If the write failed the partition goes
        offline."""

        def take() -> None:
            if isinstance(result, OSError):
                raise result
            partition.log.complete_snapshot(snapshot)

        partition.guard(take)

    def _run_on(self, partition: Partition, compaction: Compaction) -> None:
        """Start a job for the next run of a compaction pass, which rewrites one segment."""
        done = partial(self._on_compacted, partition, compaction)
        self._effects.jobs.start(partition.key, compaction, done)

    def _on_compacted(self, partition: Partition, compaction: Compaction, result: object, now: float) -> None:
        """Act on the end of one run of a compaction pass: put the rewritten segment in the place of the old one, and
        start the next run. After the last run log ``log_compacted``, and clean the partition again. If the disk has
        too little space, log ``compaction_without_room`` and give the pass up until the next round. Another error
        takes the partition offline, unless the log was truncated meanwhile: then it is ignored."""

        def take() -> None:
            log = partition.log
            if isinstance(result, OSError):
                if compaction.generation != log.generation:
                    return  # its files went with a truncation
                if result.errno not in NO_ROOM:
                    raise result
                self._effects.event(
                    "compaction_without_room",
                    topic_id=partition.key.topic_id,
                    partition=partition.key.partition,
                    reason=str(result),
                )
                return
            assert result is None or isinstance(result, Cleaned)
            if log.complete_compaction(compaction, result):
                self._run_on(partition, compaction)
            elif compaction.generation == log.generation:
                self._effects.event(
                    "log_compacted",
                    topic_id=partition.key.topic_id,
                    partition=partition.key.partition,
                    start=log.start,
                    end=compaction.end,
                    bytes_before=sum(source.size for source in compaction.sources),
                    bytes_after=sum(
                        each.bytes for each in log.segments.extents() if each.end <= compaction.sources[-1].end
                    ),
                )
                self._clean(partition)  # retention, and the next pass where the map of keys was full

        partition.guard(take)

    def _wanted_start(self, partition: Partition, wall_ms: int) -> tuple[int, str]:
        """Return the offset at which the log should begin, and the cause, "leader" or "retention". A follower's log
        begins where its leader's does. For a leader's log, and for a follower's on a full disk, the topic's retention
        may set a higher offset."""
        start, cause = _leaders_start(partition), "leader"
        if partition.following is not None and not self._effects.full:
            return start, cause
        if "delete" not in partition.config.cleanup:
            return start, cause
        extents = partition.log.segments.extents()
        if partition.config.retention_ms >= 0:
            extents = partition.log.segments.aged_extents(wall_ms - partition.config.retention_ms)
        own = log_start(extents, partition.high_watermark, partition.config, wall_ms)
        return (own, "retention") if own > start else (start, cause)

    def _on_advanced(self, partition: Partition, advance: DeleteSegments, result: object, now: float) -> None:
        """Record in the log that a job has deleted the segments below the log start. Log ``producers_forgotten`` if
        the job could not keep all of the producers' state. If the deletion failed the partition goes offline."""

        def take() -> None:
            if isinstance(result, OSError):
                raise result
            partition.log.complete_advance(advance)
            if result is False:
                key, start = partition.key, advance.log_start.start
                self._effects.event(
                    "producers_forgotten", topic_id=key.topic_id, partition=key.partition, start=start
                )

        partition.guard(take)


def _leaders_start(partition: Partition) -> int:
    """Return the leader's log start, at most the follower's own HW; 0 if this server does not follow."""
    following = partition.following
    return 0 if following is None else min(following.leader_start, following.high_watermark)
