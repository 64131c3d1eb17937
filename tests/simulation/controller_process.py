"""A simulated controller, and its storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.effects import Send
from tidelog.wire.messages import Message
from tidelog_controller.core.controller import Controller
from tidelog_controller.core.raft_log import Persist, Stored

from simulation.processes import SimProcess, describe
from simulation.sim_network import SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster


class RaftStore:
    """A controller's storage: what ``perform`` took is durable."""

    def __init__(self) -> None:
        self._stored = Stored()

    def load(self) -> Stored:
        """What a new life finds."""
        return Stored(self._stored.term, self._stored.voted_for, list(self._stored.entries))

    def perform(self, persist: Persist) -> None:
        """Make it durable."""
        stored = self._stored
        stored.term, stored.voted_for = persist.term, persist.voted_for
        if persist.truncate_from is not None:
            del stored.entries[persist.truncate_from - 1 :]
        for entry in persist.entries:
            assert entry.index == len(stored.entries) + 1, (entry.index, len(stored.entries))
            stored.entries.append(entry)


class ControllerProcess(SimProcess):
    """A controller."""

    core: Controller

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.store = RaftStore()
        self._performers |= {Persist: self._persist, Send: self._send}

    def begin(self) -> None:
        cluster = self.cluster
        peers = {name: f"sim://{name}" for name in cluster.controllers}
        self.core = Controller(
            self.name,
            peers,
            cluster.name,
            cluster.controller_settings,
            self.store.load(),
            cluster.core_rng(self.name, self.life),
            self.loop.now,
        )
        self._rearm()

    def tick(self) -> Sequence[Any]:
        return self.core.on_tick(self.loop.now, wall_ms=self.wall_ms())

    def on_message(self, link: SimLink, id: int | None, message: Any) -> None:
        self.submit(
            describe(message, link.other(self.name)) if self.loop.tracing else "",
            lambda: self.core.on_request(link.number, id, message, self.loop.now, wall_ms=self.wall_ms()),
        )

    def on_datagram(self, sender: str, message: Message) -> None:
        self.submit(
            describe(message, sender) if self.loop.tracing else "",
            lambda: self.core.on_message(sender, message, self.loop.now, wall_ms=self.wall_ms()),
        )

    def _persist(self, effect: Persist) -> None:
        self.store.perform(effect)
        stall = self.cluster.faults.disk_stall(self)
        if stall:
            self.freeze(stall)

    def _send(self, effect: Send) -> None:
        self.cluster.invariants.on_send(self, effect)
        self.network.datagram(self.name, effect.to, effect.message)
