"""Who must hold what is committed: every member of ISR and ELR; under commit rule ``quorum`` a majority (R3, R4)."""

from __future__ import annotations

from tidelog.types import PartitionState, TopicPartition

from simulation.invariants.ghost import Before, Chain, Committed, Held
from simulation.invariants.losses import Losses
from simulation.invariants.views import View


class Members(Losses):
    """Asked after every commit and every change of a partition's state."""

    _held: dict[tuple[str, TopicPartition], Held]
    """By server: the logs that are open."""
    _before_crash: dict[tuple[str, TopicPartition], Before]
    """By server: those that are not."""

    def _check_members(self, key: TopicPartition, when: str, view: View | None = None) -> None:
        """Every live member of ISR and ELR holds what is committed, durably. ``view``: of the leader that has just
        committed."""
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
        """Fewer than a majority of all replicas are members of the ISR, live or not, and lack something committed: so
        every majority that can be asked who leads next has one that lacks nothing (R3). Half of an even number may: a
        leader that has not heard of its newest replica yet commits with a majority of those before. Who has lost its
        disk is no member any more, and is none again before it has everything. A copy that has cut a rotted end when
        it was opened, and could ask nobody, is not counted either."""
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
        """When it is committed a majority of the replicas that the leader knows has it, or has told the leader that
        it had it: of those in its ISR one may have lost its disk, or be no replica any more, and the leader has not
        heard yet (R4)."""
        gone = [node for node in view.isr if node not in state.isr or self._is_wiped(node)]
        there = [node for node in view.replicas if node in gone or self._holds(node, key, committed)]
        self._demand(
            2 * len(there) > len(view.replicas),
            f"R4 {key.partition}: only {there} of {view.replicas} had all up to {committed.end}, {when}",
        )

    def _holds(self, node: str, key: TopicPartition, committed: Committed) -> bool:
        """Whether all that is committed is durable there. Where the log is not open: when its last step was over;
        what a step has cut that ended in a crash is seen when the log opens again."""
        held, before = self._held.get((node, key)), self._before_crash.get((node, key))
        if held is not None:
            chain, durable = held.chain, held.log.durable
        else:
            chain, durable = (before.chain, before.durable) if before is not None else (Chain(), 0)
        return durable >= committed.end and chain.agrees(committed.end, committed.digest)

    def _is_wiped(self, node: str) -> bool:
        """It has another disk, of which the controller hears before it hears anything else of that server."""
        process = self.cluster.replica(node)
        return process.lost == "disk" and not process.broker_epoch_known()
