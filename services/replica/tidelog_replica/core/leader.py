"""A leader's side of replication, per partition and leader epoch: what is committed, and who is in sync.

Commit rule ``isr``. Everything below the high watermark (HW) is committed:

    HW = min(durable offset) over the maximal ISR, the leader included; it never goes back, and stands still while
         the committed ISR is smaller than ``min_insync_replicas``

The *maximal ISR* is the ISR that the controller committed plus every member of the proposal in flight (KIP-497): the
controller may have committed an addition that the leader has not heard of, and may elect the added one. So an
addition counts from the moment it is proposed, a removal only when the controller's new state arrives. At most
one proposal is in flight; it is sent again *identical* until a state of a newer epoch arrives. No lost, late or
refusing answer clears it: a delayed copy could still be committed.

A follower counts for nothing until it has fetched in this leader epoch; what counts is its *flushed* end.

    in sync    caught up within ``max_lag_s``; judged by the leader's own timer, also when nobody fetches
    caught up  its durable offset reached the log end as it was at some moment: then, at that moment; a follower that
               has everything is caught up for as long as nothing new is appended (KIP-501)
    may join   fetched in this epoch, durable at or past the HW *and* the start of this epoch, in the broker epoch
               that the metadata knows, not fenced (with the HW alone, three leader changes lose data)

A new leader's HW may be below the true one until it reaches the start of its epoch (``knows_end``): until then
nothing above it is told to readers, so that they never see the end of the log go back (KIP-207).

Invariants: R1, R4, R5, R8 of ``docs/architecture.md``; HW <= own log end; at most one proposal in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, ServerState
from tidelog.wire.messages import IsrMember

from tidelog_replica.core.epochs import EpochCache


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR to be put to the controller: compare-and-set on ``epoch``."""

    epoch: int
    isr: tuple[IsrMember, ...]
    cause: str
    evidence: dict[str, str]


@dataclass(slots=True)
class Progress:
    """What the leader knows of one follower in this leader epoch. Times are seconds."""

    caught_up_at: float
    """When it last had everything that was in the log then; at first the start of the epoch."""
    mark_end: int
    """Once durable up to here, it was caught up at ``mark_time``."""
    mark_time: float
    broker_epoch: int = -1
    """Life in which it fetched; -1: it has not fetched in this leader epoch."""
    durable: int = -1
    level: bool = False
    """It has everything, and nothing was appended since."""
    waiting: int | None = None
    """The link over which it wants to be notified of new data."""


class Leader:
    """Decides with offsets. ``servers`` is a live view of the metadata's servers, kept by the caller."""

    def __init__(
        self,
        node: NodeId,
        broker_epoch: int,
        state: PartitionState,
        servers: Mapping[NodeId, ServerState],
        *,
        min_insync_replicas: int,
        max_lag_s: float,
        retry_s: float,
        high_watermark: int,
        log_end: int,
        durable: int,
        now: float,
    ) -> None:
        assert state.leader == node and node in state.isr and high_watermark <= log_end
        self.node = node
        self.leader_epoch = state.leader_epoch
        self.epoch = state.epoch
        self.replicas = state.replicas
        self.isr = state.isr
        self.epoch_start = log_end
        """Where this leader epoch begins in the log."""
        self.high_watermark = high_watermark
        self.proposal: Proposal | None = None
        """In flight: not settled by a newer epoch yet."""
        self._broker_epoch = broker_epoch
        self._servers = servers
        self._min_insync_replicas = min_insync_replicas
        self._max_lag_s = max_lag_s
        self._retry_s = retry_s
        self._retry_at: float | None = None
        self._log_end = log_end
        self._durable = durable
        self._counted = self.isr
        self.followers = {n: Progress(now, log_end, now) for n in state.replicas if n != node}
        self._advance()

    # --- what others may know --------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """Every replica that may be in the controller's ISR."""
        return self._counted

    @property
    def knows_end(self) -> bool:
        """The HW has reached the start of this epoch: nothing committed before is unknown."""
        return self.high_watermark >= self.epoch_start

    @property
    def has_quorum(self) -> bool:
        """The ISR is large enough for ``all`` produces, and for the HW to move."""
        return len(self.isr) >= self._min_insync_replicas

    def refusal(self, leader_epoch: int) -> TidelogError | None:
        """Whether a request that names this leader epoch may be served; -1 names none."""
        if leader_epoch in (self.leader_epoch, -1):
            return None
        if leader_epoch < self.leader_epoch:
            code, text = "FENCED_LEADER_EPOCH", f"the leader epoch is {self.leader_epoch}, not {leader_epoch}"
        else:
            code, text = (
                "UNKNOWN_LEADER_EPOCH",
                f"{leader_epoch} is newer than {self.leader_epoch}, the last known here",
            )
        return refuse(code, text, leader_epoch=self.leader_epoch, leader=self.node)

    def follower_refusal(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> TidelogError | None:
        """Whether a fetch or epoch request of ``node`` in that life may be served."""
        progress = self.followers.get(node)
        if progress is None:
            return refuse("NOT_REPLICA", f"{node} is no follower of this partition")
        if broker_epoch < progress.broker_epoch:
            return refuse("FENCED_BROKER_EPOCH", f"{node} has fetched in broker epoch {progress.broker_epoch}")
        return self.refusal(leader_epoch)

    # --- the log moves -----------------------------------------------------------------------------------

    def on_append(self, log_end: int, now: float) -> list[int]:
        """The log ends at ``log_end`` now. Returns the links whose followers wait to be notified, each once."""
        self._log_end = log_end
        notify = []
        for progress in self.followers.values():
            if progress.level:
                progress.level = False
                progress.caught_up_at = progress.mark_time = now
                progress.mark_end = log_end
            if progress.waiting is not None:
                notify.append(progress.waiting)
                progress.waiting = None
        return notify

    def on_durable(self, durable: int) -> None:
        """The leader's own log is flushed up to here."""
        if durable > self._durable:
            self._durable = durable
            self._advance()

    def on_fetch(self, node: NodeId, broker_epoch: int, durable: int, now: float) -> None:
        """A follower that does not diverge has flushed up to ``durable``. Within one life that never goes back: what
        agrees with the leader of this epoch is not truncated in it; an older message may only arrive late."""
        progress = self.followers[node]
        if broker_epoch == progress.broker_epoch:
            durable = max(durable, progress.durable)
        progress.broker_epoch = broker_epoch
        progress.durable = durable
        if durable >= self._log_end:
            progress.level = True
            progress.caught_up_at = now
        else:
            progress.level = False
            if durable >= progress.mark_end:
                progress.caught_up_at = progress.mark_time
                progress.mark_end, progress.mark_time = self._log_end, now
        if node in self._counted:
            self._advance()
        else:
            self._consider(now)

    def wait(self, node: NodeId, source: int) -> None:
        """The follower has all there is: notify it over ``source`` when something comes."""
        self.followers[node].waiting = source

    def on_source_closed(self, source: int) -> None:
        """The link is gone; the follower will ask again over another."""
        for progress in self.followers.values():
            if progress.waiting == source:
                progress.waiting = None

    def _advance(self) -> None:
        if not self.has_quorum:
            return
        high_watermark = self._durable
        for node in self._counted:
            if node != self.node:
                high_watermark = min(high_watermark, self.followers[node].durable)
        self.high_watermark = max(self.high_watermark, high_watermark)

    # --- the in-sync replicas ----------------------------------------------------------------------------

    def on_state(self, state: PartitionState, now: float) -> None:
        """The controller's newer state of the same leader epoch. It settles the proposal in flight."""
        assert state.leader_epoch == self.leader_epoch and state.epoch > self.epoch
        self.epoch = state.epoch
        self.isr = state.isr
        if state.replicas != self.replicas:
            kept = self.followers
            self.replicas = state.replicas
            self.followers = {
                n: kept.get(n) or Progress(now, self._log_end, now) for n in state.replicas if n != self.node
            }
        self.proposal = self._retry_at = None
        self._count()
        self._consider(now)

    def on_tick(self, now: float) -> None:
        """The leader's own timer: who has fallen behind?"""
        self._consider(now)

    def deadline(self) -> float | None:
        """When ``on_tick`` or ``due_proposal`` has something to do. None where no follower is behind."""
        if self.proposal is not None:
            return self._retry_at
        return min(
            (self._overdue_at(n) for n in self.isr if n != self.node and not self.followers[n].level), default=None
        )

    def due_proposal(self, now: float) -> Proposal | None:
        """The proposal, if it must be sent now (again); it is then on its way until ``on_proposal_unanswered``."""
        if self.proposal is None or self._retry_at is None or now < self._retry_at:
            return None
        self._retry_at = None
        return self.proposal

    def on_proposal_unanswered(self, proposal: Proposal, now: float) -> None:
        """The call failed or was refused: the same again after a pause, unless a newer epoch has settled it."""
        if proposal is self.proposal:
            self._retry_at = now + self._retry_s

    def _overdue_at(self, node: NodeId) -> float:
        return self.followers[node].caught_up_at + self._max_lag_s

    def _may_join(self, node: NodeId) -> bool:
        progress, server = self.followers[node], self._servers.get(node)
        return (
            progress.broker_epoch >= 0
            and server is not None
            and not server.fenced
            and server.broker_epoch == progress.broker_epoch
            and progress.durable >= max(self.high_watermark, self.epoch_start)
        )

    def _consider(self, now: float) -> None:
        """Propose another ISR where one is due and none is in flight."""
        if self.proposal is not None:
            return
        evidence: dict[str, str] = {}
        members = []
        for node in self.replicas:
            if node == self.node:
                members.append(node)
                continue
            progress = self.followers[node]
            if node in self.isr:
                if progress.level or now < self._overdue_at(node):
                    members.append(node)
                else:
                    behind_ms = round((now - progress.caught_up_at) * 1000)
                    evidence[f"{node}.behind_ms"] = str(behind_ms)
                    evidence[f"{node}.durable"] = str(progress.durable)
            elif self._may_join(node):
                members.append(node)
                evidence[f"{node}.durable"] = str(progress.durable)
        if not evidence:
            return
        evidence["log_end"] = str(self._log_end)
        evidence["high_watermark"] = str(self.high_watermark)
        cause = "follower_lagging" if len(members) < len(self.isr) else "follower_caught_up"
        isr = tuple(IsrMember(node, self._life_of(node)) for node in members)
        self.proposal = Proposal(self.epoch, isr, cause, evidence)
        self._retry_at = now
        self._count()

    def _life_of(self, node: NodeId) -> int:
        if node == self.node:
            return self._broker_epoch
        server = self._servers.get(node)
        return server.broker_epoch if server is not None else 0

    def _count(self) -> None:
        proposed = () if self.proposal is None else tuple(member.node for member in self.proposal.isr)
        self._counted = tuple(node for node in self.replicas if node in self.isr or node in proposed)
        self._advance()


def divergence(
    offset: int, last_epoch: int, epochs: EpochCache, log_start: int, log_end: int
) -> tuple[int, int] | None:
    """Where a log whose record before ``offset`` has ``last_epoch`` parts from this one: (epoch, end offset) of the
    largest epoch here at or below ``last_epoch`` (KIP-279). None: up to ``offset`` they agree.

    Where no such epoch is known here, ``last_epoch`` itself ends at the start of this log: nothing is common."""
    if last_epoch < 0:
        return None
    epoch, end = epochs.end_of(last_epoch, log_end)
    if epoch < 0:
        return None if offset <= log_start else (last_epoch, log_start)
    return None if epoch == last_epoch and offset <= end else (epoch, end)
