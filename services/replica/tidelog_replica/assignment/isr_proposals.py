"""Requests of this server's leaders to the controller: for another ISR, or for a proof that they still lead.

When a server fails, every leader that it followed has an ISR proposal. Only some of them are unanswered at a time, so
that neither heartbeats nor the controller suffer from them. If no controller answers, the others wait for a link to
an active controller, or for ``isr_retry_s``: ten thousand calls that fail at once, again and again, would leave no
time to find a controller.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from math import inf

from tidelog.errors import TidelogError
from tidelog.sansio.effects import CONTROLLER
from tidelog.wire.messages import AlterIsr, AlterIsrAnswer, ConfirmLeader, Done, Message

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.replication.isr import Proposal

AT_ONCE = 64
"""The largest number of unanswered proposals of this server."""
NOT_HEARD = ("UNREACHABLE", "REQUEST_TIMED_OUT", "NOT_ACTIVE_CONTROLLER", "NO_QUORUM", "OVERLOADED")
"""Codes of errors that say nothing about the proposal. Another proposal would get the same error, so all wait."""


class IsrProposals:
    """The part of a node that sends the ISR proposals of its leaders to the controller, at most ``AT_ONCE``
    unanswered ones at a time. It lives as long as the node."""

    def __init__(self, context: NodeContext, session: BrokerSession) -> None:
        self._node = context.node
        self._session = session
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._unanswered = 0
        self._held_until = -inf
        """No proposal is sent before this time, after a failed one (seconds)."""
        self._waiting: deque[tuple[Partition, LeaderReplica, Proposal]] = deque()

    def on_settled(self, partition: Partition, leading: LeaderReplica, now: float) -> None:
        """Queue the leader's ISR proposal if one is due, and send it if fewer than ``AT_ONCE`` are unanswered. Also
        send the controller a ``ConfirmLeader``, which asks whether this server still leads, if that is due because
        the followers have not confirmed it."""
        if (proposal := leading.core.due_proposal(now)) is not None:
            self._waiting.append((partition, leading, proposal))
            self.on_tick(now)
        if leading.core.due_confirmation(now):
            message = ConfirmLeader(self._node, self._session.broker_epoch, *partition.key, leading.core.leader_epoch)
            done = partial(self._on_confirmation, partition, leading, now)
            self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def on_controller_up(self, now: float) -> None:
        """Act on a new link to the active controller: end the pause after a failed proposal, and send waiting
        proposals."""
        self._held_until = -inf
        self.on_tick(now)

    def on_tick(self, now: float) -> None:
        """Send waiting proposals until ``AT_ONCE`` are unanswered; drop those that a newer state has settled. During
        the pause after a failed proposal only set the timer for its end."""
        if now < self._held_until:
            self._timers.set(self, self._held_until)
            return
        while self._waiting and self._unanswered < AT_ONCE:
            partition, leading, proposal = self._waiting.popleft()
            if partition.leading is leading and leading.core.proposal is proposal:  # else it is settled
                self._call(partition, leading, proposal)

    def _call(self, partition: Partition, leading: LeaderReplica, proposal: Proposal) -> None:
        """Send the controller an ``AlterIsr`` with one proposal, and count it as unanswered."""
        self._unanswered += 1
        message = AlterIsr(
            self._node,
            self._session.broker_epoch,
            *partition.key,
            leading.core.leader_epoch,
            proposal.epoch,
            proposal.isr,
            proposal.cause,
            proposal.evidence,
        )
        done = partial(self._on_isr_answer, partition, leading, proposal)
        self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def _on_isr_answer(
        self,
        partition: Partition,
        leading: LeaderReplica,
        proposal: Proposal,
        answer: Message | TidelogError,
        now: float,
    ) -> None:
        """Act on the controller's answer to a proposal: apply the new ISR (during a reassignment the metadata brings
        it instead), or end the leader's role if another replica leads. After any other error the leader repeats its
        proposal later; if the error says nothing about the proposal, all proposals wait for ``isr_retry_s``. If the
        role has ended meanwhile, only the next waiting proposals are sent."""
        self._unanswered -= 1
        if isinstance(answer, TidelogError) and answer.code in NOT_HEARD:
            self._held_until = now + self._settings.isr_retry_s
        self.on_tick(now)
        if partition.leading is not leading:
            return
        state = partition.state
        if state is not None and state.target and isinstance(answer, AlterIsrAnswer):
            pass  # replicas may have come or gone: the metadata says which
        elif isinstance(answer, AlterIsrAnswer) and state is not None and answer.epoch > state.epoch:
            left = tuple(n for n in state.replicas if n in state.isr + state.elr and n not in answer.isr)
            new = replace(state, epoch=answer.epoch, isr=answer.isr, elr=left)  # at most; the metadata name them
            partition.on_state(new, self._session.broker_epoch, now)
        elif isinstance(answer, TidelogError) and answer.code in ("NOT_LEADER", "FENCED_LEADER_EPOCH"):
            partition.step_down(answer.message)
        leading.core.on_proposal_unanswered(proposal, now)
        self._touch(partition.key)

    def _on_confirmation(
        self, partition: Partition, leading: LeaderReplica, sent: float, answer: Message | TidelogError, now: float
    ) -> None:
        """Record at the leader whether the controller confirmed its leadership. An error counts as not confirmed.
        Does nothing if the role has ended."""
        if partition.leading is leading:
            leading.core.on_confirmation(sent, isinstance(answer, Done), now)
            self._touch(partition.key)
