"""An operator who moves leaderships and replicas about while faults strike: with dice of its own, so that the other
dice of a seed throw what they threw before.

It asks all controllers, does not wait, and often asks what cannot be. When the faults end it lets every server lead
again and asks no more: what is under way then must come to an end (R11)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidelog.types import PartitionState, TopicState
from tidelog.wire.messages import (
    CancelReassignment,
    DrainServer,
    GrowTopic,
    Message,
    Reassign,
    TransferLeader,
)

from simulation.world.network import Frame, SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster

MOST_PARTITIONS = 4


class Mover:
    """Begins when there are topics."""

    name = "mover"
    pause_s = 0.12
    """Between two wishes, on average."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self._rng = rng
        cluster.network.attach(self)
        cluster.loop.after(rng.uniform(0.8, 1.5), self._act)

    @property
    def done(self) -> bool:
        """Every server may lead again."""
        return not self._ends()

    def _act(self) -> None:
        if self.cluster.faults.healed:
            self._rest()
            return
        message = self._wish()
        if message is not None:
            self.cluster.count(f"wish {message.OP}")
            self._ask(message)
        self.cluster.loop.after(self._rng.expovariate(1 / self.pause_s), self._act)

    def _rest(self) -> None:
        """Ask for the end of what must not last, until it is so."""
        for message in self._ends():
            self._ask(message)
        self.cluster.loop.after(0.5, self._rest)

    def _ends(self) -> list[Message]:
        """Nobody is drained any more."""
        servers = self.cluster.invariants.metadata.servers.values()
        return [DrainServer(server.node, drain=False) for server in servers if server.draining]

    def _ask(self, message: Message) -> None:
        for name in self.cluster.controllers:
            link = self.cluster.network.connect(self, name)
            link.send(self, Frame("request", 1, message))

    def _wish(self) -> Message | None:
        rng, topics = self._rng, list(self.cluster.invariants.metadata.topics.values())
        if not topics:
            return None
        topic = topics[rng.randrange(len(topics))]
        number = rng.randrange(len(topic.partitions))
        partition = topic.partitions[number]
        kind = rng.choice(("transfer", "transfer", "reassign", "reassign", "cancel", "drain", "grow"))
        if kind == "transfer":
            return TransferLeader(topic.name, number, rng.choice(partition.replicas))
        if kind == "reassign":
            return Reassign(topic.name, number, self._replicas(topic, partition))
        if kind == "cancel":
            return CancelReassignment(topic.name, number)
        if kind == "drain":
            return DrainServer(rng.choice(self.cluster.replicas), rng.random() < 0.5)
        if len(topic.partitions) < MOST_PARTITIONS and rng.random() < 0.3:
            return GrowTopic(topic.name, len(topic.partitions) + 1)
        return None

    def _replicas(self, topic: TopicState, partition: PartitionState) -> tuple[str, ...]:
        """Often one other; sometimes more, fewer, or all others."""
        servers = list(self.cluster.replicas)
        self._rng.shuffle(servers)
        least = topic.config.min_insync_replicas
        count = self._rng.choice(
            (len(partition.replicas), len(partition.replicas), self._rng.randint(1, len(servers)))
        )
        return tuple(servers[: max(least, min(count, len(servers)))])

    def on_accept(self, link: SimLink) -> None:
        """Accept a connection; see ``Process``."""
        raise AssertionError("nobody connects to an operator")

    def on_datagram(self, sender: str, message: Message) -> None:
        """Take a one-way message; see ``Process``."""
        raise AssertionError("an operator takes no datagrams")

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        """Take a message of a connection; see ``Process``."""
        self.cluster.count("wishes granted" if not isinstance(frame.body, Exception) else "wishes refused")

    def on_close(self, link: SimLink) -> None:
        """Forget a closed connection; see ``Process``."""
