"""A simulated controller, and its storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.effects import Send
from tidelog.wire.messages import Message
from tidelog_controller.core.consensus import AddressesChanged, MakeSnapshot
from tidelog_controller.core.controller import Controller
from tidelog_controller.core.machine import decode_state, encode_state
from tidelog_controller.core.raft_log import Persist, Stored, apply_persist

from simulation.processes import SimProcess, describe
from simulation.sim_network import SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster


class RaftStore:
    """A controller's storage: what ``perform`` took is durable."""

    def __init__(self, name: str, *, lost: bool = False) -> None:
        self.stored = Stored(store=name, lost=lost)

    def load(self) -> Stored:
        """What a new life finds."""
        return replace(self.stored, entries=list(self.stored.entries))

    def perform(self, persist: Persist) -> None:
        """Make it durable."""
        self.stored = apply_persist(self.stored, persist)

    @property
    def last_index(self) -> int:
        """The last entry that is durable."""
        return self.stored.base.index + len(self.stored.entries)


class ControllerProcess(SimProcess):
    """A controller."""

    core: Controller

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.store = RaftStore(f"store 1 of {name}")
        self._performers |= {Persist: self._persist, Send: self._send, MakeSnapshot: self._make_snapshot}
        self._performers[AddressesChanged] = lambda effect: None

    def begin(self) -> None:
        cluster = self.cluster
        founders = cluster.controllers[: cluster.options.controllers]
        peers = {name: f"sim://{name}" for name in dict.fromkeys((*founders, self.name))}
        self.core = Controller(
            self.name,
            peers,
            cluster.name,
            cluster.controller_settings,
            self.store.load(),
            cluster.core_rng(self.name, self.life),
            self.loop.now,
            join=self.name not in founders,
        )
        self._rearm()

    def lose_store(self) -> None:
        """The next life finds an empty disk."""
        _, number, _, name = self.store.stored.store.split(" ")
        self.store = RaftStore(f"store {int(number) + 1} of {name}")

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

    def on_gone(self, name: str) -> None:
        self.submit(f"{name} is gone", lambda: self.core.on_peer_lost(name, self.loop.now))

    def _persist(self, effect: Persist) -> None:
        self.store.perform(effect)
        stall = self.cluster.faults.disk_stall(self)
        if stall:
            self.freeze(stall)

    def _send(self, effect: Send) -> None:
        self.cluster.invariants.on_send(self, effect)
        self.network.datagram(self.name, effect.to, effect.message)

    def _make_snapshot(self, effect: MakeSnapshot) -> None:
        data = encode_state(effect.state)
        assert decode_state(data) == effect.state, "a snapshot is not the state"
        self.cluster.count("snapshots taken")
        self.submit("snapshot", lambda: self.core.on_snapshot(effect.index, data, self.loop.now))
