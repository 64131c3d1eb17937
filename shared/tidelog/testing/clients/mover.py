"""An operator that moves leaderships and replicas while faults strike. Its random numbers are a stream of their own,
so that those of the rest of a seed stay as they were.

It asks all controllers, does not wait, and often asks for the impossible. When the faults end it lets every server
lead again and asks for nothing more: what is in progress then must end (R11).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.types import PartitionState, TopicState
from tidelog.wire.messages import (
    CancelReassignment,
    DrainServer,
    GrowTopic,
    Message,
    Reassign,
    TransferLeader,
)

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

MOST_PARTITIONS = 4


class Mover:
    """The operator of a run with moves; it begins when topics exist. Subclasses make other requests."""

    name = "mover"
    pause_s = 0.12
    """The mean time in seconds between two requests."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self._rng = rng
        cluster.network.attach(self)
        cluster.loop.after(rng.uniform(0.8, 1.5), self._act)

    @property
    def done(self) -> bool:
        """Whether nothing that must not last is in force any more; here: no server is draining."""
        return not self._ends()

    def _act(self) -> None:
        """Make one request and schedule the next; after healing only ask for the end of what must not last."""
        if self.cluster.faults.healed:
            self._rest()
            return
        message = self._wish()
        if message is not None:
            self.cluster.count(f"wish {message.OP}")
            self._ask(message)
        self.cluster.loop.after(self._rng.expovariate(1 / self.pause_s), self._act)

    def _rest(self) -> None:
        """Ask for the end of what must not last, every 0.5 s."""
        for message in self._ends():
            self._ask(message)
        self.cluster.loop.after(0.5, self._rest)

    def _ends(self) -> list[Message]:
        """Return the requests that end what must not last: here the draining of servers."""
        servers = self.cluster.invariants.metadata.servers.values()
        return [DrainServer(server.node, drain=False) for server in servers if server.draining]

    def _ask(self, message: Message) -> None:
        """Send a request to all controllers."""
        for name in self.cluster.controllers:
            link = self.cluster.network.connect(self, name)
            link.send(self, Frame("request", 1, message))

    def _wish(self) -> Message | None:
        """Return a random request; None for none this time."""
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
        """Return random replicas for a partition: often as many as before, sometimes more or fewer."""
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

    def on_gone(self, name: str) -> None:
        """Do nothing: a client has no connections for datagrams."""

    def on_close(self, link: SimLink) -> None:
        """Forget a closed connection; see ``Process``."""
