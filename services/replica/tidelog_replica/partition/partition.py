"""One partition on this server: its log, its producers, and the role that the metadata gives it.

    idle        no leader is known, or this server's registration is not answered yet
    leading     ``LeaderReplica``
    following   ``FollowerReplica``; a learner too
    sealed      between two leaders, with commit rule ``quorum`` or after a rescue of the controllers: nothing of an
                older leader epoch is taken or served any more, and the controller is told, again and again, how far
                the log reaches, when all of it is durable
    offline     the disk failed, or committed records would have to be cut: refuses everything until a restart

A leader whose flush takes longer than ``disk_stall_s`` is *stalled*: it takes no more batches and asks the controller
to let another lead (KIP-501), again and again until one does or the disk answers.

Every input ends with ``settle``. An ``OSError`` of the log at any point takes the partition offline and acks nobody:
after a failed write or flush nobody can say what is on the disk (a second flush may succeed with the data gone).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVarTuple

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, ServerState, TopicConfig, TopicPartition
from tidelog.wire.messages import LogSnapshotAnswer

from tidelog_replica.config import leader_settings
from tidelog_replica.context import NodeContext
from tidelog_replica.partition.follower import FollowerReplica, Outcome, TruncationRefused
from tidelog_replica.partition.leader import LeaderReplica
from tidelog_replica.partition.purgatory import earlier
from tidelog_replica.partition.reads import PendingReads
from tidelog_replica.replication.follower import FollowerState
from tidelog_replica.replication.leader import LeaderState
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import Flush, Log
from tidelog_replica.storage.recovery.pending_losses import LostRange
from tidelog_replica.storage.segment import CorruptLog

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

FAULTS = (OSError, TruncationRefused)
"""What takes a partition offline: the disk fails, the log is damaged (``CorruptLog``, an ``OSError``), or the leader
asks the impossible."""


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
        """What this server last acted on; None in a life that has not."""
        self.role: LeaderReplica | FollowerReplica | None = None
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
        self._checkpoint = self._high_watermark = max(log.start, min(log.read_high_watermark(), log.end))
        self.committed = log.written_high_watermark
        """The HW as it was once: above the present one where the log has lost what lies between."""
        self._highest_committed = self.committed  # the same, also on a line which may be lost
        self._next_flush = 0.0
        self._flush_began = 0.0
        self.is_draining = False
        """The server is about to end: others are to lead, and not to wait for it."""
        self.report_at = 0.0
        """When the controller is next told that the log is sealed, or asked to let another lead."""
        self._losses = list(log.pending_losses.ranges)
        self._seen_epoch = -1
        """The highest leader epoch of which the metadata named a leader."""
        self._led: tuple[int, tuple[NodeId, ...]] = (-1, ())
        """The last leader epoch in which this server led, in this process, and who could be elected after it."""

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed, as far as is known here."""
        return self._high_watermark if self.role is None else self.role.high_watermark

    @property
    def leading(self) -> LeaderReplica | None:
        """The leader's role, if it is this server's."""
        return self.role if isinstance(self.role, LeaderReplica) else None

    @property
    def following(self) -> FollowerReplica | None:
        """The follower's role, if it is this server's."""
        return self.role if isinstance(self.role, FollowerReplica) else None

    @property
    def reading(self) -> PendingReads | None:
        """Who serves readers here, in whichever role."""
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
        """Why a request for the leader is not served here."""
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
        """Do something with the log; False, and offline, where the disk fails, its log is damaged (this partition
        only: a restart would not mend it), or the leader asks the impossible."""
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
        """The disk cannot be trusted from here on, for no partition: this life of the server ends."""
        if self.offline is None:
            self.fail(reason)
            self._effects.stop(reason)

    # --- roles -------------------------------------------------------------------------------------------

    def on_state(self, state: PartitionState, broker_epoch: int, now: float) -> None:
        """The controller's state, if it is newer than what was acted on."""
        old = self.state
        if old is not None and state.epoch <= old.epoch:
            if state.epoch == old.epoch:  # the answer to an ISR proposal does not tell the ELR
                self.state = state
                if isinstance(self.role, LeaderReplica):
                    self.role.core.eligible = state.elr
            return
        self.state = state
        self.report_at = now
        if state.leader is not None:
            self._seen_epoch = max(self._seen_epoch, state.leader_epoch)
        if old is None or old.leader_epoch != state.leader_epoch:
            self._effects.news.forget(self.key)  # whoever follows in another leader epoch asks by itself
        if self.offline is not None:
            return
        if old is not None and old.leader_epoch == state.leader_epoch and self.role is not None:
            if isinstance(self.role, LeaderReplica):
                self.role.on_state(state, now)
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
                once=self._highest_committed,
            )
            if core.may_lose(self.log.epochs.latest()) and not self.guard(self._forget_committed):
                return
            self.role = FollowerReplica(
                self._context, self.key, core, self.log, self.producers, self.guard, self._on_loss
            )
            self._event("follower_became", leader=state.leader, leader_epoch=state.leader_epoch)

    def configure(self, config: TopicConfig, now: float) -> None:
        """The topic's settings changed."""
        self.config = config
        self.log.configure(config)
        if isinstance(self.role, LeaderReplica):
            self.role.configure(config, now)

    def retire(self, message: str, code: str = "NOT_LEADER") -> None:
        """Give up the role: this server's life at the controller, or its part in this partition, is over."""
        self.state = None
        self._resign(code, message)

    def step_down(self, message: str) -> None:
        """The controller says that another leads; which, its next state will tell."""
        self._resign("NOT_LEADER", message)

    def _forget_committed(self) -> None:
        """What another line grows where the log has lost its end is not committed by a HW that was up there."""
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
        self._losses += lost
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
        self.role = LeaderReplica(self._context, self.key, self.config, core, log, self.producers)
        if self.config.commit_rule == "quorum":
            self.role.begin_epoch()
        self._event(
            "leader_became", leader_epoch=state.leader_epoch, log_end=log.end, high_watermark=core.high_watermark
        )

    def _resign(self, code: str, message: str) -> None:
        role, self.role = self.role, None
        if isinstance(role, LeaderReplica):
            self._led = role.core.leader_epoch, (*role.core.maximal_isr, *role.core.eligible)
        if role is not None:
            self._high_watermark = role.high_watermark
            role.resign(code, message)

    # --- answers of the leader ---------------------------------------------------------------------------

    def take(
        self, action: Callable[Concatenate[FollowerReplica, P], Outcome], *args: P.args, **kwargs: P.kwargs
    ) -> Outcome:
        """Give the follower's role an answer of its leader."""
        role = self.role
        if isinstance(role, FollowerReplica):
            try:
                return action(role, *args, **kwargs)
            except FAULTS as error:
                self.on_fault(error)
        return Outcome("failed", "OFFLINE")

    def start_over(self, answer: LogSnapshotAnswer, producers: ProducerState) -> Outcome:
        """The copy starts over where the leader's log begins. What it knew to be committed it is told again, as far
        as it holds that: nothing of it is lost."""
        outcome = self.take(FollowerReplica.on_snapshot, answer, producers)
        if self.high_watermark < self._highest_committed:
            self.guard(self._lower_committed, self.high_watermark)
        return outcome

    def _lower_committed(self, high_watermark: int) -> None:
        self.log.lower_high_watermark(high_watermark)
        self._checkpoint = self.committed = self._highest_committed = high_watermark

    # --- flush, time -------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """The end of every input: write, start the flush that is due, wake whom the log has reached."""
        self.guard(self._settle, now)

    def _settle(self, now: float) -> None:
        role = self.role
        if isinstance(role, LeaderReplica):
            role.write(now)
        self._flush(now)
        if isinstance(role, LeaderReplica):
            self._watch_disk(role, now)
            role.settle(now)
        elif role is not None:
            role.reading.settle(now)

    def _flush(self, now: float) -> None:
        if self.flushing or now < self._next_flush:
            return
        flush = self.log.begin_flush()
        if flush is None:
            return
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
        if isinstance(self.role, LeaderReplica):
            self.guard(self.role.on_tick, now)
        elif isinstance(self.role, FollowerReplica):
            self.guard(self.role.reading.on_tick, now)

    def deadline(self) -> float | None:
        """When ``on_tick`` and ``settle`` have something to do; perhaps earlier than that."""
        if self.offline is not None:
            return None
        role = self.role
        due = (
            None if role is None else role.deadline() if isinstance(role, LeaderReplica) else role.reading.deadline()
        )
        if self.config.flush == "interval" and not self.flushing and self.log.durable < self.log.end:
            due = earlier(due, self._next_flush)
        if self.may_report and (
            self.is_sealed or self.hands_over or (isinstance(role, LeaderReplica) and role.is_relieved)
        ):
            due = earlier(due, self.report_at)
        elif self.flushing and isinstance(role, LeaderReplica) and not role.core.stalled:
            due = earlier(due, self._stalls_at)
        return due

    # --- what the controller is to know ------------------------------------------------------------------

    @property
    def may_report(self) -> bool:
        """Whether any of ``is_sealed``, ``hands_over`` and a leader's ``is_relieved`` can hold. Nearly always none
        can, and this is asked at the end of every input."""
        state, role = self.state, self.role
        if state is None:
            return False
        if state.sealing or self.is_draining or self._effects.full:
            return True
        return isinstance(role, LeaderReplica) and (role.core.stalled or role.core.state.successor is not None)

    @property
    def is_sealed(self) -> bool:
        """Nothing more comes, and what is there is durable."""
        state = self.state
        sealing = state is not None and state.sealing and self.offline is None
        return sealing and self.log.durable == self.log.end

    @property
    def highest_epoch(self) -> int:
        """The highest leader epoch that is known here; -1: none."""
        return max(self.log.epochs.latest(), self._seen_epoch)

    @property
    def possible_successors(self) -> tuple[NodeId, ...]:
        """Where this server led in ``highest_epoch`` until now: everybody who could be elected after it."""
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
        """Losses here that the controller does not know of yet, including those from before a restart. Each is
        returned once; the log keeps it until ``on_loss_reported``."""
        if not self._losses:
            return []
        losses, self._losses = self._losses, []
        return losses

    def on_loss_reported(self, lost: LostRange) -> None:
        """The controller knows of a loss."""
        self.guard(self.log.pending_losses.remove, lost)

    @property
    def checkpoint_due(self) -> bool:
        """The HW has moved since it was last written down."""
        return self.offline is None and self.high_watermark > self._checkpoint

    def checkpoint(self) -> None:
        """Write the HW down, so that a restart begins near it."""

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
        """A link is gone, with all who waited behind it."""
        if isinstance(self.role, LeaderReplica):
            self.role.on_source_closed(source)
        elif isinstance(self.role, FollowerReplica):
            self.role.reading.on_source_closed(source)

    def _event(self, name: str, **fields: Any) -> None:
        self._effects.event(name, topic_id=self.key.topic_id, partition=self.key.partition, **fields)
