"""An operator that upgrades the cluster while faults strike: it begins at feature level 1 with processes that support
no other, restarts each as one of the newer release, and then raises the level.

In most runs controllers come first and replica servers last, as docs/upgrade.md wants it, in others the order is
random. The operator asks for the new level all the time: a process that does not support it would end when it learns
of it, and fail the run. When the faults end before all are upgraded, the cluster stays at its level. If
it was raised already, while some servers had not registered yet, these are upgraded now: they are refused otherwise.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidelog.feature_levels import ALL, NEWEST, OLDEST, Levels
from tidelog.testing.clients.mover import Mover
from tidelog.wire.messages import Message, RaiseLevel

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.processes.process import SimProcess

OLD = Levels(OLDEST, OLDEST)
RESTART_S = 0.3


class Upgrader(Mover):
    """The operator of a run with an upgrade."""

    name = "upgrader"
    pause_s = 0.2

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        self._left = list(cluster.processes.values())
        if rng.random() < 0.4:
            rng.shuffle(self._left)
        for process in self._left:
            process.levels = OLD

    @property
    def done(self) -> bool:
        """Whether the level is raised, or some process does not support it."""
        return bool(self._left) or self.cluster.invariants.metadata.level == NEWEST

    def _rest(self) -> None:
        if self.cluster.invariants.metadata.level == NEWEST:
            while self._left:
                self._upgrade(self._left.pop(0))
        super()._rest()

    def _ends(self) -> list[Message]:
        return [] if self.done else [RaiseLevel(NEWEST)]

    def _wish(self) -> Message | None:
        if self._left and self._exists() and self._rng.random() < 0.6:
            self._upgrade(self._left.pop(0))
        return RaiseLevel(NEWEST)

    def _exists(self) -> bool:
        """Return whether a cluster exists that can be upgraded: if its first command came from a newer process, it
        begins at the newest level and the older processes stay out."""
        return bool(self.cluster.invariants.metadata.servers)

    def _upgrade(self, process: SimProcess) -> None:
        """Restart a process as one of the newer release."""
        self.cluster.count("processes upgraded")
        process.levels = ALL
        self.cluster.faults.kill(process, RESTART_S)
