"""An operator that pauses partitions, makes them read-only and ends that, while faults strike. When the faults end it
ends all of it."""

from __future__ import annotations

from tidelog.testing.clients.mover import Mover
from tidelog.types import INTERNAL_PREFIX
from tidelog.wire.messages import Message, PauseTopic, SetReadOnly


class Suspender(Mover):
    """The operator of a run with pauses. Pauses end soon, since requests of clients during one test little."""

    name = "suspender"
    pause_s = 0.25

    @property
    def done(self) -> bool:
        """Whether no partition is paused or read-only."""
        return not self._ends()

    def _ends(self) -> list[Message]:
        ends: list[Message] = []
        for topic in self.cluster.invariants.metadata.topics.values():
            if any(partition.paused for partition in topic.partitions):
                ends.append(PauseTopic(topic.name, pause=False))
            if any(partition.read_only for partition in topic.partitions):
                ends.append(SetReadOnly(topic.name, read_only=False))
        return ends

    def _wish(self) -> Message | None:
        rng, topics = self._rng, list(self.cluster.invariants.metadata.topics.values())
        topics = [topic for topic in topics if not topic.name.startswith(INTERNAL_PREFIX)]
        ends = self._ends()
        if ends and rng.random() < 0.6:
            return rng.choice(ends)
        if not topics:
            return None
        topic = rng.choice(topics)
        numbers = rng.choice(((), (rng.randrange(len(topic.partitions)),)))
        return SetReadOnly(topic.name, numbers) if rng.random() < 0.3 else PauseTopic(topic.name, numbers)
