"""Which reassignments would even out what there is: a plan for the operator, who begins them or does not.

Passes over a picture of the cluster, each move counting at once, ties by name, so that the same metadata give
the same plan:

0. **Drained servers**, if that is asked for: a replica on a server that is being drained moves to the least loaded of
   those that have none of the partition, on a rack without one if there is such a server.
1. **Racks.** Where a partition has two replicas on one rack and there is a server on a rack without one, the replica
   on the more loaded of the two servers moves to the least loaded of those.
2. **Load.** As long as the fullest server has at least two replicas more than the emptiest, one of a partition that
   the emptiest has none of moves there, unless that puts two on one rack; then the next fuller or emptier is tried.
3. **Preferred leaders.** As long as one server is preferred leader of at least two partitions more than another that
   is a replica of one of them, the two change places in that partition's order.

Only live servers that are not being drained are judged and get anything; else replicas on others stay where they
are. Partitions with a reassignment in progress, or waiting for its turn, count as what they will be and are not moved
again, nor are those that are paused: nobody could copy them. The cluster's own topics, ``__timeline`` too, are moved
like any other: else a server that goes for good could not be emptied.
"""

from __future__ import annotations

from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import PlannedMove, RebalancePlan

from tidelog_controller.core.placement import racks_of
from tidelog_controller.core.state import MetadataState


def plan_rebalance(state: MetadataState, empty_drained: bool = False) -> RebalancePlan:
    """The plan; empty where all is even. With what waits for its turn from earlier ones."""
    picture = _Picture(state)
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
    return RebalancePlan(picture.moves(), waiting)


class _Picture:
    """Replicas as they are and as they become."""

    def __init__(self, state: MetadataState) -> None:
        self._state = state
        self._servers = sorted(n for n in state.servers if state.is_live(n) and not state.servers[n].draining)
        self._racks = racks_of(state)
        self._replicas: dict[TopicPartition, tuple[NodeId, ...]] = {}
        self._movable: dict[TopicPartition, None] = {}
        self._reasons: dict[TopicPartition, list[str]] = {}
        for topic in state.topics.values():
            for number, partition in enumerate(topic.partitions):
                key = TopicPartition(topic.topic_id, number)
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
                    self._load[node] += 1
                    self._held[node][key] = None
            if replicas[0] in self._leads:
                self._leads[replicas[0]] += 1

    def moves(self) -> tuple[PlannedMove, ...]:
        """What became of it."""
        planned = []
        for key, reasons in self._reasons.items():
            topic = self._state.topics[key.topic_id]
            before, after = topic.partitions[key.partition].replicas, self._replicas[key]
            if before != after:
                told = ", ".join(dict.fromkeys(reasons))
                planned.append(PlannedMove(topic.name, key.partition, before, after, told))
        return tuple(planned)

    # --- passes ------------------------------------------------------------------------------------------

    def empty_drained(self) -> None:
        """See 0."""
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
        """See 1."""
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
        """See 2."""
        by_load = sorted(self._servers, key=lambda node: (self._load[node], node))
        for full in reversed(by_load):
            for empty in by_load:
                if self._load[full] - self._load[empty] < 2:
                    break
                key = self._movable_between(full, empty)
                if key is not None:
                    self._replace(key, full, empty, "load")
                    return True
        return False

    def swap_one_leader(self) -> bool:
        """See 3."""
        by_leads = sorted(self._servers, key=lambda node: (-self._leads[node], node))
        for busy in by_leads:
            for key in self._held[busy]:
                replicas = self._replicas[key]
                if replicas[0] != busy or key not in self._movable:
                    continue
                idle = min((n for n in replicas if n in self._leads), key=lambda n: (self._leads[n], n))
                if self._leads[busy] - self._leads[idle] >= 2:
                    self._replicas[key] = (idle, *(n for n in replicas if n != idle))
                    self._leads[busy] -= 1
                    self._leads[idle] += 1
                    self._reasons.setdefault(key, []).append("leaders")
                    return True
        return False

    # --- one step ----------------------------------------------------------------------------------------

    def _movable_between(self, full: NodeId, empty: NodeId) -> TopicPartition | None:
        for key in self._held[full]:
            replicas = self._replicas[key]
            if empty in replicas or key not in self._movable:
                continue
            others = [self._racks[node] for node in replicas if node != full]
            if self._racks[empty] not in others or self._racks[full] in others:
                return key
        return None

    def _replace(self, key: TopicPartition, source: NodeId, to: NodeId, reason: str) -> None:
        replicas = self._replicas[key]
        if replicas[0] == source:
            self._leads[to] += 1
            if source in self._leads:
                self._leads[source] -= 1
        self._replicas[key] = tuple(to if node == source else node for node in replicas)
        self._load[to] += 1
        if source in self._load:
            self._load[source] -= 1
            del self._held[source][key]
        self._held[to][key] = None
        self._reasons.setdefault(key, []).append(reason)
