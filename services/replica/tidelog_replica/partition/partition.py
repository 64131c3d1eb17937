"""One partition on this server: its log, its producers, and the role that the metadata gives it.

    idle        no leader is known, or this server's registration is not answered yet
    leading     ``LeaderReplica``
    following   ``FollowerReplica``; a learner too
    sealed      between two leaders, with commit rule ``quorum`` or after a rescue of the controllers: no batch of an
                older leader epoch is appended and no request served. When all of the log is durable its end is
                reported to the controller, again and again
    offline     the disk failed, the log is damaged, or committed records would have to be cut: every request is
                refused until a restart, or until the damaged log is repaired

A leader whose flush takes longer than ``disk_stall_s`` is *stalled*: it takes no more batches and asks the controller
to let another lead (KIP-501), again and again until one does or the disk answers.

Every input ends with ``settle``. An ``OSError`` of the log at any point takes the partition offline and
acknowledges no batch: after a failed write or flush it is not known what is on the disk (a second flush may succeed
with the data gone).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, TypeVarTuple

from tidelog.errors import TidelogError, refuse
from tidelog.types import Buffer, NodeId, PartitionState, ServerState, TopicConfig, TopicPartition
from tidelog.wire.messages import (
    EpochEnd,
    EpochPart,
    FetchedPart,
    FetchPart,
    ListOffset,
    LogBounds,
    LogSnapshotAnswer,
    NotifyPart,
    ProducePart,
    Read,
)

from tidelog_replica.config import leader_settings
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.follower_replica import FollowerReplica, Outcome, RetryLater, TruncationRefused
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.pending_reads import PendingReads
from tidelog_replica.replication.follower_state import FollowerState
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.flush import Flush
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.recovery.pending_losses import LostRange
from tidelog_replica.storage.segment import CorruptLog

Ts = TypeVarTuple("Ts")

FAULTS = (OSError, TruncationRefused)
"""Exceptions that take a partition offline: the disk fails, the log is damaged (``CorruptLog``, an ``OSError``), or
the leader asks the impossible."""


class Partition:
    """One open partition on this server: it joins the log with the role that the metadata gives it. It lives from the
    opening of the log until the log is closed or deleted. It never waits for the disk: appends go to the page cache,
    and a flush is an effect that a thread performs."""

    def __init__(
        self,
        context: NodeContext,
        key: TopicPartition,
        config: TopicConfig,
        log: Log,
        servers: Mapping[NodeId, ServerState],
        producers: ProducerState,
    ) -> None:
        self.key = key
        self.config = config
        self.log = log
        self.state: PartitionState | None = None
        """The controller's state of the partition that this server last acted on; None before the first state in this
        incarnation."""
        self.role: LeaderReplica | FollowerReplica | None = None
        """The role that the partition has now; None while it is idle, sealed or offline."""
        self.leading: LeaderReplica | None = None
        """The leader's role; None unless this server leads."""
        self.following: FollowerReplica | None = None
        """The follower's role; None unless this server follows."""
        self.offline: str | None = None
        """Why the partition refuses every request; None while it is not offline."""
        self.damage: CorruptLog | None = None
        """The damage for which the log must be repaired; None if none was found."""
        self.flushing = False
        """Whether a thread flushes the log now."""
        self.producers = producers
        self._context = context
        self._node = context.node
        self._servers = servers
        self._settings = context.settings
        self._effects = context.effects
        self._idle_followers = context.idle_followers
        self._checkpoint = self._high_watermark = max(log.start, min(log.read_high_watermark(), log.end))
        self.committed = log.written_high_watermark
        """The highest committed offset that is known here. It is above the HW if the log has lost the records
        between."""
        self._highest_committed = self.committed  # also of a history which may be lost
        self._next_flush = 0.0
        self._flush_began = 0.0
        self.is_draining = False
        """Whether this server is about to end, so that others must lead and not wait for it."""
        self.report_at = 0.0
        """When this server next reports the sealed log to the controller, or asks it to let another replica lead
        (seconds)."""
        self.unreported_losses = list(log.pending_losses.ranges)
        """Ranges of lost records, including those from before a restart, that no report has carried to the controller
        yet. The log keeps each range until ``on_loss_reported``."""
        self._seen_epoch = -1
        """The highest leader epoch for which the metadata named a leader; -1: none."""
        self._led: tuple[int, tuple[NodeId, ...]] = (-1, ())
        """The last leader epoch in which this server led in this process (-1: none), and the replicas that could be
        elected after it."""

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Return the HW: every record below this offset is committed, as far as this server knows."""
        return self._high_watermark if self.role is None else self.role.core.high_watermark

    @property
    def reading(self) -> PendingReads | None:
        """Return the queue of the reads that wait on this partition, in either role. None without a role."""
        return None if self.role is None else self.role.reading

    @property
    def agreed_epoch(self) -> int:
        """Return the leader epoch in which the local log is known to equal the leader's up to the HW: this server
        leads in that epoch, or follows and its last fetch has shown it. Return -1 if the logs are not known to agree,
        or if the partition has no role."""
        if self.offline is not None or self.role is None:
            return -1
        core = self.role.core
        agrees = isinstance(core, LeaderState) or (core.asking is None and core.agreed)
        return core.leader_epoch if agrees else -1

    def refusal(self) -> TidelogError:
        """Return the error for a request that this server cannot serve: ``OFFLINE`` with the reason, or
        ``NOT_LEADER`` with the leader and leader epoch that are known here."""
        if self.offline is not None:
            return refuse("OFFLINE", f"the partition is offline on {self._node}: {self.offline}")
        state = self.state
        leader = "" if state is None or state.leader is None else state.leader
        return refuse(
            "NOT_LEADER",
            f"{leader or 'nobody known here'} leads, not {self._node}",
            leader=leader,
            leader_epoch=-1 if state is None else state.leader_epoch,
        )

    def guard(self, action: Callable[[*Ts], None], *args: *Ts) -> bool:
        """Run an action on the log and return True if it succeeded. Return False without running it if the partition
        is offline. Also return False, and take the partition offline, if the disk fails (this ends the process, too),
        the log is damaged, or the leader asks for a truncation that is not allowed."""
        if self.offline is not None:
            return False
        try:
            action(*args)
        except FAULTS as error:
            self.on_fault(error)
        return self.offline is None

    def on_fault(self, error: Exception) -> None:
        """Take the partition offline for an exception of ``FAULTS``. If the log is damaged, the damage is recorded
        for a repair; if the disk failed, the process ends."""
        if isinstance(error, CorruptLog):
            self.on_damage(error)
        elif isinstance(error, TruncationRefused):
            self.fail(str(error))
        else:
            self._fail_disk(f"{type(error).__name__}: {error}")

    def on_damage(self, damage: CorruptLog) -> None:
        """Take the partition offline because its log was found to be damaged, and record the damage. The node then
        closes the log and starts the repair."""
        self.damage = damage
        self.fail(f"damaged log: {damage}")

    def fail(self, reason: str) -> None:
        """Take the partition offline for ``reason``: end its role, which refuses the waiting requests, and log
        ``partition_offline``. Does nothing if the partition is offline already."""
        if self.offline is not None:
            return
        self.offline = reason
        self._effects.failed.append(self.key)
        self._resign("OFFLINE", f"the partition went offline on {self._node}: {reason}")
        self._event("partition_offline", reason=reason)

    def _fail_disk(self, reason: str) -> None:
        """Take the partition offline and end the process, since a failed disk cannot be trusted for any partition.
        Does nothing if the partition is offline already."""
        if self.offline is None:
            self.fail(reason)
            self._effects.stop(reason)

    # --- roles -------------------------------------------------------------------------------------------

    def on_state(self, state: PartitionState, broker_epoch: int, now: float) -> None:
        """Act on the controller's state of the partition if it is newer than the last one. In a new leader epoch the
        old role ends, its waiting requests are refused, and this server then leads, follows, or is idle. In the same
        leader epoch a leader takes over the new ISR and replica set. A state with the same partition epoch only
        updates the ELR, and an older one is ignored. If the partition is offline the state is only remembered."""
        old = self.state
        if old is not None and state.epoch <= old.epoch:
            if state.epoch == old.epoch:  # the answer to an ISR proposal does not name the ELR
                self.state = state
                if self.leading is not None:
                    self.leading.core.on_elr(state.elr)
            return
        self.state = state
        self.report_at = now
        if state.leader is not None:
            self._seen_epoch = max(self._seen_epoch, state.leader_epoch)
        if old is None or old.leader_epoch != state.leader_epoch:
            self._idle_followers.forget(self.key)  # a follower in another leader epoch asks by itself
        if self.offline is not None:
            return
        if old is not None and old.leader_epoch == state.leader_epoch and self.role is not None:
            if self.leading is not None:
                self.leading.on_state(state, now)
            return
        self._resign("NOT_LEADER", f"{state.leader or 'nobody'} leads in leader epoch {state.leader_epoch}")
        if state.leader == self._node:
            self.guard(self._lead, state, broker_epoch, now)
        elif state.leader is not None and self._node in state.replicas + state.learners:
            core = FollowerState(
                state.leader,
                state.leader_epoch,
                self._high_watermark,
                unclean_epoch=state.unclean_epoch,
                commit_rule=self.config.commit_rule,
                highest_committed=self._highest_committed,
            )
            if core.may_lose(self.log.epochs.latest()) and not self.guard(self._forget_committed):
                return
            self.role = self.following = FollowerReplica(
                self._context, self.key, core, self.log, self.producers, self.guard, self._on_loss
            )
            self._event("follower_became", leader=state.leader, leader_epoch=state.leader_epoch)

    def configure(self, config: TopicConfig, now: float) -> None:
        """Apply changed settings of the topic to the log and, if this server leads, to the leader's role."""
        self.config = config
        self.log.configure(config)
        if self.leading is not None:
            self.leading.configure(config, now)

    def retire(self, message: str, code: str = "NOT_LEADER") -> None:
        """End the role and forget the controller's state, since this incarnation of the server, or its part in the
        partition, is over. Waiting requests are refused with ``code`` and ``message``."""
        self.state = None
        self._resign(code, message)

    def step_down(self, message: str) -> None:
        """End the role because the controller answered that another replica leads. Waiting requests are refused with
        ``NOT_LEADER``. The partition is then idle until the controller's next state gives it a role."""
        self._resign("NOT_LEADER", message)

    def _forget_committed(self) -> None:
        """Lower the highest committed offset to the log end, in memory and on the disk; does nothing if it is not
        above. Called before this log continues a history in which the records above its end were lost: the next
        records at those offsets are not committed by the old HW."""
        if self.committed > self.log.end:
            self.log.lower_high_watermark(self.log.end)
            self.committed = self.log.end

    def _on_loss(self, start: int, committed: int, end: int) -> None:
        """Record the loss of the records from ``start`` up to ``end`` (exclusive), which are about to be cut or are
        gone already; an unclean election or the commit rule allows that. Those below ``committed`` were committed,
        the others may have been. The loss is written to the disk before the HW is lowered there, so that no crash
        hides it, and is queued for a report to the controller. Logs ``committed_records_lost`` and
        ``records_possibly_lost``."""
        assert self.state is not None
        epoch = self.state.leader_epoch
        known = max(committed, self._highest_committed) if committed > start else start
        lost = [LostRange(epoch, start, known, False)] if known > start else []
        if end > known:
            lost.append(LostRange(epoch, known, end, True))
        self.log.pending_losses.add(lost)
        self.unreported_losses += lost
        if known > start:
            self._lower_committed(start)
            self._event("committed_records_lost", start=start, end=known, leader_epoch=epoch)
        if end > known:
            self._event("records_possibly_lost", start=known, end=end, leader_epoch=epoch)

    def _lead(self, state: PartitionState, broker_epoch: int, now: float) -> None:
        """Begin to lead in the leader epoch of ``state``: write that epoch to the leader-epoch cache, create the
        leader's role and log ``leader_became``. With commit rule ``quorum`` also append the control batch that begins
        the epoch. Log ``leadership_refused`` and stay idle if this server is not in the ISR, or if its log already
        has that leader epoch or a later one (R1)."""
        log, latest = self.log, self.log.epochs.latest()
        if self._node not in state.isr or state.leader_epoch <= latest:
            # never its own judge of being in sync; and no leader epoch is ever resumed (R1)
            self._event("leadership_refused", isr=list(state.isr), leader_epoch=state.leader_epoch, latest=latest)
            return
        if state.unclean_epoch > latest and self.committed > log.end:
            self._on_loss(log.end, self.committed, self.committed)  # this log is all there is now
        log.assign_epoch(state.leader_epoch)
        core = LeaderState(
            self._node,
            broker_epoch,
            state,
            self._servers,
            **leader_settings(self.config),
            commit_rule=self.config.commit_rule,
            retry_s=self._settings.isr_retry_s,
            patience_s=self._settings.proof_patience_s,
            # what was committed is durable on every member; after an unclean election what is not may be lost again
            high_watermark=min(self._high_watermark, log.durable),
            log_end=log.end,
            durable=log.durable,
            now=now,
        )
        self.role = self.leading = LeaderReplica(self._context, self.key, self.config, core, log, self.producers)
        if self.config.commit_rule == "quorum":
            self.leading.begin_epoch()
        self._event(
            "leader_became", leader_epoch=state.leader_epoch, log_end=log.end, high_watermark=core.high_watermark
        )

    def _resign(self, code: str, message: str) -> None:
        """End the present role, if there is one: remember its HW, and refuse its waiting requests with ``code`` and
        ``message``. A leader also remembers its leader epoch and the replicas that may be elected next."""
        role, leading = self.role, self.leading
        self.role = self.leading = self.following = None
        if leading is not None:
            self._led = leading.core.leader_epoch, (*leading.core.maximal_isr, *leading.core.eligible)
        if role is not None:
            self._high_watermark = role.high_watermark
            role.resign(code, message)

    # --- requests ----------------------------------------------------------------------------------------

    def produce(self, source: int, part: ProducePart, batch: Buffer, now: float) -> TidelogError | None:
        """Give a producer's batch to the leader's role, which appends or refuses it and sends the ack, now or later;
        return None then. Return the refusal if this server does not lead, or if the log fails, which also takes the
        partition offline."""
        if self.leading is None:
            return self.refusal()
        try:
            self.leading.produce(source, part, batch, now)
        except FAULTS as error:
            return self._failed_during(error)
        return None

    def fetch(
        self, node: NodeId, broker_epoch: int, source: int, part: FetchPart, max_bytes: int, now: float
    ) -> tuple[FetchedPart, list[Buffer]] | TidelogError:
        """Answer a follower's fetch as the leader: record the follower's position, and return its part of the answer
        with the batches (at most ``max_bytes``). Return the refusal if this server does not lead, or if the log
        fails, which also takes the partition offline."""
        if self.leading is None:
            return self.refusal()
        try:
            return self.leading.fetch(node, broker_epoch, source, part, max_bytes, now)
        except FAULTS as error:
            return self._failed_during(error)

    def epoch_end(self, node: NodeId, broker_epoch: int, part: EpochPart) -> EpochEnd | TidelogError:
        """Answer a follower's question in the epoch dialogue as the leader: return the offset at which a leader epoch
        ends in this log. Return the refusal if this server does not lead."""
        return self.refusal() if self.leading is None else self.leading.epoch_end(node, broker_epoch, part)

    def progress(self, node: NodeId, broker_epoch: int, source: int, part: FetchPart, now: float) -> bool:
        """Record as the leader how far a follower's log reaches. Return False if nothing was recorded, so that the
        follower must fetch: this server does not lead, the position diverges or is refused, or the log fails."""
        if self.leading is None:
            return False
        try:
            return self.leading.progress(node, broker_epoch, source, part, now)
        except FAULTS as error:
            self.on_fault(error)
        return False

    def snapshot(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> LogSnapshotAnswer | TidelogError:
        """Return, as the leader, the data with which a follower's copy starts over at this log's start: offset,
        leader epoch, hash chain and producer state. Return the refusal if this server does not lead, if the follower
        is refused, or if the log fails."""
        if self.leading is None:
            return self.refusal()
        try:
            return self.leading.snapshot(node, broker_epoch, leader_epoch)
        except FAULTS as error:
            return self._failed_during(error)

    def read(
        self, source: int, id: int | None, message: Read | ListOffset, now: float, *, as_leader: bool
    ) -> TidelogError | None:
        """Serve a client's read, or its request for an offset: the answer is sent now or later, and None is returned.
        Return the refusal if this server has no role, if only a leader may answer (``as_leader``) and it does not
        lead, or if the log fails, which also takes the partition offline."""
        if self.role is None or (as_leader and self.leading is None):
            return self.refusal()
        try:
            if isinstance(message, Read):
                self.role.reading.read(source, id, message, now)
            else:
                self.role.reading.list_offset(source, id, message, now)
        except FAULTS as error:
            return self._failed_during(error)
        return None

    def leader_bounds(self, now: float) -> LogBounds | None:
        """Return the offsets of the log as the leader here knows them. Return None if this server does not lead, or
        if it does not know yet how far earlier leaders have committed."""
        return None if self.leading is None else self.leading.reading.bounds(self.key, now)

    def _failed_during(self, error: Exception) -> TidelogError:
        """Take the partition offline because of an error in the middle of a request, and return the refusal for that
        request. Its outcome is marked unknown."""
        self.on_fault(error)
        refusal = self.refusal()
        refusal.unknown_outcome = True
        return refusal

    # --- answers of the leader ---------------------------------------------------------------------------

    def on_epoch_end(self, asked: EpochPart, part: EpochEnd) -> Outcome:
        """Apply the leader's answer in the epoch dialogue: go on with an older epoch, or cut the log where it
        diverges. Return the fetcher's next step; ``RetryLater`` if this server does not follow, or if the log fails
        or must not be cut, which also takes the partition offline."""
        if self.following is not None:
            try:
                return self.following.on_epoch_end(asked, part)
            except FAULTS as error:
                self.on_fault(error)
        return RetryLater("OFFLINE")

    def on_fetched(self, asked: FetchPart, part: FetchedPart, data: memoryview, sent: float) -> Outcome:
        """Apply the leader's answer to a fetch that was sent at ``sent`` (seconds): append its batches and move the
        HW, or cut the log where it diverges. Return the fetcher's next step; ``RetryLater`` if this server does not
        follow, or if the log fails or must not be cut, which also takes the partition offline."""
        if self.following is not None:
            try:
                return self.following.on_fetched(asked, part, data, sent)
            except FAULTS as error:
                self.on_fault(error)
        return RetryLater("OFFLINE")

    def on_notified(self, part: NotifyPart, data: memoryview) -> Outcome:
        """Apply a leader's ``Notify``: append its batches if they continue the log, and move the HW. Return the
        fetcher's next step; ``RetryLater`` if this server does not follow, or if the log fails, which also takes the
        partition offline."""
        if self.following is not None:
            try:
                return self.following.on_notified(part, data)
            except FAULTS as error:
                self.on_fault(error)
        return RetryLater("OFFLINE")

    def start_over(self, answer: LogSnapshotAnswer, producers: ProducerState) -> Outcome:
        """Replace the log by an empty one that begins at the leader's log start, with the producer state
        ``producers``. The HW and the highest committed offset are lowered to that start: the leader gives the HW
        again as the copy gets the records, so no committed record is lost. Return the fetcher's next step;
        ``RetryLater`` if this server does not follow, if the leader's snapshot is too old, or if the log fails."""
        outcome: Outcome = RetryLater("OFFLINE")
        if self.following is not None:
            try:
                outcome = self.following.on_snapshot(answer, producers)
            except FAULTS as error:
                self.on_fault(error)
        if self.high_watermark < self._highest_committed:
            self.guard(self._lower_committed, self.high_watermark)
        return outcome

    def _lower_committed(self, high_watermark: int) -> None:
        """Lower the highest committed offset and the checkpoint of the HW to ``high_watermark``, in memory and on the
        disk."""
        self.log.lower_high_watermark(high_watermark)
        self._checkpoint = self.committed = self._highest_committed = high_watermark

    # --- flush, time -------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Finish an input (a message, a timer, or the end of a job): write the batches that the leader took, start a
        flush if one is due, record whether the disk stalls, and complete the requests that wait for the HW or the
        durable offset that is reached. An error of the log takes the partition offline. Does nothing if the partition
        is offline."""
        if self.offline is not None:
            return
        leading = self.leading
        try:
            if leading is not None:
                leading.write(now)
            if not self.flushing and now >= self._next_flush and (flush := self.log.begin_flush()) is not None:
                self._start_flush(flush, now)
            if leading is not None:
                self._watch_disk(leading, now)
                leading.settle(now)
            elif self.following is not None:
                self.following.reading.settle(now)
        except FAULTS as error:
            self.on_fault(error)

    def _start_flush(self, flush: Flush, now: float) -> None:
        """Have a thread flush the log. With flush policy ``interval`` also set the time of the next flush."""
        self.flushing, self._flush_began = True, now
        if self.config.flush == "interval":
            self._next_flush = now + self.config.flush_interval_ms / 1000
        self._effects.start_flush(self.key, flush)

    @property
    def _stalls_at(self) -> float:
        """Return the time, in seconds, from which the flush that is under way counts as a stall of the disk."""
        return self._flush_began + min(self._settings.disk_stall_s, self.config.replica_max_lag_ms / 2000)

    def _watch_disk(self, role: LeaderReplica, now: float) -> None:
        """Mark the leader as stalled when the flush that is under way takes too long, and as not stalled when it has
        ended. Each change is logged (``disk_stalled``, ``disk_answers``) and makes a report to the controller due."""
        stalled = self.flushing and now >= self._stalls_at
        if stalled == role.core.stalled:
            return
        role.core.stalled = stalled
        self.report_at = now
        self._event("disk_stalled" if stalled else "disk_answers", seconds=round(now - self._flush_began, 3))
        if not stalled:
            role.core.on_tick(now)

    def on_flushed(self, flush: Flush, error: OSError | None) -> None:
        """Record the end of a flush: the log is durable up to the flush's end. If the flush failed with ``error``,
        the partition goes offline and the process ends; the data that was to be flushed is cut out of the log's files
        (not with flush policy ``os``), since the page cache may show data that the disk does not have. A failed flush
        is never tried again."""
        self.flushing = False
        if error is not None:
            self._fail_disk(f"flush failed: {error}")
            try:
                self.log.discard_unsynced()
            except OSError as error:
                self._event("discard_failed", reason=str(error))
            return
        self.guard(self.log.complete_flush, flush)

    def on_tick(self, now: float) -> None:
        """Let the role act on its deadlines: refuse requests that waited too long and, as the leader, propose that
        overdue followers leave the ISR. The partition is then settled at the end of the input, which starts a due
        flush and records a disk that stalls."""
        if self.leading is not None:
            self.guard(self.leading.on_tick, now)
        elif self.following is not None:
            self.guard(self.following.reading.on_tick, now)
        self._context.touch(self.key)

    def deadline(self, may_report: bool) -> float:
        """Return a time, in seconds, at or before which ``on_tick`` or ``settle`` has something to do; ``inf`` if
        nothing is due or the partition is offline. ``may_report`` is the value of that property, which the caller has
        read in this input already."""
        if self.offline is not None:
            return inf
        role, leading = self.role, self.leading
        due = inf if role is None else role.reading.deadline() if leading is None else leading.deadline()
        if self.config.flush == "interval" and not self.flushing and self.log.durable < self.log.end:
            due = min(due, self._next_flush)
        if may_report and (self.is_sealed or self.hands_over or (leading is not None and leading.is_relieved)):
            due = min(due, self.report_at)
        elif self.flushing and leading is not None and not leading.core.stalled:
            due = min(due, self._stalls_at)
        return due

    # --- what the controller is to know ------------------------------------------------------------------

    @property
    def may_report(self) -> bool:
        """Return whether this partition could have a report for the controller: False means that ``is_sealed``,
        ``hands_over`` and a leader's ``is_relieved`` are all False. This cheap check, which is nearly always False,
        saves the others at the end of every input."""
        state, leading = self.state, self.leading
        if state is None:
            return False
        if state.sealing or self.is_draining or self._effects.full:
            return True
        return leading is not None and (leading.core.stalled or leading.core.state.successor is not None)

    @property
    def is_sealed(self) -> bool:
        """Return whether the log is sealed (no batch is taken until a new leader is elected) and all of it is
        durable, so that its end can be reported. False if the partition is offline."""
        state = self.state
        sealing = state is not None and state.sealing and self.offline is None
        return sealing and self.log.durable == self.log.end

    @property
    def highest_epoch(self) -> int:
        """Return the highest leader epoch known here, from the log or from the metadata; -1 if none is known."""
        return max(self.log.epochs.latest(), self._seen_epoch)

    @property
    def possible_successors(self) -> tuple[NodeId, ...]:
        """Return the replicas that could be elected next, if no leader epoch above the last one in which this server
        led is known here. Otherwise return an empty tuple."""
        epoch, nodes = self._led
        return nodes if epoch == self.highest_epoch else ()

    @property
    def hands_over(self) -> bool:
        """Return whether this server asks that the other replicas in sync go on without it, because it is about to
        stop, its disk is full, or it leads and its disk stalls. False if no other replica is in sync. With commit
        rule ``quorum`` also False for a follower, and for a leader with a full disk unless the others can commit
        without it."""
        state, lead, quorum = self.state, self.leading, self.config.commit_rule == "quorum"
        is_draining = self.is_draining and (lead is not None or not quorum)
        full = self._effects.full and (not quorum or (lead is not None and lead.core.can_be_spared))
        wants = is_draining or full or (lead is not None and lead.core.stalled)
        return bool(wants and state is not None and self._node in state.isr and len(state.isr) > 1)

    def take_losses(self) -> list[LostRange]:
        """Return the losses of records that no report has carried to the controller yet, and empty that list. The
        disk keeps each loss until ``on_loss_reported``."""
        losses, self.unreported_losses = self.unreported_losses, []
        return losses

    def on_loss_reported(self, lost: LostRange) -> None:
        """Remove a loss from the partition's file of pending losses, since the controller has recorded it or refuses
        it for good."""
        self.guard(self.log.pending_losses.remove, lost)

    @property
    def checkpoint_due(self) -> bool:
        """Return whether the HW is above its checkpoint on the disk. False if the partition is offline."""
        return self.offline is None and self.high_watermark > self._checkpoint

    def checkpoint(self) -> None:
        """Write the HW, but at most the durable offset, to its checkpoint on the disk, so that a restart begins near
        it. If the disk fails, the partition goes offline and the process ends. Does nothing if that would not raise
        the checkpoint."""

        def run() -> None:
            high_watermark = min(self.high_watermark, self.log.durable)
            if high_watermark > self._checkpoint:
                self.log.write_high_watermark(high_watermark)
                self._checkpoint = high_watermark

        self.guard(run)

    def close(self) -> None:
        """End the role, sync the whole log whatever its flush policy, write the HW to the disk and close the log. May
        be called only while no flush is under way. Raises ``OSError``."""
        assert not self.flushing
        self._resign("NOT_LEADER", f"{self._node} shuts down")
        self.log.sync_all()
        self.log.write_high_watermark(min(self.high_watermark, self.log.end), sync=True)
        self.log.close()

    def on_source_closed(self, source: int) -> None:
        """Forget the requests that came over link ``source``, which is closed. They get no answer."""
        if self.leading is not None:
            self.leading.on_source_closed(source)
        elif self.following is not None:
            self.following.reading.on_source_closed(source)

    def _event(self, name: str, **fields: Any) -> None:
        """Log an event with the partition's topic id and number."""
        self._effects.event(name, topic_id=self.key.topic_id, partition=self.key.partition, **fields)
