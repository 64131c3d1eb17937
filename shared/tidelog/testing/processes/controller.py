"""A simulated controller and its storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog_controller.active.timeline_writer import ToServer
from tidelog_controller.controller import Controller
from tidelog_controller.metadata.rules.feature_level import Linked
from tidelog_controller.metadata.state_machine import decode_state, encode_state
from tidelog_controller.metadata_log import AddressesChanged, MakeSnapshot
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import PersistentState

from tidelog.errors import TimedOut, Unreachable
from tidelog.sansio.effects import Call, Send
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.testing.processes.process import SimProcess, describe
from tidelog.wire.messages import AppendEntries, InstallSnapshot, Message

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster


class RaftStore:
    """The storage of a controller. Everything given to ``perform`` is durable until the disk rots.
    ``crash_points.store`` and ``controller/test_storage_damage.py`` show that the real storage keeps this and notices
    when it cannot."""

    def __init__(self, name: str, *, lost: bool = False) -> None:
        self.stored = PersistentState(store=name, lost=lost)

    def load(self) -> PersistentState:
        """Return the stored state that the next run of the controller starts from."""
        return replace(self.stored, entries=list(self.stored.entries))

    def perform(self, persist: Persist) -> None:
        """Apply a ``Persist`` effect durably."""
        self.stored = apply_persist(self.stored, persist)

    def copy(self) -> RaftStore:
        """Return an independent copy of the store as it is now, as an operator's backup."""
        copy = RaftStore(self.stored.store)
        copy.stored = self.load()
        return copy

    @property
    def last_index(self) -> int:
        """The index of the last durable entry."""
        return self.stored.base.index + len(self.stored.entries)


class ControllerProcess(SimProcess):
    """A simulated controller process."""

    core: Controller

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.store = RaftStore(f"store 1 of {name}")
        self._performers |= {Persist: self._persist, Send: self._send, MakeSnapshot: self._make_snapshot}
        self._performers |= {AddressesChanged: lambda effect: None, Call: self._call, ToServer: self._send_to_server}
        self._newest: RaftStore | None = None
        """The store that an old copy replaced; kept until the controller has recognised the copy as old, or a leader
        has shown that nothing is missing."""
        self._servers: dict[str, SimLink] = {}
        self._calls: dict[int, SimLink] = {}
        """The link of each open request to a replica server, by token."""

    def start(self) -> None:
        super().start()
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
            levels=self.levels,
        )
        self._rearm()

    def stop(self, power: bool, in_mid_step: bool = False) -> None:
        super().stop(power, in_mid_step)
        self._servers.clear()
        self._calls.clear()

    def lose_store(self, *, damaged: bool = False) -> None:
        """Let the next run find an empty store, or with ``damaged`` a damaged one that it puts aside."""
        _, number, _, name = self.store.stored.store.split(" ")
        self.store = RaftStore(f"store {int(number) + 1} of {name}", lost=damaged)
        self._newest = None

    def put_back(self, copy: RaftStore) -> None:
        """Let the next run find an old copy of the store."""
        self.cluster.count("old stores put back")
        self._newest = self._newest or self.store
        self.store = copy

    @property
    def runs_on_an_old_copy(self) -> bool:
        """Whether the store may lack entries or votes that the controller has promised."""
        return self._newest is not None or self.store.stored.rolled_back

    def _may_hear(self, message: Message) -> bool:
        """Return whether a datagram may reach the core. A controller can only recognise that its store is an old copy
        if some member remembers more (decision 19). So the first message to an old copy is a heartbeat of the leader
        of the newest term. If that leader does not know what is missing, the operator puts the newest store back:
        nothing was lost then."""
        newest, stored = self._newest, self.store.stored
        if newest is None:
            return True
        if stored.rolled_back:
            self.cluster.count("old stores recognised")
            self._newest = None
            return True
        stores = [self.cluster.controller(name).store for name in self.cluster.controllers]
        newest_term = max(store.stored.term for store in (newest, *stores))
        if (
            not isinstance(message, AppendEntries | InstallSnapshot)
            or not message.acked
            or message.term < newest_term
        ):
            return False
        log = self.core.metadata_log.raft.log
        if any(row.store == stored.store and not log.has(row.index, row.term) for row in message.acked):
            return True
        if newest.last_index == log.last_index and newest.stored.entries[-1:] == stored.entries[-1:]:
            self.cluster.count("old stores that lack nothing")
            self._newest = None
            return True
        self.cluster.count("old stores that nobody knew")
        self.stop(False)
        self.store, self._newest = newest, None
        self.start()
        return False

    def tick(self) -> Sequence[Any]:
        return self.core.on_tick(self.loop.now, wall_ms=self.wall_ms())

    def on_accept(self, link: SimLink) -> None:
        super().on_accept(link)
        self._greet(link.number, "replica", link.other(self.name))

    def _greet(self, source: int, role: str, name: str) -> None:
        """Tell the core the role and feature levels of a peer, as its hello does. Clients send none here; other
        controllers, which send datagrams, count as greeting with each."""
        process = self.cluster.processes.get(name)
        if process is not None and self.running:
            self.core.features.on_link(source, Linked(role, name, process.levels))

    def on_message(self, link: SimLink, id: int | None, message: Any) -> None:
        self.submit(
            describe(message, link.other(self.name)) if self.loop.tracing else "",
            lambda: self.core.on_request(link.number, id, message, self.loop.now, wall_ms=self.wall_ms()),
        )

    def on_datagram(self, sender: str, message: Message) -> None:
        if not self._may_hear(message):
            return
        self._greet(-1 - self.cluster.controllers.index(sender), "controller", sender)
        self.submit(
            describe(message, sender) if self.loop.tracing else "",
            lambda: self.core.on_message(sender, message, self.loop.now),
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

    # --- replica servers ---------------------------------------------------------------------------------

    def _server(self, name: str) -> SimLink:
        link = self._servers.get(name)
        if link is None:
            link = self._servers[name] = self.network.connect(self, name)
        return link

    def _send_to_server(self, effect: ToServer) -> None:
        self._server(effect.to).send(self, Frame("post", None, effect.message))

    def _call(self, effect: Call) -> None:
        link = self._calls[effect.token] = self._server(effect.to)
        link.send(self, Frame("request", effect.token, effect.message))
        self.later(effect.timeout_s, lambda: self._answered(effect.token, TimedOut("no answer in time")))

    def _answered(self, token: int, answer: Message | Exception) -> None:
        """Give the core the answer to a request to a replica server; ignored if it was answered before."""
        if self._calls.pop(token, None) is not None:
            label = describe(answer) if self.loop.tracing else ""
            self.submit(label, lambda: self.core.on_server_answer(token, answer, self.loop.now))

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if self._servers.get(link.server_name) is not link:
            super().on_frame(link, frame)
        elif frame.kind == "answer":
            assert frame.id is not None
            self._answered(frame.id, frame.body)
        else:
            self._on_news(link.server_name, frame.body)

    def _on_news(self, name: str, message: Any) -> None:
        """Give the core a one-way message of a replica server."""
        label = describe(message, name) if self.loop.tracing else ""
        self.submit(label, lambda: self.core.on_server_message(name, message, self.loop.now))

    def on_close(self, link: SimLink) -> None:
        name = link.server_name
        if self._servers.get(name) is not link:
            super().on_close(link)
            return
        del self._servers[name]
        for token in [token for token, used in self._calls.items() if used is link]:
            self._answered(token, Unreachable(f"the link to {name} broke"))
        self.submit(f"server {name} down", lambda: self.core.on_server_down(name, self.loop.now))
