"""The reassignments that would even out the load of the servers: a plan for the operator, who begins them or does
not.

Passes over a picture of the cluster, each move counting at once, ties by name, so that the same metadata give the
same plan:

0. **Drained servers**, if the operator asks for it: a replica on a server that is being drained moves to the least
   loaded of those that have none of the partition, on a rack without one if there is such a server.
1. **Racks.** Where a partition has two replicas on one rack and there is a server on a rack without one, the replica
   on the more loaded of the two servers moves to the least loaded of those.
2. **Load.** A replica moves from the fullest server to the emptiest as long as the two differ by less afterwards. Of
   the replicas that may move, the one whose move brings the two nearest to each other is taken. It may move if the
   emptiest server has no replica of its partition, and if that puts no two replicas on one rack that were on two.
   Where none may move, other pairs are tried: the next emptiest servers first, then the next fullest.
3. **Preferred leaders.** Two replicas of a partition change places in its order as long as their servers then differ
   by less in what they are preferred leaders of.

Without weights each replica weighs 1, and passes 2 and 3 even out the numbers of replicas and of preferred leaders.
The caller may give each partition a weight instead, in bytes or bytes per second: then the passes even out the sums
of the weights. With weights two servers count as equal when they differ by at most ``TOLERANCE`` of a server's
average, and a replica that weighs less than ``LEAST`` of that average is not moved. Each move of passes 2 and 3 comes
with the figures for which it was planned; they count the moves that were planned before.

Only live servers that are not being drained are counted and get replicas; replicas on other servers stay where they
are, but for pass 0. Partitions with a reassignment in progress, or waiting for its turn, count as what they will be
and are not moved again, nor are those that are paused: they could not be copied. The cluster's own topics,
``__timeline`` too, are moved like any other: else a server that goes for good could not be emptied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import PartitionWeight, PlannedMove, RebalancePlan

from tidelog_controller.metadata.rules.placement import racks_of
from tidelog_controller.metadata.state import MetadataState

TOLERANCE = 0.1
"""Part of a server's average load by which two servers may differ and still count as equal."""
LEAST = 0.01
"""Part of a server's average load that a replica must weigh to be worth a move."""


def plan_rebalance(
    state: MetadataState,
    empty_drained: bool = False,
    weights: Iterable[PartitionWeight] = (),
    unit: str = "",
) -> RebalancePlan:
    """Return a plan of reassignments that even out the load of the servers, without moves if it is even, together
    with the moves that wait in the queue. ``weights`` gives the weight of one replica of each partition in ``unit``;
    a partition that is not named weighs 0. Without a unit each replica weighs 1. With ``empty_drained`` replicas also
    move away from servers that are being drained. Nothing is changed."""
    picture = _Picture(state, {(one.name, one.partition): max(0, one.weight) for one in weights}, unit)
    if empty_drained:
        picture.empty_drained()
    picture.spread_over_racks()
    while picture.move_one():
        pass
    while picture.swap_one_leader():
        pass
    waiting = tuple(
        PlannedMove(
            state.topics[move.topic_id].name,
            move.partition,
            state.topics[move.topic_id].partitions[move.partition].replicas,
            move.replicas,
            move.reason,
        )
        for move in state.queue.values()
    )
    return RebalancePlan(picture.moves(), waiting, unit)


class _Picture:
    """The replicas of every partition and the loads of the servers while a plan is made: at first as they are, then
    as the planned moves make them."""

    def __init__(self, state: MetadataState, weights: Mapping[tuple[str, int], int], unit: str) -> None:
        self._state = state
        self._unit = unit
        self._weights: dict[TopicPartition, int] = {}
        self._evidence: dict[TopicPartition, list[str]] = {}
        self._servers = sorted(n for n in state.servers if state.is_live(n) and not state.servers[n].draining)
        self._racks = racks_of(state)
        self._replicas: dict[TopicPartition, tuple[NodeId, ...]] = {}
        self._movable: dict[TopicPartition, None] = {}
        self._reasons: dict[TopicPartition, list[str]] = {}
        for topic in state.topics.values():
            for number, partition in enumerate(topic.partitions):
                key = TopicPartition(topic.topic_id, number)
                self._weights[key] = weights.get((topic.name, number), 0) if unit else 1
                waits = state.queue.get(f"{key.topic_id}/{key.partition}")
                queued = () if waits is None else waits.replicas
                self._replicas[key] = partition.target or queued or partition.replicas
                if not partition.target and not queued and not partition.paused:
                    self._movable[key] = None
        self._load = dict.fromkeys(self._servers, 0)
        self._leads = dict.fromkeys(self._servers, 0)
        self._held: dict[NodeId, dict[TopicPartition, None]] = {node: {} for node in self._servers}
        for key, replicas in self._replicas.items():
            for node in replicas:
                if node in self._load:
                    self._load[node] += self._weights[key]
                    self._held[node][key] = None
            if replicas[0] in self._leads:
                self._leads[replicas[0]] += self._weights[key]

    def moves(self) -> tuple[PlannedMove, ...]:
        """Return a move for each partition whose planned replicas differ from its present ones, with the reasons and
        figures."""
        planned = []
        for key, reasons in self._reasons.items():
            topic = self._state.topics[key.topic_id]
            before, after = topic.partitions[key.partition].replicas, self._replicas[key]
            if before != after:
                reason = ", ".join(dict.fromkeys(reasons))
                figures = "; ".join(self._evidence.get(key, ()))
                planned.append(PlannedMove(topic.name, key.partition, before, after, reason, figures))
        return tuple(planned)

    # --- passes ------------------------------------------------------------------------------------------

    def empty_drained(self) -> None:
        """Plan to move each replica on a server that is being drained to the least loaded server without the
        partition, if possible on a rack without the partition (pass 0). A replica stays if there is no such
        server."""
        for key in self._movable:
            for source in self._replicas[key]:
                if not self._state.servers[source].draining:
                    continue
                replicas = self._replicas[key]
                racks = [self._racks[node] for node in replicas if node != source]
                free = [node for node in self._servers if node not in replicas]
                if free:
                    to = min(free, key=lambda n, racks=racks: (racks.count(self._racks[n]), self._load[n], n))  # type: ignore[misc]
                    self._replace(key, source, to, "drained")

    def spread_over_racks(self) -> None:
        """Plan to move replicas that share a rack with another replica of their partition to racks without one (pass
        1)."""
        for key in self._movable:
            while True:
                replicas = self._replicas[key]
                racks = [self._racks[node] for node in replicas]
                crowded = [n for n in replicas if n in self._load and racks.count(self._racks[n]) > 1]
                free = [n for n in self._servers if self._racks[n] not in racks]
                if not crowded or not free:
                    break
                source = max(crowded, key=lambda node: (self._load[node], node))
                self._replace(key, source, min(free, key=lambda node: (self._load[node], node)), "racks")

    def move_one(self) -> bool:
        """Plan to move one replica from a full server to an emptier one (pass 2), and return True; return False if no
        move makes the loads more even."""
        by_load = sorted(self._servers, key=lambda node: (self._load[node], node))
        for full in reversed(by_load):
            for empty in by_load:
                if self._load[full] - self._load[empty] <= self._least_difference(self._load):
                    break
                key = self._movable_between(full, empty)
                if key is not None:
                    self._add_evidence(key, "holds", self._load, full, empty)
                    self._replace(key, full, empty, "load")
                    return True
        return False

    def swap_one_leader(self) -> bool:
        """Plan that another replica of one partition becomes its preferred leader (pass 3), and return True; return
        False if no exchange makes the numbers of preferred leaders, or their weights, more even."""
        by_leads = sorted(self._servers, key=lambda node: (-self._leads[node], node))
        for busy in by_leads:
            for key in self._held[busy]:
                replicas = self._replicas[key]
                if replicas[0] != busy or key not in self._movable:
                    continue
                idle = min((n for n in replicas if n in self._leads), key=lambda n: (self._leads[n], n))
                weight, difference = self._weights[key], self._leads[busy] - self._leads[idle]
                if self._is_worth_it(weight, self._leads) and difference > max(
                    weight, self._least_difference(self._leads)
                ):
                    self._add_evidence(key, "is preferred leader of", self._leads, busy, idle)
                    self._replicas[key] = (idle, *(n for n in replicas if n != idle))
                    self._leads[busy] -= weight
                    self._leads[idle] += weight
                    self._reasons.setdefault(key, []).append("leaders")
                    return True
        return False

    # --- one step ----------------------------------------------------------------------------------------

    def _least_difference(self, loads: Mapping[NodeId, int]) -> float:
        """Return the difference between the loads of two servers up to which the two count as equal."""
        return TOLERANCE * sum(loads.values()) / len(loads) if self._unit else 1

    def _is_worth_it(self, weight: int, loads: Mapping[NodeId, int]) -> bool:
        """Return whether a replica of this weight is heavy enough to be moved, compared with the average of
        ``loads``."""
        return weight > 0 and (not self._unit or weight >= LEAST * sum(loads.values()) / len(loads))

    def _movable_between(self, full: NodeId, empty: NodeId) -> TopicPartition | None:
        """Return the partition whose replica should move from the server ``full`` to ``empty``, because that brings
        the loads of the two nearest to each other; None if no replica may move or none helps."""
        best: TopicPartition | None = None
        difference = self._load[full] - self._load[empty]
        for key in self._held[full]:
            replicas, weight = self._replicas[key], self._weights[key]
            if empty in replicas or key not in self._movable:
                continue
            if weight >= difference or not self._is_worth_it(weight, self._load):
                continue
            others = [self._racks[node] for node in replicas if node != full]
            if self._racks[empty] in others and self._racks[full] not in others:
                continue
            if best is None or abs(difference - 2 * weight) < abs(difference - 2 * self._weights[best]):
                best = key
        return best

    def _add_evidence(
        self, key: TopicPartition, verb: str, loads: Mapping[NodeId, int], full: NodeId, empty: NodeId
    ) -> None:
        """Record the loads of two servers as the evidence for the move that is about to be planned between them."""
        figures = f"{full} {verb} {self._amount(loads[full])}, {empty} {self._amount(loads[empty])}"
        own = f"; this is {self._amount(self._weights[key])}" if self._unit else ""
        self._evidence.setdefault(key, []).append(figures + own)

    def _amount(self, weight: int) -> str:
        return f"{weight / 1_000_000:.1f} M{self._unit}" if self._unit else str(weight)

    def _replace(self, key: TopicPartition, source: NodeId, to: NodeId, reason: str) -> None:
        """Plan to move the replica of a partition from ``source`` to ``to``, and count the loads anew."""
        replicas = self._replicas[key]
        weight = self._weights[key]
        if replicas[0] == source:
            self._leads[to] += weight
            if source in self._leads:
                self._leads[source] -= weight
        self._replicas[key] = tuple(to if node == source else node for node in replicas)
        self._load[to] += weight
        if source in self._load:
            self._load[source] -= weight
            del self._held[source][key]
        self._held[to][key] = None
        self._reasons.setdefault(key, []).append(reason)
