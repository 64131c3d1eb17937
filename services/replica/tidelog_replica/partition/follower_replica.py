"""A partition that this server follows: it applies the leader's answers to the local log.

``replication/follower_state.py`` decides; this class moves the bytes. An answer is applied only if its request is not
outdated: the leader epoch and the log end are still those of the request. An ``OSError`` is raised to the caller,
which takes the partition offline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf

from tidelog.batch.format import check_batch, read_header, split
from tidelog.errors import CorruptBatch, TidelogError
from tidelog.types import TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    EpochEnd,
    EpochPart,
    ErrorInfo,
    FetchedPart,
    FetchPart,
    ListOffset,
    LogSnapshotAnswer,
    Message,
    NotifyPart,
    OffsetAnswer,
)

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.pending_reads import PendingReads
from tidelog_replica.replication.follower_state import FollowerState, agreed_end, fault_of
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import CopyStart, Log
from tidelog_replica.storage.producer_snapshots import RebuildProducerState
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted


class TruncationRefused(Exception):
    """An error: the leader's answer would make this follower cut committed records, which is allowed only after an
    unclean election or with commit rule ``leader``. The partition goes offline."""


class FetchOutcome(Enum):
    """The next step that the fetcher takes with a partition, after an answer or ``Notify`` of the leader that was no
    error."""

    FETCH_AGAIN = auto()
    """There may be more records: fetch again at once."""
    WAIT_FOR_NOTIFY = auto()
    """There are no more records: the leader notifies this follower of the next ones."""
    RESTART_COPY = auto()
    """The copy has to start over: request a snapshot of the leader's log."""
    JOB_RUNNING = auto()
    """A job has to end before anything is requested."""
    REPORT_PROGRESS = auto()
    """Report the log end to the leader; no answer is needed."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The next step that the fetcher takes after an error: ask the leader again after a pause. The leader answered
    with an error or a malformed answer, or this server cannot act on the answer now. ``code`` is the error's code."""

    code: str


Outcome = FetchOutcome | RetryLater

OPENING = "OPENING"
"""Code of ``RetryLater`` if the leader is still opening its log, so that there is no reason to suspect it of having
failed."""
BUSY = "BUSY"
"""Code of ``RetryLater`` if a job of the partition has to end here first."""


def _failed(error: ErrorInfo) -> Outcome:
    """Return ``RetryLater`` for an error in a leader's answer; its code is ``OPENING`` if the leader is still opening
    its log."""
    return RetryLater(OPENING if "opening" in error.detail else error.code)


class FollowerReplica:
    """The follower's role on one partition, for one leader epoch. It builds the requests to the leader, and applies
    the leader's answers to the log. A learner has this role, too."""

    def __init__(
        self,
        context: NodeContext,
        key: TopicPartition,
        core: FollowerState,
        log: Log,
        producers: ProducerState,
        guard: Callable[[Callable[[], None]], object],
        on_loss: Callable[[int, int, int], None] = lambda start, committed, end: None,
    ) -> None:
        """Begin the role. ``guard`` runs an action on the log and takes the partition offline if the action fails.
        ``on_loss(start, committed, end)`` is called before records from ``start`` up to ``end`` (exclusive) are cut
        that may have been committed; those below ``committed`` certainly were."""
        self.core = core
        self.reading = PendingReads(context, core, log, core.leader)
        self._key = key
        self._log = log
        self._producers = producers
        self._effects = context.effects
        self._guard = guard
        self._on_loss = on_loss
        self._rebuild: RebuildProducerState | None = None
        """The job that rebuilds the producer state for a cut; None while no cut waits for a job."""
        self._stamp = 0
        """The greatest confirmation round (*stamp* on the wire) that the leader has sent in this leader epoch."""
        self._has_diverged = False
        """Whether the copy is to start over because no part of its log is known to be in the leader's, so that all of
        it may be lost."""
        self._restart_at = 0
        """The leader's log start in the answer that made the copy start over."""
        self._asking_latest = False
        """Whether a ``ListOffset`` for the proof of leadership is on its way to the leader."""
        self._readers = False
        """Whether the last fetch said that readers wait here."""
        self._was_notified = False
        """Whether the last message was a ``Notify`` with data, after which a fetch asked the leader for more."""
        self._is_sparse = False
        """Whether that fetch brought no more records. The next ``Notify`` is then followed by a report of progress,
        not by a fetch."""
        self.leader_start = 0
        """The leader's log start, as its last answer gave it."""
        core.enter_leader_epoch(log.epochs)

    @property
    def high_watermark(self) -> int:
        """Return the HW: every record of the local log below this offset is known to be committed."""
        return self.core.high_watermark

    @property
    def is_working(self) -> bool:
        """Return whether a job is rebuilding the producer state for a cut of the log. Until the job ends nothing is
        requested from the leader, and its answers are ignored."""
        return self._rebuild is not None

    def resign(self, code: str, message: str) -> None:
        """End the role: refuse the waiting reads with ``code`` and ``message``. If a job is rebuilding the producer
        state, its result is ignored."""
        self._rebuild = None
        self.reading.resign(code, message)

    def epoch_request(self) -> EpochPart | None:
        """Return the next request of the epoch dialogue, which asks the leader where one of its leader epochs ends.
        Return None if the dialogue is over."""
        if self.core.asking is None:
            return None
        return EpochPart(*self._key, self.core.leader_epoch, self.core.asking)

    def fetch_request(self) -> FetchPart:
        """Return the request for the leader's records from the local log end on. It also reports to the leader how
        far the local log is durable, and whether reads wait here for records. May be called only when the epoch
        dialogue is over."""
        assert self.core.asking is None
        log = self._log
        last_epoch = log.epoch_at(log.end)
        self._readers = self.reading.waits_for_records
        return FetchPart(
            *self._key, self.core.leader_epoch, log.end, last_epoch, log.durable, self._stamp, self._readers
        )

    @property
    def may_report_progress(self) -> bool:
        """Return whether this follower may report its log end instead of fetching: the leader probably has no more
        records, no client waits here for records, the logs are known to agree, and neither the epoch dialogue nor a
        job is under way."""
        core = self.core
        is_idle = core.asking is None and core.agreed and self._rebuild is None
        return is_idle and self._is_sparse and not self.reading.waits_for_records

    @property
    def must_report_progress(self) -> bool:
        """Return whether reads wait here for records and the last fetch did not report that to the leader."""
        return self.reading.waits_for_records and not self._readers

    def on_stamp(self, stamp: int) -> None:
        """Remember the confirmation round that came with an answer or ``Notify`` of the leader, unless a greater one
        is known. The next fetch sends the round back, which proves to the leader that this follower knew no newer
        leader."""
        self._stamp = max(self._stamp, stamp)

    def on_epoch_end(self, asked: EpochPart, part: EpochEnd) -> Outcome:
        """Apply the leader's answer in the epoch dialogue: the dialogue goes on with an older epoch
        (``FETCH_AGAIN``), or ends with the log cut where it diverges from the leader's. An answer that belongs to
        another leader epoch, or that comes while a job runs, changes nothing. An error in the answer gives
        ``RetryLater``. Raises ``TruncationRefused`` if committed records would be cut, and ``OSError``."""
        if asked.leader_epoch != self.core.leader_epoch or self._rebuild is not None:
            return FetchOutcome.FETCH_AGAIN
        if part.error is not None:
            return _failed(part.error)
        if part.epoch > asked.epoch:
            return RetryLater("MALFORMED")
        log = self._log
        end = self.core.on_epoch_end(asked.epoch, part.epoch, part.end_offset, log.epochs, 0, log.end)
        return (
            FetchOutcome.FETCH_AGAIN if end is None else self._cut_at_divergence(end, part.end_offset, part.log_start)
        )

    def on_fetched(self, asked: FetchPart, part: FetchedPart, data: memoryview, sent: float = -inf) -> Outcome:
        """Apply the leader's answer to a fetch that was sent at ``sent`` (seconds; -inf if not known), and return the
        next step. If the logs agree, append the batches, move the HW and record the confirmation of leadership. If
        they diverge, cut the local log there. ``RESTART_COPY`` means that the copy must start over, for example
        because retention has overtaken it. An answer to an outdated fetch changes nothing, and an error in the answer
        gives ``RetryLater``. Raises ``TruncationRefused`` if committed records would be cut, and ``OSError``."""
        log, core = self._log, self.core
        if asked.leader_epoch != core.leader_epoch:
            return FetchOutcome.FETCH_AGAIN
        self._is_sparse = (self._is_sparse or self._was_notified) and not len(data)
        self._was_notified = False
        if part.leader_epoch == core.leader_epoch:
            self.on_stamp(part.stamp)
        if asked.offset != log.end or core.asking is not None or self._rebuild is not None:
            return FetchOutcome.FETCH_AGAIN
        if part.error is not None:
            if part.error.code == "OFFSET_OUT_OF_RANGE":
                return self._out_of_range(part)
            return _failed(part.error)
        if part.leader_epoch != core.leader_epoch:
            return RetryLater("FENCED_LEADER_EPOCH")
        self.leader_start = part.log_start
        core.agreed = part.diverging_epoch < 0
        if part.diverging_epoch >= 0:
            end = agreed_end(part.diverging_epoch, part.diverging_end, log.epochs, 0, log.end)
            if end >= log.end:
                return RetryLater("MALFORMED")
            return self._cut_at_divergence(end, part.diverging_end, part.log_start)
        source = Compacted(part.compacted_to, part.tombstones_to)
        if len(data) and log.lacks(source):
            self._restart_at = part.log_start
            return FetchOutcome.RESTART_COPY
        if len(data) and not self._append(data, source):
            return RetryLater("CORRUPT_BATCH")
        loss = core.loss(log.epochs, log.end, is_all=not len(data))
        if loss is not None:
            start, committed = loss
            self._on_loss(start, committed, committed)
        core.on_high_watermark(part.high_watermark, log.end)
        if part.confirmed_ms >= 0:
            core.on_proof(part.high_watermark, sent - part.confirmed_ms / 1000)
        if (asked.offset, asked.durable) == (log.end, log.durable):
            return FetchOutcome.WAIT_FOR_NOTIFY
        return FetchOutcome.FETCH_AGAIN

    def on_notified(self, part: NotifyPart, data: memoryview) -> Outcome:
        """Apply a ``Notify`` of the leader, which may be a repeated or late one, and return the next step. Its
        batches are appended only if they begin at the log end and the disk is not full; damaged ones are refused and
        logged. The HW rises to the leader's, but not above the log end. Neither happens while the logs are not known
        to agree; the confirmation round is remembered all the same. A ``Notify`` of another leader epoch changes
        nothing. Raises ``OSError``."""
        log, core = self._log, self.core
        if part.leader_epoch != core.leader_epoch:
            return FetchOutcome.WAIT_FOR_NOTIFY
        self.on_stamp(part.stamp)
        self._was_notified = False
        if core.asking is None and core.agreed and self._rebuild is None:
            if len(data) and self._continues(data) and not self._effects.full:
                self._was_notified = self._append(data)
            core.on_high_watermark(part.high_watermark, log.end)
        self._is_sparse = self._is_sparse and self._was_notified
        if self._was_notified and self.may_report_progress:
            return FetchOutcome.REPORT_PROGRESS
        return FetchOutcome.FETCH_AGAIN

    def _continues(self, data: memoryview) -> bool:
        """Return whether the batches of a ``Notify`` begin at the log end. Also True for bytes that are no batch, so
        that ``_append`` refuses and logs them."""
        try:
            return read_header(data).base_offset == self._log.end
        except CorruptBatch:
            return True  # it is for others to say so loudly

    def latest_request(self) -> ListOffset | None:
        """Return the request by which the leader confirms its leadership and gives its HW. Return None if no read
        here waits for a confirmation, or if such a request is under way."""
        if self._asking_latest or not self.core.is_asked:
            return None
        self._asking_latest = True
        return ListOffset(*self._key, "latest", leader_epoch=self.core.leader_epoch, isolation="uncommitted")

    def on_latest(self, answer: Message | TidelogError, sent: float) -> bool:
        """Apply the answer to a ``latest_request`` that was sent at ``sent`` (seconds): record that the leader still
        led then, with which HW. Return True if that HW is above the local one, so that records must be fetched before
        the waiting reads are answered. After an error, refuse those reads and return False."""
        self._asking_latest = False
        if not isinstance(answer, OffsetAnswer):
            self.core.asked_at = -inf
            self.reading.refuse_unproved()
            return False
        self.core.on_proof(answer.offset, sent)
        return answer.offset > self.core.high_watermark

    def _append(self, data: memoryview, source: Compacted = UNKNOWN) -> bool:
        """Append the leader's batches to the log in one write, and return True. If they are damaged or do not
        continue the log, append nothing, log ``fetched_data_refused`` and return False. ``source`` holds the offsets
        up to which the leader's log is compacted. Raises ``OSError``."""
        log = self._log
        try:
            batches = [(check_batch(batch, header), batch) for header, batch in split(data)]
        except CorruptBatch as error:
            fault: str | None = error.message
        else:
            headers = [header for header, _ in batches]
            fault = fault_of(headers, log.end, log.epoch_at(log.end), self.core.leader_epoch)
        if fault is not None:
            self._effects.event(
                "fetched_data_refused",
                topic_id=self._key.topic_id,
                partition=self._key.partition,
                leader=self.core.leader,
                fault=fault,
            )
            return False
        log.append([batch for _, batch in batches], source, headers)
        self._effects.counts.replicated_batches += len(batches)
        self._effects.counts.replicated_bytes += len(data)
        return True

    def _cut_at_divergence(self, end: int, leader_end: int, leader_start: int) -> Outcome:
        """Cut the log so that it ends at ``end`` or before, where it diverges from the leader's log, and return the
        next step. If the producer state must be rebuilt from the log first, start a job for that (``JOB_RUNNING``);
        its end makes the cut. If the divergence may lie below the start of either log, and the local records may be
        lost, return ``RESTART_COPY``. Raises ``TruncationRefused`` if committed records would be cut, and
        ``OSError``."""
        log = self._log
        if (0 <= leader_end < leader_start or end < log.start) and self.core.may_lose(log.epochs.latest()):
            self._has_diverged, self._restart_at = True, leader_start
            return FetchOutcome.RESTART_COPY
        end, _ = log.chain_at(max(end, log.start))  # a leader whose log is trimmed can name a place within a batch
        if not self.core.may_cut(end, log.epochs.latest()):
            raise TruncationRefused(
                f"leader {self.core.leader} of epoch {self.core.leader_epoch} asks to cut the log at {end}, below"
                f" the high watermark {self.core.high_watermark}: committed records would be lost"
            )
        rebuild = log.begin_rebuild(end)
        if rebuild is None:
            self._cut(end)
            return FetchOutcome.FETCH_AGAIN
        if self._effects.jobs.busy(self._key):
            return RetryLater(BUSY)  # the next fetch brings the same answer
        self._rebuild = rebuild
        self._effects.jobs.start(self._key, rebuild, partial(self._on_rebuilt, rebuild))
        return FetchOutcome.JOB_RUNNING

    def _on_rebuilt(self, rebuild: RebuildProducerState, result: object, now: float) -> None:
        """Cut the log when the job has rebuilt the producer state; if the job failed, take the partition offline.
        Does nothing if the role has ended since."""
        if self._rebuild is rebuild:
            self._rebuild = None
            self._guard(partial(self._cut_as_rebuilt, rebuild, result))

    def _cut_as_rebuilt(self, rebuild: RebuildProducerState, result: object) -> None:
        """Cut the log and install the producer state that the job has rebuilt. Raises the ``OSError`` by which the
        job failed."""
        if isinstance(result, OSError):
            raise result
        assert isinstance(result, ProducerState)
        self._cut(rebuild.end, result)

    def _cut(self, end: int, rebuilt: ProducerState | None = None) -> None:
        """Truncate the log to end at ``end``, and log ``log_truncated``. Epochs of the leader-epoch cache that begin
        there are removed, too, since the leader may not share them. If the cut records may have been committed, the
        loss is recorded (``on_loss``) and the HW lowered before the cut, so that no crash leaves an HW above what is
        committed. Raises ``OSError``."""
        log, high_watermark = self._log, self.core.high_watermark
        if end < log.end and self.core.may_lose(log.epochs.latest()):
            self._on_loss(end, high_watermark, log.end)
        if end < high_watermark:
            self.core.on_loss(end)
        if end < log.end:
            self._effects.event(
                "log_truncated",
                topic_id=self._key.topic_id,
                partition=self._key.partition,
                leader=self.core.leader,
                leader_epoch=self.core.leader_epoch,
                log_end=log.end,
                end=end,
            )
        log.truncate(end, rebuilt)

    def on_snapshot(self, answer: LogSnapshotAnswer, producers: ProducerState) -> Outcome:
        """Replace the local log by an empty one that begins at the leader's log start, with the producer state of
        that offset, and log ``copy_restarted``. If the copy had diverged, the local records may be lost, and the loss
        is recorded (``on_loss``) first. Return ``RetryLater`` and change nothing if the snapshot begins below the log
        start that the leader gave before. Raises ``OSError``."""
        log, start, end = self._log, answer.log_start, self._log.end
        if start < self._restart_at:
            return RetryLater(BUSY)  # its log begins later, and is about to on its disk: ask again
        if self._has_diverged:
            self._has_diverged = False
            known = max(self.core.high_watermark, self.core.highest_committed)
            self._on_loss(log.start, known, max(known, log.end))
            self.core.on_loss(min(log.start, start))
        payload = bytes(payload_view(answer.payload))
        log.reset(CopyStart(start, answer.last_epoch, answer.chain, payload), producers)
        self.core.start_over(start)
        self._effects.event(
            "copy_restarted",
            topic_id=self._key.topic_id,
            partition=self._key.partition,
            leader=self.core.leader,
            old_end=end,
            start=start,
        )
        return FetchOutcome.FETCH_AGAIN

    def _out_of_range(self, part: FetchedPart) -> Outcome:
        """Return ``RESTART_COPY`` if the leader's log begins above the local log end: retention has overtaken this
        copy, or, if the copy knows no leader epoch, it has diverged. Otherwise raise ``TruncationRefused``: no leader
        whose log has the same history could refuse the local log end."""
        if part.log_start > self._log.end:
            latest = self._log.epochs.latest()
            self._has_diverged = self._has_diverged or (latest < 0 and self.core.may_lose(latest))
            self._restart_at = part.log_start
            return FetchOutcome.RESTART_COPY
        raise TruncationRefused(
            f"the leader's log begins at {part.log_start} and does not hold the own end {self._log.end}"
        )
