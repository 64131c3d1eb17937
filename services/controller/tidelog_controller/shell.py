"""The controller's trio side: one owner task performs what the core decides; links bring inputs to its inbox.

Links put inputs into a bounded inbox and never wait; when it is full, requests are refused with ``OVERLOADED`` and
Raft messages are lost, which Raft does not mind. The owner takes what is there in one turn, up to ``TURN_INPUTS``,
and makes everything durable in one transaction before it performs the other effects in their order. Being durable
earlier than need be is always safe, and a burst of proposals costs one fsync.

Inputs come before the timer: after a pause of the whole process the heartbeats that wait in the sockets count
before the sessions that they keep are judged. An error of the storage ends the process: the core is then ahead of
the disk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio
from tidelog.errors import ProtocolError, TidelogError, refuse
from tidelog.feature_levels import Levels
from tidelog.net.link import Link
from tidelog.net.peers import Peers
from tidelog.net.transport import Transport
from tidelog.runtime import logs
from tidelog.sansio.counters import LATENCIES_S, Histogram, count
from tidelog.sansio.effects import Answer, Call, Event, Post, Send
from tidelog.types import NodeId
from tidelog.wire.messages import AskedRequest, Hello, Message, QuorumAnswer

from tidelog_controller.active.timeline_writer import ToServer
from tidelog_controller.controller import Controller, ControllerEffect
from tidelog_controller.metadata.rules.feature_level import Linked
from tidelog_controller.metadata.state_machine import encode_state
from tidelog_controller.metadata_log import AddressesChanged, MakeSnapshot
from tidelog_controller.raft.log import Entry, Persist

INBOX = 4096
"""Inputs that wait at most; closed links come on top."""
TURN_INPUTS = 256
PROTOCOL_FAULT = 1002

Input = Callable[[float, int], Sequence[ControllerEffect]]
"""Called by the owner with now and the wall clock in ms."""


class Storage(Protocol):
    """Where Raft's term, vote and log are durable."""

    def perform(self, persist: Persist) -> None:
        """Returns when it is durable; an error is final."""


class ControllerShell:
    """Everything of one controller that lives while it serves. The owner runs ``run``, ``run_snapshots``, ``peers``
    and ``servers``."""

    def __init__(
        self,
        core: Controller,
        storage: Storage,
        transport: Transport,
        hello: Hello,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self.core = core
        self.peers = Peers(
            transport,
            hello,
            on_message=self._on_peer_message,
            on_up=self._on_up,
            on_down=self._on_down,
            on_trouble=self._on_trouble,
            keep=True,
        )
        self.servers = Peers(
            transport,
            hello,
            on_message=self._on_server_message,
            on_down=self._on_server_down,
            on_trouble=self._on_trouble,
            keep=False,
        )
        self._storage = storage
        self._clock = clock
        self._wall_ms = wall_ms
        self._links: dict[int, Link] = {}
        self._up: dict[NodeId, None] = {}
        self._inbox: deque[tuple[Link | None, Input]] = deque()
        self.events: dict[str, int] = {}
        """How often each event happened, for the metrics."""
        self.persists = Histogram(LATENCIES_S)
        """Seconds until what Raft must not forget was durable."""
        self._arrived = trio.Event()
        self._turned = trio.Event()
        self._snapshots, self._wanted_snapshots = trio.open_memory_channel[MakeSnapshot](1)

    def now(self) -> float:
        """The core's time."""
        return self._clock()

    @property
    def links(self) -> Iterable[Link]:
        """All accepted links."""
        return self._links.values()

    @property
    def inputs_waiting(self) -> int:
        """Inputs that the owner has not come to."""
        return len(self._inbox)

    # --- inputs ------------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        """A link was accepted."""
        self._links[link.source] = link
        peer = link.peer
        if isinstance(peer, Hello) and peer.role != "client":
            levels = Levels(peer.level_min, peer.level_max)
            self._put(None, partial(self._on_greeting, link.source, Linked(peer.role, peer.node, levels)))

    def _on_greeting(self, source: int, linked: Linked, now: float, wall_ms: int) -> Sequence[ControllerEffect]:
        self.core.features.on_link(source, linked)
        return []

    def on_close(self, link: Link) -> None:
        """An accepted link has ended."""
        del self._links[link.source]
        self._put(None, lambda now, wall_ms: self.core.on_link_closed(link.source, now))

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """A message over an accepted link, of a kind that its role may send."""
        peer = link.peer
        if peer.role == "controller" and id is None:
            self._on_controller_message(link, peer.node, message)
        elif peer.role == "replica" and getattr(message, "node", peer.node) != peer.node:
            error = refuse("FORBIDDEN", f"{peer.node} speaks for itself only")
            self._note_refused(message, error, peer.node)
            raise error
        elif len(self._inbox) >= INBOX:
            raise refuse("OVERLOADED", f"{len(self._inbox)} messages wait at {self.core.node_id}")
        else:
            self._put(link, lambda now, wall_ms: self._on_request(link, id, message, now, wall_ms))

    def _on_request(
        self, link: Link, id: int | None, message: Message, now: float, wall_ms: int
    ) -> Sequence[ControllerEffect]:
        effects = self.core.on_request(link.source, id, message, now, wall_ms=wall_ms, peer=link.peer.node)
        return [self._with_gateways(effect) for effect in effects]

    def _with_gateways(self, effect: ControllerEffect) -> ControllerEffect:
        """Who is connected the core does not know."""
        if not (isinstance(effect, Answer) and isinstance(effect.message, QuorumAnswer)):
            return effect
        gateways = sorted({link.peer.node for link in self._links.values() if link.peer.role == "gateway"})
        return replace(effect, message=replace(effect.message, gateways=tuple(gateways)))

    def on_refused(self, link: Link, message: Message, error: TidelogError) -> None:
        """A hello, or a message of a kind that the peer's role may not send, came no further than the link."""
        peer = message if isinstance(message, Hello) else link.peer
        if isinstance(message, AskedRequest):
            message = replace(message, asker="")  # only gateways are believed for whom they ask
        self._note_refused(message, error, f"{peer.node} at {link.remote}")

    def _note_refused(self, message: Message, error: TidelogError, peer: str) -> None:
        if len(self._inbox) < INBOX:
            self._put(None, partial(self._on_refused, message, error, peer))

    def _on_refused(
        self, message: Message, error: TidelogError, peer: str, now: float, wall_ms: int
    ) -> Sequence[ControllerEffect]:
        self.core.on_refused(message, error, now, wall_ms=wall_ms, peer=peer)
        return []

    def _on_peer_message(self, node: NodeId, message: Message) -> None:
        """Controllers send over links of their own, but for one that does not know where this one is."""
        self._on_controller_message(None, node, message)

    def _on_controller_message(self, link: Link | None, node: NodeId, message: Message) -> None:
        """One that finds no room is lost, as on a broken link: Raft sends again."""
        if len(self._inbox) < INBOX:
            self._put(link, lambda now, wall_ms: self.core.on_message(node, message, now))

    def _send(self, node: NodeId, message: Message) -> None:
        """To another controller. A leader that came into the group after what is known here, as behind an older
        snapshot, is answered all the same: over its own link."""
        if self.peers.knows(node):
            self.peers.post(node, message)
            return
        for link in self._links.values():
            if (link.peer.role, link.peer.node) == ("controller", node):
                link.post(message)

    def _on_up(self, node: NodeId) -> None:
        self._up[node] = None
        self._tell("peer_up", peer=node)

    def _on_down(self, node: NodeId) -> None:
        if node in self._up:
            del self._up[node]
            self._tell("peer_down", peer=node)
            self._put(None, lambda now, wall_ms: self.core.on_peer_lost(node, now))

    def _on_trouble(self, node: NodeId, error: TidelogError) -> None:
        self._tell("peer_failed", peer=node, error=str(error))

    def _on_server_message(self, node: NodeId, message: Message) -> None:
        self._put(None, lambda now, wall_ms: self.core.on_server_message(node, message, now))

    def _on_server_down(self, node: NodeId) -> None:
        self._put(None, lambda now, wall_ms: self.core.on_server_down(node, now))

    def _on_server_answer(self, token: int, answer: Message | TidelogError) -> None:
        self._put(None, lambda now, wall_ms: self.core.on_server_answer(token, answer, now))

    def _put(self, link: Link | None, step: Input) -> None:
        self._inbox.append((link, step))
        self._arrived.set()

    # --- the owner ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the core until cancelled."""
        while True:
            await self._wait()
            effects: list[ControllerEffect] = []
            for _ in range(min(len(self._inbox), TURN_INPUTS)):
                link, step = self._inbox.popleft()
                try:
                    effects += step(self._clock(), self._wall_ms())
                except ProtocolError as error:
                    self._on_fault(link, error)
            now, deadline = self._clock(), self.core.deadline()
            if deadline is not None and now >= deadline:
                effects += self.core.on_tick(now, wall_ms=self._wall_ms())
            await self._perform(effects)
            self._turned.set()

    async def _wait(self) -> None:
        """Until there is an input or the core's timer is due; other tasks always get a turn before."""
        if not self._inbox:
            deadline = self.core.deadline()
            self._arrived = trio.Event()
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await self._arrived.wait()
        await trio.lowlevel.checkpoint()

    def _on_fault(self, link: Link | None, error: ProtocolError) -> None:
        self._tell("protocol_fault", peer="" if link is None else link.peer.node, error=error.message)
        if link is not None:
            link.close(PROTOCOL_FAULT, error.message)

    async def _perform(self, effects: list[ControllerEffect]) -> None:
        persist = merge(effect for effect in effects if isinstance(effect, Persist))
        if persist is not None:
            began = self._clock()
            await trio.to_thread.run_sync(self._storage.perform, persist)
            self.persists.observe(self._clock() - began)
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.to, effect.message)
                case Answer():
                    if effect.source in self._links:
                        self._links[effect.source].answer(effect.id, effect.message)  # type: ignore[arg-type]
                case Post():
                    if effect.source in self._links:
                        self._links[effect.source].post(effect.message)
                case Event():
                    self._tell(effect.name, **effect.fields)
                case Call():
                    self._find_servers()
                    self.servers.start_call(
                        effect.to, effect.message, effect.timeout_s, partial(self._on_server_answer, effect.token)
                    )
                case ToServer():
                    self._find_servers()
                    self.servers.post(effect.to, effect.message)
                case AddressesChanged(urls):
                    self.peers.set_addresses(urls)
                case MakeSnapshot():
                    with suppress(trio.WouldBlock):  # busy with earlier ones: Raft will ask again
                        self._snapshots.send_nowait(effect)

    def _tell(self, name: str, /, **fields: object) -> None:
        count(self.events, name)
        logs.perform(Event(name, fields), node=self.core.node_id)

    def _find_servers(self) -> None:
        self.servers.set_addresses({node: server.url for node, server in self.core.state.servers.items()})

    async def run_snapshots(self) -> None:
        """Write snapshots down, one after the other, until cancelled: the owner goes on meanwhile."""
        async for wanted in self._wanted_snapshots:
            data = await trio.to_thread.run_sync(encode_state, wanted.state)
            self._tell("snapshot_taken", index=wanted.index, bytes=len(data))
            self._put(None, partial(self._on_snapshot, wanted.index, data))

    def _on_snapshot(self, index: int, data: bytes, now: float, wall_ms: int) -> Sequence[ControllerEffect]:
        return self.core.on_snapshot(index, data, now)

    async def stop(self) -> None:
        """Hand over what this controller leads, and return when it leads no more. The caller sets a limit."""
        self._put(None, lambda now, wall_ms: self.core.on_stop(now))
        while not (self.core.metadata_log.stopping and self.core.metadata_log.may_stop):
            self._turned = trio.Event()
            await self._turned.wait()


def merge(persists: Iterable[Persist]) -> Persist | None:
    """One change that leaves the disk as these do, one after the other; None for none."""
    merged: Persist | None = None
    for persist in persists:
        if merged is None:
            merged = persist
            continue
        cut = persist.truncate_from
        kept: tuple[Entry, ...] = merged.entries
        if cut is not None:
            kept = tuple(entry for entry in kept if entry.index < cut)
        cuts = [c for c in (merged.truncate_from, cut) if c is not None]
        merged = Persist(
            persist.term,
            persist.voted_for,
            min(cuts, default=None),
            kept + persist.entries,
            persist.base or merged.base,
            persist.snapshot or merged.snapshot,
            persist.rolled_back,
        )
    return merged
