"""The scrubber: reads every segment of every log again, slowly, so that damage is found while other replicas still
hold what was lost. Of the active segment it reads what was synced when its check began.

A round begins every ``scrub_interval_s`` (the first one a twenty-fourth of that after the start), or when an operator
requests one. It reads all partitions, segment by segment, in jobs of ``PIECE_BYTES``, one job at a time for the whole
server. Pauses between them keep the rate at ``scrub_bytes_per_s``. A segment that is removed, cut or compacted during
its check is skipped. Damage that is found is treated like any other: the partition goes offline, resigns and is
repaired (``maintenance/log_repairer.py``). A log without damage is then compared with the other copies of its
partition (``copies/checks.py``).

A whole batch that no reader can decode is no damage. Such batches are counted, and the first places of each partition
are kept for ``describe_metrics``. Nothing is kept across a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tidelog.types import TopicPartition
from tidelog.wire.fields import MAX_INT
from tidelog.wire.messages import ScrubStatus, UnreadablePlace

from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import SCRUB
from tidelog_replica.partition.partition import Partition
from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.segment import CorruptLog
from tidelog_replica.storage.segment_scrub import Checked, Scrub, ScrubPosition, ScrubTarget, Unreadable

PIECE_BYTES = 1 << 20
"""Bytes that one job reads; the last batch may exceed the limit."""
MOST_PLACES = 5
"""Places of unreadable batches that are remembered for a partition. All such batches are counted."""
MOST_REPORTED = 100
"""Most places of unreadable batches that a server reports, over all its partitions."""
ASKED_BYTES_PER_S = 4 << 20
"""Bytes per second that are read in a round that an operator asked for, if the setting ``scrub_bytes_per_s`` is 0."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The unreadable batches that the last check of one segment found: their number, and the places of the first
    ones."""

    count: int
    places: tuple[Unreadable, ...]
    """The places of the first ones: at most ``MOST_PLACES`` for all segments of a partition together."""


class Scrubber:
    """The part of a node that reads and checks all synced segments of its partitions again, in rounds, by jobs in
    threads. ``partitions`` are the open partitions, a live view. ``compare(key, now)`` is called when the check of a
    partition's whole log is over and the partition is still online. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        partitions: Mapping[TopicPartition, Partition],
        compare: Callable[[TopicPartition, float], None],
    ) -> None:
        self._partitions = partitions
        self._disk = context.disk
        self._interval_s = context.settings.scrub_interval_s
        self._by_itself = context.settings.scrub_bytes_per_s > 0
        self._rate = context.settings.scrub_bytes_per_s or ASKED_BYTES_PER_S
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._compare = compare
        self._rounds = 0
        """Rounds begun since the start."""
        self._running = False
        """Whether a round is under way."""
        self._round: list[TopicPartition] = []
        """Partitions that are still to be checked in this round, the next one last."""
        self._partition: Partition | None = None
        """The partition that is being checked; None before the first one, between two, and between rounds."""
        self._target: ScrubTarget | None = None
        """The segment of that partition that is being checked, or was checked last."""
        self._generation = 0
        """The log's generation when the segment's check began."""
        self._until = 0
        """The log end when the partition's check began; later segments are checked in the next round."""
        self._place: ScrubPosition | None = None
        """How far the segment is checked; None: no check is under way."""
        self._segments = self._bytes = 0
        """Segments, and their bytes, that were checked in this round."""
        self._unreadable: list[Unreadable] = []
        self._unreadable_count = 0
        """The places of the first unreadable batches of the segment that is being checked, and the number of all of
        them."""
        self._found: dict[TopicPartition, dict[int, _Found]] = {}
        """Unreadable batches by partition and first offset of the segment, as each segment's last check found
        them."""
        self._busy = False
        self._round_due: float | None = None
        self._due: float | None = None

    def start(self, now: float) -> None:
        """Set the timer for the first round, a twenty-fourth of ``scrub_interval_s`` from now. Does nothing if
        ``scrub_bytes_per_s`` is 0: rounds then begin only on request."""
        if self._by_itself:
            self._due = self._round_due = now + self._interval_s / 24
            self._timers.set(self, self._due)

    def begin_round(self, now: float) -> None:
        """Begin a round over all open partitions now, since an operator asks for one. A round that is under way is
        given up."""
        self._begin_round(now)
        self._set_timer()

    def _begin_round(self, now: float) -> None:
        """Reset the progress of the round, queue all open partitions for a check, and forget the unreadable batches
        of partitions that are not open any more."""
        self._rounds += 1
        self._running = True
        self._due, self._round_due = now, now + self._interval_s if self._by_itself else None
        self._round = list(self._partitions)[::-1]
        self._found = {key: found for key, found in self._found.items() if key in self._partitions}
        self._partition = self._target = self._place = None
        self._segments = self._bytes = 0

    def status(self) -> ScrubStatus:
        """Return the progress of the last round that has begun: its number since the start of the server, whether it
        runs, the partitions that are left, and the segments and bytes that were checked."""
        left = len(self._round) + (self._partition is not None)
        return ScrubStatus(self._rounds, self._running, left, self._segments, self._bytes)

    def on_tick(self, now: float) -> None:
        """Start a job that checks the next piece of a segment, if one is due and no such job runs; if no round is
        under way, begin one first. Then set the timer."""
        if not self._busy and self._due is not None and self._due <= now:
            self._check_next(now)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the time of the next piece or round. Does nothing while a job runs."""
        self._timers.set(self, None if self._busy else self._due)

    def _check_next(self, now: float) -> None:
        """Start the job that checks the next piece of the current segment, or else the first piece of the next
        segment. End the round if no segment is left."""
        if not self._running:
            self._begin_round(now)
        if self._place is None or not self._is_unchanged():
            self._find_segment(now)
        if self._partition is None or self._target is None or self._place is None:
            self._end_round()
            return
        epochs = LeaderEpochCache(self._partition.log.epochs.entries)
        job = Scrub(self._disk, self._target, self._place, PIECE_BYTES, epochs)
        self._busy = True
        self._effects.jobs.start(SCRUB, job, partial(self._on_checked, now, self._target))

    # --- segment by segment ------------------------------------------------------------------------------

    def _find_segment(self, now: float) -> None:
        """Choose the next segment to be checked: of the current partition, or of the next one that has any. Call
        ``compare`` for each partition whose last segment is done. If no partition is left, no segment is chosen."""
        self._place = None
        while self._partition is not None or self._round:
            if self._partition is None:
                self._partition, self._target = self._partitions.get(self._round.pop()), None
                self._until = 0 if self._partition is None else self._partition.log.end
                continue
            target = self._target_after(-1 if self._target is None else self._target.base)
            if target is not None:
                self._target, self._place = target, target.first_position
                self._generation = self._partition.log.generation
                self._unreadable, self._unreadable_count = [], 0
                return
            if self._is_open(self._partition):
                self._compare(self._partition.key, now)
            self._partition = None

    def _is_open(self, partition: Partition) -> bool:
        """Return whether the partition is open and was not taken offline."""
        return partition.offline is None and self._partitions.get(partition.key) is partition

    def _target_after(self, base: int) -> ScrubTarget | None:
        """Return what is to be checked of the current partition's next segment, the first one that begins above
        offset ``base``: all of a closed segment, the synced part of the active one. None if there is no such segment,
        if it was begun after the partition's check, if nothing of it is synced, or if the partition is not open."""
        partition = self._partition
        assert partition is not None
        if not self._is_open(partition):
            return None
        log, found = partition.log, list[ScrubTarget]()
        segment = log.segments.segment_after(base)
        if segment is None or segment.base >= self._until:
            return None
        if log.segments.closed_segment_after(base) is segment:
            return ScrubTarget.of(segment)
        if log.synced > segment.base:
            partition.guard(lambda: found.append(ScrubTarget.of(segment, log.synced)))
            self._touch(partition.key)
        return found[0] if found else None

    def _is_unchanged(self) -> bool:
        """Return whether the segment that is being checked still exists unchanged: not deleted, truncated or
        compacted since, in a partition that is open. False if no segment is being checked."""
        partition, target = self._partition, self._target
        if partition is None or target is None or not self._is_open(partition):
            return False
        return partition.log.is_still(target, self._generation)

    def _end_round(self) -> None:
        """End the round, and log ``scrubbed`` if any segment was checked. The next round begins at the interval's
        end, or on request."""
        self._running = False
        self._due = self._round_due
        if self._segments:
            self._effects.event("scrubbed", segments=self._segments, bytes=self._bytes)

    def _on_checked(self, begun: float, target: ScrubTarget, result: object, now: float) -> None:
        """Act on the result of the job that checked a piece of a segment, and set the timer for the next piece.
        ``begun`` is the time in seconds at which the job was started."""
        self._busy = False
        self._due = now
        self._act_on_result(begun, target, result, now)
        self._timers.set(self, self._due)

    def _act_on_result(self, begun: float, target: ScrubTarget, result: object, now: float) -> None:
        """Act on the result of a check. Take the partition offline for repair if the segment is damaged; after
        another ``OSError`` log ``scrub_failed`` and skip the segment. Otherwise continue behind the checked piece,
        after the pause that ``scrub_bytes_per_s`` demands, and log ``index_removed`` if the check has removed a bad
        index file. Ignores the result if the segment was changed meanwhile."""
        partition, place = self._partition, self._place
        if target is not self._target or not self._is_unchanged():
            return
        assert partition is not None and place is not None
        if isinstance(result, CorruptLog):
            self._place = None
            partition.on_damage(result)
            self._touch(partition.key)
            return
        if isinstance(result, OSError):  # it says nothing of the segment, which is looked at in the next round
            self._place = None
            self._effects.event("scrub_failed", reason=f"{target.path}: {result}")
            return
        assert isinstance(result, Checked)
        reached, index_removed, unreadable = result
        self._unreadable_count += len(unreadable)
        self._unreadable += unreadable[: MOST_PLACES - len(self._unreadable)]
        self._due = max(now, begun + (reached.position - place.position) / self._rate)
        self._place = reached if reached.position < target.size else None
        if self._place is None:
            self._segments += 1
            self._bytes += target.size
            self._remember(partition, target.base)
        if index_removed:
            key = partition.key
            self._effects.event("index_removed", topic_id=key.topic_id, partition=key.partition, segment=target.base)

    # --- batches that no reader can decode -------------------------------------------------------------------

    def _remember(self, partition: Partition, base: int) -> None:
        """Record the unreadable batches that the check of the segment at offset ``base`` has found, in place of those
        of its previous check. Log ``unreadable_batches`` if there are any."""
        key = partition.key
        found = {each: of for each, of in self._unreadable_in(partition) if each != base}
        if self._unreadable_count:
            left = max(0, MOST_PLACES - sum(len(of.places) for of in found.values()))
            found[base] = _Found(self._unreadable_count, tuple(self._unreadable[:left]))
            self._effects.event(
                "unreadable_batches",
                topic_id=key.topic_id,
                partition=key.partition,
                segment=base,
                batches=self._unreadable_count,
                offset=self._unreadable[0].base_offset,
            )
        self._found[key] = found

    def _unreadable_in(self, partition: Partition) -> list[tuple[int, _Found]]:
        """Return the recorded unreadable batches of the partition, as pairs of a segment's first offset and what was
        found, in order. Leaves out segments that were removed or merged since."""
        found = sorted(self._found.get(partition.key, {}).items())
        segments = ((base, of, partition.log.segments.segment_after(base - 1)) for base, of in found)
        return [(base, of) for base, of, segment in segments if segment is not None and segment.base == base]

    def unreadable(self) -> tuple[int, tuple[UnreadablePlace, ...]]:
        """Return the number of batches that no reader can decode, and the first places of each partition, at most
        ``MOST_REPORTED`` in total. They are what the last check of each segment found, without the segments that have
        left the log."""
        count, places = 0, []
        for key in self._found:
            partition = self._partitions.get(key)
            for _, found in [] if partition is None else self._unreadable_in(partition):
                count += found.count
                places += [UnreadablePlace(*key, first, end - 1, min(id, MAX_INT)) for first, end, id in found.places]
        return count, tuple(places[:MOST_REPORTED])
