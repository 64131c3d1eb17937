"""A replica server with one partition, for the model: the real roles (``partition/partition.py``,
``leader_replica.py``, ``follower_replica.py`` and ``replication``) and the real ``incarnations.py`` over a log in
memory.

Around them is the minimum of a server: it registers, acts on metadata from its registration on, sends its leader one
question at a time, and passes proposals and seals to the controller. Inputs are methods; messages are appended to
``sent``. Time stands still except for the leader's check of lagging followers (``lag``), which is a step of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.node_contexts import node_context
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import TidelogError
from tidelog.sansio.effects import Call, Post
from tidelog.types import Acks, NodeId, PartitionState, ServerState, TopicConfig, TopicPartition
from tidelog.wire.messages import (
    AlterIsr,
    AlterIsrAnswer,
    EpochEnd,
    EpochPart,
    FetchedPart,
    FetchPart,
    HandOver,
    Message,
    Produced,
    ProducePart,
    Register,
    Registered,
    SuspectPart,
)
from tidelog_replica.assignment.controller_reports import ControllerReports
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.effects import StartFlush
from tidelog_replica.partition.follower_replica import FetchOutcome
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.incarnations import Incarnations
from tidelog_replica.replication.isr import Proposal
from tidelog_replica.replication.producer_state import ProducerState

from model.ghost import Ghost
from model.memory_log import Disk, Flush, MemoryLog
from model.messages import CONTROLLER, Asked, Sent, Told

KEY = TopicPartition("t", 0)
NOW = 0.0
LATER = 1000.0
"""A time at which every follower that is not level is overdue, and every pause is over."""
SETTINGS = ReplicaSettings()
BATCHES = [encode_batch([NewRecord(b"%d" % number, None, 0)]) for number in range(200)]


class Server:
    """One server. ``run`` counts the boots of its machine; ``up`` while a process runs."""

    def __init__(self, name: NodeId, ghost: Ghost, lazy: bool) -> None:
        self.name = name
        self.lazy = lazy
        self.disk = Disk()
        self.sent: list[Sent] = []
        self.runs = 0
        self.births = 0
        self.tries = 0
        self.hurt = False
        """Whether it has lost records that it had confirmed, and the controller does not know it yet."""
        self.up = False
        self.ghost = ghost
        self._clear()

    def _clear(self) -> None:
        self.lives: Incarnations | None = None
        self.life = ""
        self.asking = ""
        """Which registration is unanswered."""
        self.broker_epoch = -1
        self.index = -1
        self.view = -1
        """Index of the metadata that it acted on last."""
        self.partition: Partition | None = None
        self.servers: dict[NodeId, ServerState] = {}
        self.context = node_context(self.name, settings=SETTINGS)
        self.effects = self.context.effects
        session: Any = self
        self.reports = ControllerReports(self.context, session, {})
        self.flush: Flush | None = None
        self.damaged_in: PartitionState | None = None
        """The newest state of a partition whose log is damaged."""
        self.lost_at: int | None = None
        """The epoch in which the controller took note of that."""
        self.proposals: dict[int, Proposal] = {}

    @property
    def registered(self) -> bool:
        """Whether the server is registered, as ``Session.registered``."""
        return self.broker_epoch >= 0

    @property
    def durable(self) -> int:
        """The offset below which its log is confirmed: a loss below it counts as ``hurt``."""
        return len(self.disk.row) if self.lazy else self.disk.synced

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process, or let one that is not registered ask again."""
        if not self.up:
            self.up = True
            self.births += 1
            self.life = f"{self.name}.{self.births}"
            self.lives = Incarnations(self.disk, "d", self.name, "", f"run {self.runs}")  # type: ignore[arg-type]
            self.lives.begin_incarnation(self.life)
        assert self.lives is not None
        lives = self.lives
        self.tries += 1
        self.asking = f"{self.life} try {self.tries}"
        self._send(CONTROLLER, Register(self.name, "", lives.cluster, lives.names, lives.clean), self.asking)

    def power_loss(self, end: int) -> None:
        """Stop the machine; of the unflushed records those below ``end`` are kept."""
        self.hurt = self.hurt or end < self.durable
        self.disk.keep(end)
        self.runs += 1
        self.die()

    def die(self) -> None:
        """End the process at once; the page cache is kept, so a lazy log keeps everything."""
        self.up = False
        self._clear()

    def stop(self) -> None:
        """End the process in order."""
        assert self.lives is not None
        partition, whole = self.partition, self.partition is not None and self.partition.offline is None
        if whole and partition is not None:
            partition.flushing = False
            partition.close()
        self.lives.end_incarnation(whole)
        self.die()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.disk = Disk()
        self.hurt = True

    def damage(self) -> bool:
        """Damage the records of the log; the server notices it. Returns False if it has none."""
        partition = self.partition
        if partition is None or partition.state is None or not self.disk.row:
            return False
        self.disk.damaged = self.hurt = True
        self.damaged_in = partition.state
        partition.retire("its log is damaged")
        self._finish()
        self.partition = self.flush = None
        return True

    # --- the controller ----------------------------------------------------------------------------------

    def on_registered(self, answer: Registered) -> None:
        """Take over the broker epoch of a registration."""
        assert self.lives is not None
        self.asking = ""
        self.hurt = self.disk.damaged
        self.lives.on_registered("c")
        self.broker_epoch, self.index = answer.broker_epoch, answer.index

    def on_fenced_life(self) -> None:
        """Handle a refused heartbeat: a later registration of this server is in force."""
        self.broker_epoch = self.index = self.view = -1
        self.damaged_in = self.lost_at = None
        if self.partition is not None:
            self.partition.retire("a later life has registered")
        self._finish()

    def on_metadata(
        self, index: int, servers: dict[NodeId, ServerState], config: TopicConfig, state: PartitionState
    ) -> None:
        """Take over the controller's metadata at ``index``, unless they are older than known ones."""
        if self.broker_epoch < 0 or index < self.index or index <= self.view:
            return
        self.view = index
        changed = servers != self.servers
        self.servers.clear()
        self.servers.update(servers)
        if self.disk.damaged and not self._may_start_over(state):
            return
        partition = self.partition
        if partition is None:
            partition = self.partition = self._open(config)
        elif changed and partition.leading is not None:
            partition.leading.core.on_tick(NOW)
        partition.on_state(state, self.broker_epoch, NOW)
        self._finish()
        self.ask()

    def _may_start_over(self, state: PartitionState) -> bool:
        """Return whether a damaged copy may be replaced, as ``maintenance/log_repairer.py`` decides: after the
        controller has recorded the loss, in a newer epoch with a leader. Otherwise report the loss again."""
        self.damaged_in = state
        if self.lost_at is None or state.epoch <= self.lost_at or state.leader is None:
            self.ask()
            return False
        self.damaged_in = self.lost_at = None
        self.disk.start_over()
        return True

    def on_lost(self, epoch: int) -> None:
        """Remember that the controller has recorded the loss, in this epoch. The metadata may have come before."""
        if self.damaged_in is not None:
            self.lost_at, self.view = epoch, -1

    def _open(self, config: TopicConfig) -> Partition:
        log: Any = MemoryLog(self.disk, self.lazy, self._on_append)
        return Partition(self.context, KEY, config, log, self.servers, ProducerState())

    def _on_append(self, offset: int, batch: bytes, epoch: int, before: int) -> None:
        self.ghost.on_append(self, offset, batch, epoch, before)

    def on_isr_answer(self, asked: AlterIsr, answer: Message | TidelogError) -> None:
        """Handle the answer to an ISR proposal, as ``ReplicaNode`` does."""
        partition, leading = self.partition, None if self.partition is None else self.partition.leading
        proposal = self.proposals.get(asked.epoch)
        if partition is None or leading is None or proposal is None or leading.core.proposal is not proposal:
            return
        state = partition.state
        if isinstance(answer, AlterIsrAnswer) and state is not None and answer.epoch > state.epoch:
            partition.on_state(replace(state, epoch=answer.epoch, isr=answer.isr), self.broker_epoch, NOW)
        elif isinstance(answer, TidelogError) and answer.code in ("NOT_LEADER", "FENCED_LEADER_EPOCH"):
            partition.step_down(answer.message)
        leading.core.on_proposal_unanswered(proposal, NOW)
        self._finish()

    def resend(self) -> bool:
        """Send the proposal in flight, or the seal, again."""
        partition = self.partition
        if partition is None:
            return False
        leading = partition.leading
        if leading is not None and leading.core.proposal is not None:
            leading.core.on_proposal_unanswered(leading.core.proposal, NOW)
        elif not partition.is_sealed:
            return False
        self._finish(LATER)
        return True

    # --- producers, time -----------------------------------------------------------------------------------

    def produce(self, number: int) -> bool:
        """Take a record with acks ``all``; returns False if the server does not lead."""
        if self.partition is None or self.partition.leading is None:
            return False
        part = ProducePart(number, *KEY, Acks.ALL, 0, len(BATCHES[number]))
        self.partition.produce(1, part, BATCHES[number], NOW)
        self._finish()
        return True

    def flushed(self) -> bool:
        """Complete the flush in progress; returns False if there is none."""
        flush, partition = self.flush, self.partition
        if flush is None or partition is None:
            return False
        self.flush = None
        partition.on_flushed(flush, None)  # type: ignore[arg-type]
        self._finish()
        self.ask()
        return True

    def lag(self) -> bool:
        """Let much time pass, so that a leader checks its followers; returns False if it does not lead."""
        leading = None if self.partition is None else self.partition.leading
        if leading is None:
            return False
        leading.core.on_tick(LATER)
        self._finish(LATER)
        return True

    def checkpoint(self) -> bool:
        """Store the HW; returns False if that is not due."""
        if self.partition is None or not self.partition.checkpoint_due:
            return False
        self.partition.checkpoint()
        return True

    # --- followers and leaders -----------------------------------------------------------------------------

    def ask(self) -> bool:
        """Send the next question of a follower to its leader; a server with a damaged log reports it to the
        controller."""
        state = self.damaged_in
        if state is not None:
            part = SuspectPart(*KEY, state.epoch, state.leader_epoch)
            if self.lost_at is None:
                self._send(CONTROLLER, HandOver(self.name, self.broker_epoch, "corrupt_log", (part,), lost=True))
            return self.lost_at is None
        following = None if self.partition is None else self.partition.following
        if following is None:
            return False
        part = following.epoch_request() or following.fetch_request()
        self._send(following.core.leader, Asked(self.name, self.broker_epoch, part, self.life))
        return True

    def on_asked(self, asked: Asked) -> None:
        """Answer a follower's question, as ``Requests.fetch`` and ``epoch_offset`` serve one part. Refusals are not
        answered here."""
        known = self.servers.get(asked.node)
        partition = self.partition
        if partition is None or partition.leading is None:
            return
        if known is not None and asked.broker_epoch < known.broker_epoch:
            return
        leading, part = partition.leading, asked.part
        told: list[Told] = []

        def serve() -> None:
            if isinstance(part, EpochPart):
                told.append(Told(asked, leading.epoch_end(asked.node, asked.broker_epoch, part)))
            else:
                fetched, data = leading.fetch(asked.node, asked.broker_epoch, 2, part, 1 << 20, self.ghost.now)
                told.append(Told(asked, fetched, b"".join(data)))

        partition.guard(serve)
        for answer in told:
            if answer.part.error is None:
                self.ghost.on_served(self, asked.node, part.leader_epoch)
            self._send(asked.node, answer, asked.life)
        self._finish()

    def on_told(self, told: Told) -> None:
        """Handle the leader's answer, as ``Fetcher`` does."""
        partition, asked, outcome = self.partition, told.asked.part, None
        if partition is None or partition.following is None:
            return
        if isinstance(asked, EpochPart) and isinstance(told.part, EpochEnd):
            outcome = partition.on_epoch_end(asked, told.part)
        elif isinstance(asked, FetchPart) and isinstance(told.part, FetchedPart):
            outcome = partition.on_fetched(asked, told.part, memoryview(told.data), NOW)
        self._finish()
        if outcome is FetchOutcome.FETCH_AGAIN:
            self.ask()

    # --- the end of every input ----------------------------------------------------------------------------

    def _send(self, to: NodeId, body: Any, life: str = "") -> None:
        self.sent.append(Sent(self.name, to, body, life))

    def _finish(self, now: float = NOW) -> None:
        partition = self.partition
        if partition is None:
            return
        partition.settle(NOW)
        leading = partition.leading
        if leading is not None:
            self._propose(leading.core.due_proposal(now), leading.core.leader_epoch)
        self.reports.gather(partition, now)
        partition.report_at = NOW if now == NOW and not partition.is_sealed else LATER
        self.reports.send(now)
        self.ghost.on_settled(self)
        for effect in self.effects.drain():
            if isinstance(effect, StartFlush):
                self.flush = effect.flush  # type: ignore[assignment]
            elif isinstance(effect, Call):
                self._send(CONTROLLER, effect.message)
            elif isinstance(effect, Post) and isinstance(effect.message, Produced):
                for ack in effect.message.acks:
                    if ack.error is None:
                        self.ghost.on_ack(self, BATCHES[ack.id], ack.offset)

    def _propose(self, proposal: Proposal | None, leader_epoch: int) -> None:
        if proposal is not None:
            self.proposals = {proposal.epoch: proposal}
            fields = (proposal.epoch, proposal.isr, proposal.cause, proposal.evidence)
            self._send(CONTROLLER, AlterIsr(self.name, self.broker_epoch, *KEY, leader_epoch, *fields))
