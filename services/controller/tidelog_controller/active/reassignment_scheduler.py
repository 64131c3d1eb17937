"""When the active controller begins the queued moves of a rebalance, a few at a time.

The queue is in the metadata (``state.queue``), so another controller goes on where one has ended. A move begins, in
the order of the queue, as long as each server that it concerns has fewer than ``moves_per_server`` under way: those
that get a copy or give one up, and the leader from which it is copied. Moves that somebody asked for one by one begin
at once; they count here all the same. One that cannot begin now (a server is down) lets the others go first. A mere
change of order copies nothing and concerns no server.

A move is under way while its partition has a ``target``. A proposal is in flight until it is applied; it names the
epoch for which it was decided. Times are seconds of the caller's monotonic clock."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.types import NodeId, PartitionState, TopicPartition

from tidelog_controller.metadata.commands import Command, RemoveTopic, SetReplicas
from tidelog_controller.metadata.rules.reassignment import refuse_replicas
from tidelog_controller.metadata.state import MetadataState

PAUSE_S = 0.2
"""Seconds between two passes over the queue."""


class ReassignmentScheduler:
    """The decisions of the active controller which queued reassignments begin, so that no server takes part in more
    than ``moves_per_server`` at a time. In memory only."""

    def __init__(self, moves_per_server: int) -> None:
        self._most = moves_per_server
        self._under_way: dict[TopicPartition, tuple[NodeId, ...]] = {}
        """By partition: the servers that its reassignment concerns."""
        self._in_flight: dict[TopicPartition, tuple[NodeId, ...]] = {}
        self._look_at: float | None = None

    def become_active(self, state: MetadataState, now: float) -> None:
        """Forget everything, and find in the metadata ``state`` the reassignments that are under way."""
        self.clear()
        for topic in state.topics.values():
            for number in range(len(topic.partitions)):
                self._track(state, TopicPartition(topic.topic_id, number))
        self._look_at = now if state.queue else None

    def clear(self) -> None:
        """Forget all reassignments, since this controller is no longer active. What is in the metadata goes on."""
        self._under_way.clear()
        self._in_flight.clear()
        self._look_at = None

    def on_applied(
        self, state: MetadataState, command: Command, changed: Iterable[TopicPartition], now: float
    ) -> None:
        """Take into account that ``command`` made ``state`` and changed the partitions in ``changed``: reassignments
        that began or ended, topics that are deleted. If moves are queued, plan another pass over the queue."""
        for key in changed:
            self._track(state, key)
        if isinstance(command, SetReplicas):
            self._in_flight.pop(TopicPartition(command.topic_id, command.partition), None)
        elif isinstance(command, RemoveTopic):
            for key in [key for key in self._under_way if key.topic_id == command.topic_id]:
                del self._under_way[key]
        if state.queue and self._look_at is None:
            self._look_at = now + PAUSE_S

    def _track(self, state: MetadataState, key: TopicPartition) -> None:
        """Record which servers the reassignment of a partition concerns, or that no reassignment of it makes
        progress."""
        partition = state.partition(*key)
        if partition is not None and partition.target and not partition.paused:
            self._under_way[key] = _concerned(partition, partition.origin, partition.target)
        else:
            self._under_way.pop(key, None)

    def deadline(self) -> float | None:
        """Return the time in seconds at which ``due`` is to be called next, which may then find nothing to do; None
        if no pass over the queue is planned."""
        return self._look_at

    def due(self, state: MetadataState, now: float, wall_ms: int) -> list[SetReplicas]:
        """Return the commands that begin queued moves now, in the order of the queue; an empty list if it is too
        early or no move can begin. A move whose servers are busy or down is skipped, and stays in the queue."""
        if self._look_at is None or now < self._look_at:
            return []
        self._look_at = None
        load: dict[NodeId, int] = {}
        for servers in (*self._under_way.values(), *self._in_flight.values()):
            for node in servers:
                load[node] = load.get(node, 0) + 1
        begun: list[SetReplicas] = []
        for move in state.queue.values():
            key = TopicPartition(move.topic_id, move.partition)
            partition = state.partition(*key)
            if partition is None or partition.target or partition.paused or key in self._in_flight:
                continue
            servers = _concerned(partition, partition.replicas, move.replicas)
            config = state.topics[key.topic_id].config
            if any(load.get(node, 0) >= self._most for node in servers):
                continue
            if refuse_replicas(partition, config, move.replicas, state.is_live) is not None:
                continue
            for node in servers:
                load[node] = load.get(node, 0) + 1
            self._in_flight[key] = servers
            evidence = {"replicas_before": " ".join(partition.replicas), "sake": move.reason}
            if move.asker:
                evidence["asked_by"] = move.asker
            begun.append(SetReplicas(wall_ms, *key, partition.epoch, move.replicas, "rebalance", evidence))
        return begun


def _concerned(
    partition: PartitionState, before: tuple[NodeId, ...], after: tuple[NodeId, ...]
) -> tuple[NodeId, ...]:
    """Return the servers that a change of the replicas from ``before`` to ``after`` concerns: those that get a copy
    or give one up, and, if any gets a copy, the leader from which it is copied."""
    gets = tuple(node for node in after if node not in before)
    gives = tuple(node for node in before if node not in after)
    serves = (partition.leader,) if gets and partition.leader is not None else ()
    return tuple(dict.fromkeys(gets + gives + serves))
