"""The servers that get the replicas of new partitions, and which of them is the preferred leader.

For each partition in turn its replicas are chosen one after the other: on the rack with the fewest of them so far
(what fails together should hold one copy; a server without a rack is one of its own), there on the server with the
fewest replicas of all, one that is not slow (``active/slow_servers.py``) first, by lot among equals. Then, among
those chosen, the preferred leader is one that is not being drained, of those the one that is it for the fewest
partitions, one that is not slow first, by lot among equals (Liftbridge chooses the first leader at random; here
chance only decides between equally loaded ones). It stands first; the others stand in the order in which they were
chosen, so that elections spread too. What is placed counts at once, so a topic of many partitions spreads by itself.

The choice is made once, by the active controller, before it proposes; the command holds the outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from tidelog.types import NodeId, TopicState

from tidelog_controller.metadata.state import MetadataState


class Random(Protocol):
    """The source of random numbers for placements, ids and secrets: ``random.SystemRandom``, or a generator with a
    seed in tests."""

    def random(self) -> float:
        """Return a random number from 0 up to, but not including, 1."""

    def getrandbits(self, k: int, /) -> int:
        """Return a random number of ``k`` bits."""


def racks_of(state: MetadataState) -> dict[NodeId, str]:
    """Return the rack of every registered server, by name. A server that has no rack is a rack of its own."""
    return {
        node: f"rack {server.rack}" if server.rack else f"server {node}" for node, server in state.servers.items()
    }


def candidates(state: MetadataState, replication_factor: int) -> list[NodeId]:
    """Return the live servers that may get new replicas. Servers that are being drained are among them only if there
    are fewer than ``replication_factor`` others."""
    live = [node for node in state.servers if state.is_live(node)]
    staying = [node for node in live if not state.servers[node].draining]
    return staying if len(staying) >= replication_factor else live


def placement_for(state: MetadataState, rng: Random, slow: Collection[NodeId]) -> Placement:
    """Return a placement that counts the load of all existing topics, and takes racks and draining servers from the
    metadata. ``slow`` are the servers to choose last among equals."""
    drained = [node for node, server in state.servers.items() if server.draining]
    return Placement(state.topics.values(), rng, racks_of(state), slow, drained)


class Placement:
    """The loads of the servers, counted from ``topics``, and the choice of replicas that evens them out. ``racks``
    has the rack of each server; one that is not named is a rack of its own. Among equals, servers in ``slow`` are
    chosen last. Servers in ``drained`` become preferred leaders only if no other can. A placement serves one
    command."""

    def __init__(
        self,
        topics: Iterable[TopicState],
        rng: Random,
        racks: Mapping[NodeId, str] | None = None,
        slow: Collection[NodeId] = (),
        drained: Collection[NodeId] = (),
    ) -> None:
        self._rng = rng
        self._racks = racks or {}
        self._slow = slow
        self._drained = drained
        self._replicas: dict[NodeId, int] = {}
        self._leaders: dict[NodeId, int] = {}
        for topic in topics:
            for partition in topic.partitions:
                self._count(partition.target or partition.replicas)

    def place(
        self, servers: Sequence[NodeId], partitions: int, replication_factor: int
    ) -> tuple[tuple[NodeId, ...], ...]:
        """Return the replicas of ``partitions`` new partitions: for each, ``replication_factor`` distinct servers of
        ``servers``, the preferred leader first. What is placed counts as load at once. Fails an assertion if there
        are fewer servers than replicas."""
        assert 1 <= replication_factor <= len(servers), "checked by the caller"
        return tuple(self._place_one(servers, replication_factor) for _ in range(partitions))

    def _place_one(self, servers: Sequence[NodeId], replication_factor: int) -> tuple[NodeId, ...]:
        """Return the replicas of one new partition, the preferred leader first, and count them as load."""
        chances = {node: self._rng.random() for node in servers}
        used: dict[str, int] = {}
        chosen: list[NodeId] = []

        def load(node: NodeId) -> tuple[int, int, bool, float]:
            return used.get(self._rack(node), 0), self._replicas.get(node, 0), node in self._slow, chances[node]

        def fitness(node: NodeId) -> tuple[bool, int, bool, float]:
            return node in self._drained, self._leaders.get(node, 0), node in self._slow, self._rng.random()

        while len(chosen) < replication_factor:
            node = min((node for node in servers if node not in chosen), key=load)
            chosen.append(node)
            used[self._rack(node)] = used.get(self._rack(node), 0) + 1
        preferred = min(chosen, key=fitness)
        replicas = (preferred, *(node for node in chosen if node != preferred))
        self._count(replicas)
        return replicas

    def _rack(self, node: NodeId) -> str:
        return self._racks.get(node, node)

    def _count(self, replicas: tuple[NodeId, ...]) -> None:
        for node in replicas:
            self._replicas[node] = self._replicas.get(node, 0) + 1
        self._leaders[replicas[0]] = self._leaders.get(replicas[0], 0) + 1
