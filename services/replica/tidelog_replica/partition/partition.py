"""One partition on this server: its log, its producers, and the role that the metadata gives it.

    idle        no leader is known, or this server's registration is not answered yet
    leading     ``LeaderReplica``
    following   ``FollowerReplica``; a learner too
    sealed      between two leaders, with commit rule ``quorum`` or after a rescue of the controllers: nothing of an
                older leader epoch is taken or served any more. When all of the log is durable its end is reported to
                the controller, again and again
    offline     the disk failed, or committed records would have to be cut: refuses everything until a restart

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
    LogSnapshotAnswer,
    NotifyPart,
    ProducePart,
    Read,
)

from tidelog_replica.config import leader_settings
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.follower_replica import FollowerReplica, Outcome, RetryLater, TruncationRefused
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.reads import PendingReads
from tidelog_replica.replication.follower import FollowerState
from tidelog_replica.replication.leader import LeaderState
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import Flush, Log
from tidelog_replica.storage.recovery.pending_losses import LostRange
from tidelog_replica.storage.segment import CorruptLog

Ts = TypeVarTuple("Ts")

FAULTS = (OSError, TruncationRefused)
"""Exceptions that take a partition offline: the disk fails, the log is damaged (``CorruptLog``, an ``OSError``), or
the leader asks the impossible."""


class Partition:
    """Synchronous; writes go to the page cache in the caller's thread, flushes are effects."""

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
        """The controller's state that this server last acted on; None: none in this incarnation."""
        self.role: LeaderReplica | FollowerReplica | None = None
        self.leading: LeaderReplica | None = None
        """The leader's role, if it is this server's."""
        self.following: FollowerReplica | None = None
        """The follower's role, if it is this server's."""
        self.offline: str | None = None
        """Why it refuses everything."""
        self.damage: CorruptLog | None = None
        """Why the log must be repaired."""
        self.flushing = False
        self.producers = producers
        self._context = context
        self._node = context.node
        self._servers = servers
        self._settings = context.settings
        self._effects = context.effects
        self._idle_followers = context.idle_followers
        self._checkpoint = self._high_watermark = max(log.start, min(log.read_high_watermark(), log.end))
        self.committed = log.written_high_watermark
        """The highest committed offset that is known here: above the HW where the log has lost what lies between."""
        self._highest_committed = self.committed  # also of a history which may be lost
        self._next_flush = 0.0
        self._flush_began = 0.0
        self.is_draining = False
        """The server is about to end: others are to lead, and not to wait for it."""
        self.report_at = 0.0
        """When the sealed log is reported to the controller next, or it is asked to let another replica lead."""
        self.unreported_losses = list(log.pending_losses.ranges)
        """Losses here that the controller does not know of yet, including those from before a restart. The log keeps
        each until ``on_loss_reported``."""
        self._seen_epoch = -1
        """The highest leader epoch of which the metadata named a leader."""
        self._led: tuple[int, tuple[NodeId, ...]] = (-1, ())
        """The last leader epoch in which this server led, in this process, and the replicas that could be elected
        after it."""

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed, as far as is known here."""
        return self._high_watermark if self.role is None else self.role.core.high_watermark

    @property
    def reading(self) -> PendingReads | None:
        """The readers of this partition, in whichever role."""
        return None if self.role is None else self.role.reading

    @property
    def agreed_epoch(self) -> int:
        """The leader epoch in which the log here is known to equal the leader's up to the high watermark: this server
        leads in it, or it follows and the last fetch has shown that. -1: there is none."""
        if self.offline is not None or self.role is None:
            return -1
        core = self.role.core
        agrees = isinstance(core, LeaderState) or (core.asking is None and core.agreed)
        return core.leader_epoch if agrees else -1

    def refusal(self) -> TidelogError:
        """Return the error for a request that only a leader serves."""
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
        """Run an action on the log. Return False, with the partition offline, if the disk fails, the log is damaged
        (only this partition goes offline: a restart would not mend it), or the leader asks the impossible."""
        if self.offline is not None:
            return False
        try:
            action(*args)
        except FAULTS as error:
            self.on_fault(error)
        return self.offline is None

    def on_fault(self, error: Exception) -> None:
        """Go offline for one of ``FAULTS``, which the log or the role raised."""
        if isinstance(error, CorruptLog):
            self.meet(error)
        elif isinstance(error, TruncationRefused):
            self.fail(str(error))
        else:
            self._fail_disk(f"{type(error).__name__}: {error}")

    def meet(self, damage: CorruptLog) -> None:
        """The log was seen to be damaged: the partition goes offline, until its log is repaired."""
        self.damage = damage
        self.fail(f"damaged log: {damage}")

    def fail(self, reason: str) -> None:
        """Take the partition offline, loudly."""
        if self.offline is not None:
            return
        self.offline = reason
        self._effects.failed.append(self.key)
        self._resign("OFFLINE", f"the partition went offline on {self._node}: {reason}")
        self._event("partition_offline", reason=reason)

    def _fail_disk(self, reason: str) -> None:
        """End this process: the disk cannot be trusted from here on, for no partition."""
        if self.offline is None:
            self.fail(reason)
            self._effects.stop(reason)

    # --- roles -------------------------------------------------------------------------------------------

    def on_state(self, state: PartitionState, broker_epoch: int, now: float) -> None:
        """The controller's state, if it is newer than what was acted on."""
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
        """The topic's settings changed."""
        self.config = config
        self.log.configure(config)
        if self.leading is not None:
            self.leading.configure(config, now)

    def retire(self, message: str, code: str = "NOT_LEADER") -> None:
        """Give up the role: this incarnation, or this server's part in the partition, is over."""
        self.state = None
        self._resign(code, message)

    def step_down(self, message: str) -> None:
        """Give up leadership: the controller says that another replica leads. Its next state names that one."""
        self._resign("NOT_LEADER", message)

    def _forget_committed(self) -> None:
        """Lower the highest committed offset to the log end. Records of another history that come there are not
        committed by a HW of this one."""
        if self.committed > self.log.end:
            self.log.lower_high_watermark(self.log.end)
            self.committed = self.log.end

    def _on_loss(self, start: int, committed: int, end: int) -> None:
        """The records from ``start`` up to ``end`` are about to be cut, or are gone, which an unclean election or the
        commit rule allows. Those below ``committed`` were committed. The others may have been: a follower hears of
        the leader's HW after the leader has moved it, and a restarted server knows the HW of its last checkpoint. The
        report is durable before the HW goes back, so that no crash hides the loss."""
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
        role, leading = self.role, self.leading
        self.role = self.leading = self.following = None
        if leading is not None:
            self._led = leading.core.leader_epoch, (*leading.core.maximal_isr, *leading.core.eligible)
        if role is not None:
            self._high_watermark = role.high_watermark
            role.resign(code, message)

    # --- requests ----------------------------------------------------------------------------------------

    def produce(self, source: int, part: ProducePart, batch: Buffer, now: float) -> TidelogError | None:
        """Take a batch as the leader, to be acknowledged now or later; or return why not."""
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
        """Serve a follower as the leader; or return why not."""
        if self.leading is None:
            return self.refusal()
        try:
            return self.leading.fetch(node, broker_epoch, source, part, max_bytes, now)
        except FAULTS as error:
            return self._failed_during(error)

    def epoch_end(self, node: NodeId, broker_epoch: int, part: EpochPart) -> EpochEnd | TidelogError:
        """Return where a follower's leader epoch ends in the log led here; or why not."""
        return self.refusal() if self.leading is None else self.leading.epoch_end(node, broker_epoch, part)

    def progress(self, node: NodeId, broker_epoch: int, source: int, part: FetchPart, now: float) -> bool:
        """Record as the leader how far a follower has come; False where that was not possible."""
        if self.leading is None:
            return False
        try:
            return self.leading.progress(node, broker_epoch, source, part, now)
        except FAULTS as error:
            self.on_fault(error)
        return False

    def snapshot(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> LogSnapshotAnswer | TidelogError:
        """Return what a copy must know that begins where the log led here does; or why not."""
        if self.leading is None:
            return self.refusal()
        try:
            return self.leading.snapshot(node, broker_epoch, leader_epoch)
        except FAULTS as error:
            return self._failed_during(error)

    def read(
        self, source: int, id: int | None, message: Read | ListOffset, now: float, *, as_leader: bool
    ) -> TidelogError | None:
        """Answer a client, now or later; or return why not. ``as_leader``: a follower must not answer."""
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

    def _failed_during(self, error: Exception) -> TidelogError:
        """Go offline in the middle of a request. What it has changed is not known."""
        self.on_fault(error)
        refusal = self.refusal()
        refusal.unknown_outcome = True
        return refusal

    # --- answers of the leader ---------------------------------------------------------------------------

    def on_epoch_end(self, asked: EpochPart, part: EpochEnd) -> Outcome:
        """The leader's answer in the epoch dialogue."""
        if self.following is not None:
            try:
                return self.following.on_epoch_end(asked, part)
            except FAULTS as error:
                self.on_fault(error)
        return RetryLater("OFFLINE")

    def on_fetched(self, asked: FetchPart, part: FetchedPart, data: memoryview, sent: float) -> Outcome:
        """The leader's answer to a fetch that was sent at ``sent``."""
        if self.following is not None:
            try:
                return self.following.on_fetched(asked, part, data, sent)
            except FAULTS as error:
                self.on_fault(error)
        return RetryLater("OFFLINE")

    def on_notified(self, part: NotifyPart, data: memoryview) -> Outcome:
        """A notice of the leader."""
        if self.following is not None:
            try:
                return self.following.on_notified(part, data)
            except FAULTS as error:
                self.on_fault(error)
        return RetryLater("OFFLINE")

    def start_over(self, answer: LogSnapshotAnswer, producers: ProducerState) -> Outcome:
        """The copy starts over where the leader's log begins. The leader names the HW again, as far as
        the copy holds that: nothing that was known to be committed is lost."""
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
        self.log.lower_high_watermark(high_watermark)
        self._checkpoint = self.committed = self._highest_committed = high_watermark

    # --- flush, time -------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """End an input: write, start the flush that is due, complete the requests that the log has reached."""
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
        self.flushing, self._flush_began = True, now
        if self.config.flush == "interval":
            self._next_flush = now + self.config.flush_interval_ms / 1000
        self._effects.start_flush(self.key, flush)

    @property
    def _stalls_at(self) -> float:
        """When the flush that is under way takes too long."""
        return self._flush_began + min(self._settings.disk_stall_s, self.config.replica_max_lag_ms / 2000)

    def _watch_disk(self, role: LeaderReplica, now: float) -> None:
        stalled = self.flushing and now >= self._stalls_at
        if stalled == role.core.stalled:
            return
        role.core.stalled = stalled
        self.report_at = now
        self._event("disk_stalled" if stalled else "disk_answers", seconds=round(now - self._flush_began, 3))
        if not stalled:
            role.core.on_tick(now)

    def on_flushed(self, flush: Flush, error: OSError | None) -> None:
        """A flush ended. One that failed is never tried again."""
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
        """A deadline has passed."""
        if self.leading is not None:
            self.guard(self.leading.on_tick, now)
        elif self.following is not None:
            self.guard(self.following.reading.on_tick, now)
        self._context.touch(self.key)

    def deadline(self, may_report: bool) -> float:
        """When ``on_tick`` and ``settle`` have something to do, or earlier; ``inf`` where nothing is due.
        ``may_report``: the property, which was read in this input already."""
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
        """Whether any of ``is_sealed``, ``hands_over`` and a leader's ``is_relieved`` can hold. Nearly always none
        can, and this is asked at the end of every input."""
        state, leading = self.state, self.leading
        if state is None:
            return False
        if state.sealing or self.is_draining or self._effects.full:
            return True
        return leading is not None and (leading.core.stalled or leading.core.state.successor is not None)

    @property
    def is_sealed(self) -> bool:
        """Whether the log is sealed: no batch is taken any more, and all of it is durable."""
        state = self.state
        sealing = state is not None and state.sealing and self.offline is None
        return sealing and self.log.durable == self.log.end

    @property
    def highest_epoch(self) -> int:
        """The highest leader epoch that is known here; -1: none."""
        return max(self.log.epochs.latest(), self._seen_epoch)

    @property
    def possible_successors(self) -> tuple[NodeId, ...]:
        """The replicas that could be elected after this server, if it led in ``highest_epoch`` until now; else
        none."""
        epoch, nodes = self._led
        return nodes if epoch == self.highest_epoch else ()

    @property
    def hands_over(self) -> bool:
        """Others in sync must go on without this server: it ends, is full, or leads and its disk stalls."""
        state, lead, quorum = self.state, self.leading, self.config.commit_rule == "quorum"
        is_draining = self.is_draining and (lead is not None or not quorum)
        full = self._effects.full and (not quorum or (lead is not None and lead.core.can_be_spared))
        wants = is_draining or full or (lead is not None and lead.core.stalled)
        return bool(wants and state is not None and self._node in state.isr and len(state.isr) > 1)

    def take_losses(self) -> list[LostRange]:
        """Return ``unreported_losses``, and forget them."""
        losses, self.unreported_losses = self.unreported_losses, []
        return losses

    def on_loss_reported(self, lost: LostRange) -> None:
        """The controller knows of a loss."""
        self.guard(self.log.pending_losses.remove, lost)

    @property
    def checkpoint_due(self) -> bool:
        """Whether the HW has moved since its last checkpoint."""
        return self.offline is None and self.high_watermark > self._checkpoint

    def checkpoint(self) -> None:
        """Write a checkpoint of the HW, so that a restart begins near it."""

        def run() -> None:
            high_watermark = min(self.high_watermark, self.log.durable)
            if high_watermark > self._checkpoint:
                self.log.write_high_watermark(high_watermark)
                self._checkpoint = high_watermark

        self.guard(run)

    def close(self) -> None:
        """End in order: all of the log becomes durable, whatever the flush policy, and the HW is written down. No
        flush is under way. Raises ``OSError``."""
        assert not self.flushing
        self._resign("NOT_LEADER", f"{self._node} shuts down")
        self.log.sync_all()
        self.log.write_high_watermark(min(self.high_watermark, self.log.end), sync=True)
        self.log.close()

    def on_source_closed(self, source: int) -> None:
        """Forget the requests that came over a link, which is closed."""
        if self.leading is not None:
            self.leading.on_source_closed(source)
        elif self.following is not None:
            self.following.reading.on_source_closed(source)

    def _event(self, name: str, **fields: Any) -> None:
        self._effects.event(name, topic_id=self.key.topic_id, partition=self.key.partition, **fields)
