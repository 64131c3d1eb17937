"""Which replicas must hold everything committed: each member of ISR and ELR; under commit rule ``quorum`` a majority
(R3, R4)."""

from __future__ import annotations

from tidelog.testing.invariants.ghost import Before, Chain, Committed, Held
from tidelog.testing.invariants.losses import Losses
from tidelog.testing.invariants.views import View
from tidelog.types import PartitionState, TopicPartition


class Members(Losses):
    """The checks after every commit and every change of a partition's state."""

    _held: dict[tuple[str, TopicPartition], Held]
    """The open logs, by server and partition."""
    _before_crash: dict[tuple[str, TopicPartition], Before]
    """The logs of servers that are down or have not opened them, by server and partition."""

    def _check_members(self, key: TopicPartition, when: str, view: View | None = None) -> None:
        """Check that every live member of ISR and ELR holds everything committed, durably. ``view``: the leader that
        has just committed, if any."""
        state, committed = self.metadata.partition(*key), self._of(key)
        if state is None or self._is_losing(key, state.leader_epoch):
            return
        if self.metadata.topics[key.topic_id].config.commit_rule == "quorum":
            self._check_electors(key, state, committed, when)
            if view is not None:
                self._check_copies(key, state, committed, when, view)
            return
        if state.sealing:  # after a rescue: who holds everything is being found out
            return
        for node in state.isr + state.elr:
            held = self._held.get((node, key))
            if held is None or node in self._lost_at_opening.get(key, ()):
                continue
            if held.log.durable < committed.end or not held.chain.agrees(committed.end, committed.digest):
                self._fail(
                    f"R3 {node} {key.partition} is in ISR {state.isr} or ELR {state.elr} of epoch {state.epoch}, not"
                    f" with all up to {committed.end} (end {held.chain.end}, durable {held.log.durable}), {when}"
                )

    def _check_electors(self, key: TopicPartition, state: PartitionState, committed: Committed, when: str) -> None:
        """Check for commit rule ``quorum`` that at most half of the replicas are members of the ISR that lack
        something committed, so that every majority that can elect has a replica that lacks nothing (R3). Half is
        allowed: a leader that does not know its newest replica yet commits with a majority of the others. A replica
        that lost its disk is no member until it has everything again. A copy does not count either if it cut a rotted
        end when it was opened, and could ask no other replica."""
        excused = self._lost_at_opening.get(key, ())
        held = [node for node in state.isr if self._holds(node, key, committed) or self._is_wiped(node)]
        lacking = [node for node in state.isr if node not in held and node not in excused]
        self._demand(
            2 * len(lacking) <= len(state.replicas),
            f"R3 {key.partition}: {lacking} of the ISR {state.isr} of {state.replicas} lack something of what is"
            f" committed up to {committed.end}, {when}",
        )

    def _check_copies(
        self, key: TopicPartition, state: PartitionState, committed: Committed, when: str, view: View
    ) -> None:
        """Check that a majority of the replicas that the leader knows holds what it has just committed (R4). Those
        count too that lost their disk or left since the leader last heard of them."""
        gone = [node for node in view.isr if node not in state.isr or self._is_wiped(node)]
        there = [node for node in view.replicas if node in gone or self._holds(node, key, committed)]
        self._demand(
            2 * len(there) > len(view.replicas),
            f"R4 {key.partition}: only {there} of {view.replicas} had all up to {committed.end}, {when}",
        )

    def _holds(self, node: str, key: TopicPartition, committed: Committed) -> bool:
        """Return whether everything committed is durable on a server. For a log that is not open its state after the
        last step counts; a cut in a step that ended in a crash is seen when the log opens again."""
        held, before = self._held.get((node, key)), self._before_crash.get((node, key))
        if held is not None:
            chain, durable = held.chain, held.log.durable
        else:
            chain, durable = (before.chain, before.durable) if before is not None else (Chain(), 0)
        return durable >= committed.end and chain.agrees(committed.end, committed.digest)

    def _is_wiped(self, node: str) -> bool:
        """Return whether a server has a new disk and the controllers do not know it yet."""
        process = self.cluster.replica(node)
        return process.lost == "disk" and not process.broker_epoch_known()
