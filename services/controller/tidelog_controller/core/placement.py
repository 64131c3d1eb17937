"""Where the replicas of a new topic go, and which of them is the preferred leader.

For each partition in turn: the servers with the fewest replicas, by lot among equals; then, among those chosen,
the one that is preferred leader of the fewest partitions, by lot among equals (Liftbridge chooses the first
leader at random; here chance only decides between equally loaded ones). The preferred leader stands first; the
order of the others is that of their being chosen, so that elections spread too. What is placed counts at once,
so a topic of many partitions spreads by itself.

The choice is made once, by the active controller, before it proposes; the command holds the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tidelog.types import NodeId, TopicState


class Dice(Protocol):
    """What is asked of ``random.Random``."""

    def random(self) -> float:
        """At least 0 and less than 1."""

    def getrandbits(self, k: int, /) -> int:
        """``k`` random bits."""


class Placement:
    """Loads of the servers, from the topics that there are."""

    def __init__(self, topics: Iterable[TopicState], dice: Dice) -> None:
        self._dice = dice
        self._replicas: dict[NodeId, int] = {}
        self._leaders: dict[NodeId, int] = {}
        for topic in topics:
            for partition in topic.partitions:
                self._count(partition.replicas)

    def place(
        self, servers: Sequence[NodeId], partitions: int, replication_factor: int
    ) -> tuple[tuple[NodeId, ...], ...]:
        """Replicas of each partition, on distinct ones of ``servers``, preferred leader first."""
        assert 1 <= replication_factor <= len(servers), "checked by the caller"
        return tuple(self._place_one(servers, replication_factor) for _ in range(partitions))

    def _place_one(self, servers: Sequence[NodeId], replication_factor: int) -> tuple[NodeId, ...]:
        chosen = self._sorted(servers, self._replicas)[:replication_factor]
        preferred = self._sorted(chosen, self._leaders)[0]
        replicas = (preferred, *(node for node in chosen if node != preferred))
        self._count(replicas)
        return replicas

    def _sorted(self, servers: Sequence[NodeId], load: dict[NodeId, int]) -> list[NodeId]:
        return sorted(servers, key=lambda node: (load.get(node, 0), self._dice.random()))

    def _count(self, replicas: tuple[NodeId, ...]) -> None:
        for node in replicas:
            self._replicas[node] = self._replicas.get(node, 0) + 1
        self._leaders[replicas[0]] = self._leaders.get(replicas[0], 0) + 1
