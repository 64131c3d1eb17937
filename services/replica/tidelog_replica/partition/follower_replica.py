"""A partition that this server follows: answers of the leader meet the own log.

``replication/follower.py`` decides; this class moves the bytes. Every answer is taken only for the question that is
still open: same leader epoch, same log end. Any ``OSError`` is the caller's: the partition goes offline.
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
from tidelog_replica.partition.reads import PendingReads
from tidelog_replica.replication.follower import FollowerState, agreed_end, fault_of
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import CopyStart, Log
from tidelog_replica.storage.producer_snapshots import RebuildProducerState
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted


class TruncationRefused(Exception):
    """The leader's answer would cut committed records, which only an unclean election can ask for."""


class FetchOutcome(Enum):
    """What follows from an answer or a notice of the leader that is no error."""

    FETCH_AGAIN = auto()
    """There may be more: ask again at once."""
    WAIT_FOR_NOTIFY = auto()
    """There is nothing more: the leader notifies this follower of what comes next."""
    RESTART_COPY = auto()
    """The copy has to start over, from a snapshot of the leader."""
    JOB_RUNNING = auto()
    """A job has to end first."""
    REPORT_PROGRESS = auto()
    """Report how far the log goes now. No answer is needed."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The leader answered with an error, or with something that makes no sense: ask again after a pause."""

    code: str


Outcome = FetchOutcome | RetryLater

OPENING = "OPENING"
"""Code of ``RetryLater`` where the leader is still opening its log: no reason to suspect it."""
BUSY = "BUSY"
"""Code of ``RetryLater`` where something here has to end first."""


def _failed(error: ErrorInfo) -> Outcome:
    return RetryLater(OPENING if "opening" in error.detail else error.code)


class FollowerReplica:
    """The follower's role on one partition, for one leader epoch."""

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
        self.core = core
        self.reading = PendingReads(context, core, log, core.leader)
        self._key = key
        self._log = log
        self._producers = producers
        self._effects = context.effects
        self._guard = guard
        self._on_loss = on_loss
        self._rebuild: RebuildProducerState | None = None
        self._stamp = 0
        """The greatest stamp that the leader has sent in this leader epoch."""
        self._has_diverged = False
        """The copy is to start over: nothing of its log is known to be in the leader's, and all of it may be lost."""
        self._restart_at = 0
        """Where the leader's log begins, by the answer that says that the copy is to start over."""
        self._asking_latest = False
        self._readers = False
        """Whether the last fetch said that readers wait."""
        self._was_notified = False
        """Whether the last message was a notice with data, after which the leader was asked for more."""
        self._is_sparse = False
        """There was no more then. So the next notice is followed by a report of progress, not by a fetch."""
        self.leader_start = 0
        """Where the leader's log begins, as it said last."""
        core.begin(log.epochs)

    @property
    def high_watermark(self) -> int:
        """What is known to be committed of the own log."""
        return self.core.high_watermark

    @property
    def is_working(self) -> bool:
        """The log is about to be cut, and a job finds out what must be known for that: until it ends nothing is asked
        for, and what the leader says is passed over."""
        return self._rebuild is not None

    def resign(self, code: str, message: str) -> None:
        """End the role: readers that wait are refused, and a job that is under way changes the log no more."""
        self._rebuild = None
        self.reading.resign(code, message)

    def epoch_request(self) -> EpochPart | None:
        """The dialogue's next question; None when it is over."""
        if self.core.asking is None:
            return None
        return EpochPart(*self._key, self.core.leader_epoch, self.core.asking)

    def fetch_request(self) -> FetchPart:
        """What is wanted next. Not before the dialogue is over."""
        assert self.core.asking is None
        log = self._log
        last_epoch = log.epoch_at(log.end)
        self._readers = self.reading.waits_for_records
        return FetchPart(
            *self._key, self.core.leader_epoch, log.end, last_epoch, log.durable, self._stamp, self._readers
        )

    @property
    def may_report_progress(self) -> bool:
        """The leader need not answer when it hears how far the log goes: it is not likely to have more, no client
        reads here, and nothing else is open between the two."""
        core = self.core
        is_idle = core.asking is None and core.agreed and self._rebuild is None
        return is_idle and self._is_sparse and not self.reading.waits_for_records

    @property
    def must_report_progress(self) -> bool:
        """Readers wait here, and the leader does not know."""
        return self.reading.waits_for_records and not self._readers

    def on_stamp(self, stamp: int) -> None:
        """The leader has sent this stamp with an answer or notice. The next fetch shows it."""
        self._stamp = max(self._stamp, stamp)

    def on_epoch_end(self, asked: EpochPart, part: EpochEnd) -> Outcome:
        """The leader's answer in the dialogue. Raises ``TruncationRefused``."""
        if asked.leader_epoch != self.core.leader_epoch or self._rebuild is not None:
            return FetchOutcome.FETCH_AGAIN
        if part.error is not None:
            return _failed(part.error)
        if part.epoch > asked.epoch:
            return RetryLater("MALFORMED")
        log = self._log
        end = self.core.on_epoch_end(asked.epoch, part.epoch, part.end_offset, log.epochs, 0, log.end)
        return FetchOutcome.FETCH_AGAIN if end is None else self._agree(end, part.end_offset, part.log_start)

    def on_fetched(self, asked: FetchPart, part: FetchedPart, data: memoryview, sent: float = -inf) -> Outcome:
        """The leader's answer to a fetch that was sent at ``sent``, if that is known. Raises
        ``TruncationRefused``."""
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
            return self._agree(end, part.diverging_end, part.log_start)
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
        """The leader's notice, lost, doubled, late or not. Batches in it are taken where they are exactly what comes
        next; whatever else asked for the same then comes too late. The HW is good for whatever the own log holds: it
        is the beginning of the leader's."""
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
        """Whether batches that came with a notice begin where the log ends."""
        try:
            return read_header(data).base_offset == self._log.end
        except CorruptBatch:
            return True  # it is for others to say so loudly

    def latest_request(self) -> ListOffset | None:
        """The request for the proof that readers wait for; None where none wait, or it is on its way."""
        if self._asking_latest or not self.core.is_asked:
            return None
        self._asking_latest = True
        return ListOffset(*self._key, "latest", leader_epoch=self.core.leader_epoch, isolation="uncommitted")

    def on_latest(self, answer: Message | TidelogError, sent: float) -> bool:
        """The leader's answer to it. Whether its HW is yet to be fetched."""
        self._asking_latest = False
        if not isinstance(answer, OffsetAnswer):
            self.core.asked_at = -inf
            self.reading.give_up()
            return False
        self.core.on_proof(answer.offset, sent)
        return answer.offset > self.core.high_watermark

    def _append(self, data: memoryview, source: Compacted = UNKNOWN) -> bool:
        """Append what the leader sent, in one write; False where it is not what was asked for. ``source``: how far
        the leader's log is compacted; what it sends with a notice is above that."""
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

    def _agree(self, end: int, leader_end: int, leader_start: int) -> Outcome:
        """The logs agree up to ``end`` at most: the leader says ``leader_end``, and where its log begins later nobody
        knows from where on they do not. If it may be anywhere in the own log, or before that begins, and what this
        holds may be lost, then nothing of it is known to be the leader's: the copy starts over."""
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
        if self._rebuild is rebuild:
            self._rebuild = None
            self._guard(partial(self._cut_as_rebuilt, rebuild, result))

    def _cut_as_rebuilt(self, rebuild: RebuildProducerState, result: object) -> None:
        if isinstance(result, OSError):
            raise result
        assert isinstance(result, ProducerState)
        self._cut(rebuild.end, result)

    def _cut(self, end: int, rebuilt: ProducerState | None = None) -> None:
        """Make the log end at ``end``; also forget empty epochs there, which the leader may not share. Where records
        that are cut may have been committed, ``on_loss`` is called before the cut: a crash must neither leave a HW
        above what is committed nor lose the report."""
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
        """What a copy must know that begins where the leader's log does, with the producers there: all of the own log
        goes. What it held was committed, and is retired or will be fetched again; or it may be lost. Raises
        ``OSError``."""
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
        """Where retention at the leader has overtaken this copy it starts over there; one that holds nothing by which
        they could have agreed has parted from it. That its log is no part of the leader's is nothing that the leader
        of an agreed log can say."""
        if part.log_start > self._log.end:
            latest = self._log.epochs.latest()
            self._has_diverged = self._has_diverged or (latest < 0 and self.core.may_lose(latest))
            self._restart_at = part.log_start
            return FetchOutcome.RESTART_COPY
        raise TruncationRefused(
            f"the leader's log begins at {part.log_start} and does not hold the own end {self._log.end}"
        )
