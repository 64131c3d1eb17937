"""The controller's trio shell: brings inputs to the core, and performs what the core decides.

One task owns the core (``ControllerShell.run``). Links put inputs into its inbox and never wait. When the inbox is
full, requests are refused with ``OVERLOADED``; messages of Raft are dropped, since Raft sends them again.

An error of the storage ends the process: the core is then ahead of the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio
from tidelog.errors import ProtocolError, TidelogError, refuse
from tidelog.feature_levels import Levels
from tidelog.net.link import Link, burst
from tidelog.net.peers import Peers
from tidelog.net.transport import Transport
from tidelog.runtime.shell import AcceptedLinks, EventLog, Wakeup, refuse_other_sender
from tidelog.sansio.effects import Answer, Call, Event, Post, Send
from tidelog.types import NodeId
from tidelog.wire.messages import AskedRequest, Hello, Message, QuorumAnswer

from tidelog_controller.active.timeline_writer import ToServer
from tidelog_controller.controller import Controller, ControllerEffect
from tidelog_controller.counters import PersistCounts
from tidelog_controller.metadata.rules.feature_level import Linked
from tidelog_controller.metadata.state_machine import encode_state
from tidelog_controller.metadata_log import AddressesChanged, MakeSnapshot
from tidelog_controller.raft.effects import Persist
from tidelog_controller.raft.log import Entry

INBOX = 4096
"""Number of requests and Raft messages that may wait. Other inputs, such as closed links, are always accepted."""
TURN_INPUTS = 256
"""Number of inputs that one turn of ``ControllerShell.run`` handles at most."""
PROTOCOL_FAULT = 1002
"""The WebSocket close code for a peer that sent a message that no correct controller sends."""

Input = Callable[[float, int], Sequence[ControllerEffect]]
"""One input of the core. ``ControllerShell.run`` calls it with the monotonic time in seconds and the wall clock in
milliseconds, and performs the effects that it returns."""


class Storage(Protocol):
    """The interface of the store in which Raft's term, vote, log and snapshot are durable."""

    def perform(self, persist: Persist) -> None:
        """Write a change to the store; blocks until it is durable. An error is final: the process must end."""


class ControllerShell:
    """The I/O of one controller: its links, its store, its timer and the thread that encodes snapshots. It passes
    inputs to the core, a ``Controller``, and performs the effects that the core returns. The server runs ``run``,
    ``run_snapshots``, ``peers.run`` and ``servers.run`` as tasks, until the process ends."""

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
        self.links: AcceptedLinks[Link] = AcceptedLinks()
        self.log = EventLog(node=core.node_id)
        self._up: dict[NodeId, None] = {}
        self._inbox: deque[tuple[Link | None, Input]] = deque()
        self.counts = PersistCounts()
        self._wakeup = Wakeup()
        self._turned = trio.Event()
        self._snapshots, self._wanted_snapshots = trio.open_memory_channel[MakeSnapshot](1)

    def now(self) -> float:
        """Return the present time of the core's monotonic clock, in seconds."""
        return self._clock()

    @property
    def inputs_waiting(self) -> int:
        """Return the number of inputs in the inbox that are not handled yet."""
        return len(self._inbox)

    # --- inputs ------------------------------------------------------------------------------------------

    def on_open(self, link: Link) -> None:
        """Keep an accepted link, so that answers can be sent over it. If the peer is a service (no client), also
        report its role, name and feature levels to the core."""
        self.links.add(link)
        peer = link.peer
        if isinstance(peer, Hello) and peer.role != "client":
            levels = Levels(peer.level_min, peer.level_max)
            self._put(None, partial(self._on_greeting, link.source, Linked(peer.role, peer.node, levels)))

    def _on_greeting(self, source: int, linked: Linked, now: float, wall_ms: int) -> Sequence[ControllerEffect]:
        self.core.features.on_link(source, linked)
        return []

    def on_close(self, link: Link) -> None:
        """Forget an accepted link that has closed, and report that to the core."""
        self.links.remove(link)
        self._put(None, lambda now, wall_ms: self.core.on_link_closed(link.source, now))

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """Put a message that came over an accepted link into the inbox, and return at once. Raises ``TidelogError``
        if the message names another sender than the peer of the link (this is recorded as a refusal), or
        ``OVERLOADED`` if the inbox is full. A message of Raft is dropped when the inbox is full."""
        peer = link.peer
        if peer.role == "controller" and id is None:
            self._on_controller_message(link, peer.node, message)
        elif (error := refuse_other_sender(peer, getattr(message, "node", peer.node))) is not None:
            self._put_refused(message, error, peer.node)
            raise error
        elif len(self._inbox) >= INBOX:
            raise refuse("OVERLOADED", f"{len(self._inbox)} messages wait at {self.core.node_id}")
        else:
            self._put(link, lambda now, wall_ms: self._on_request(link, id, message, now, wall_ms))

    def _on_request(
        self, link: Link, id: int | None, message: Message, now: float, wall_ms: int
    ) -> Sequence[ControllerEffect]:
        """Pass a request to the core and return the effects, with the gateways added to an answer that needs
        them."""
        effects = self.core.on_request(link.source, id, message, now, wall_ms=wall_ms, peer=link.peer.node)
        return [self._with_gateways(effect) for effect in effects]

    def _with_gateways(self, effect: ControllerEffect) -> ControllerEffect:
        """Return a copy of an effect that answers ``DescribeQuorum``, with the names of the connected gateways, which
        the core does not know, and the URLs that they have announced. Return any other effect unchanged."""
        if not (isinstance(effect, Answer) and isinstance(effect.message, QuorumAnswer)):
            return effect
        gateways = sorted({link.peer.node for link in self.links if link.peer.role == "gateway"})
        urls = self.core.gateways.urls
        return replace(effect, message=replace(effect.message, gateways=tuple(gateways), gateway_urls=urls))

    def on_refused(self, link: Link, message: Message, error: TidelogError) -> None:
        """Put a refusal into the inbox, for the timeline: the link has refused a hello, or a message of a kind that
        the role of its peer may not send. The principal that the message names is removed before, since only gateways
        may name one. Dropped if the inbox is full."""
        peer = message if isinstance(message, Hello) else link.peer
        if isinstance(message, AskedRequest):
            message = replace(message, asker="")  # gateways alone may name the principal that asks
        self._put_refused(message, error, f"{peer.node} at {link.remote}")

    def _put_refused(self, message: Message, error: TidelogError, peer: str) -> None:
        if len(self._inbox) < INBOX:
            self._put(None, partial(self._on_refused, message, error, peer))

    def _on_refused(
        self, message: Message, error: TidelogError, peer: str, now: float, wall_ms: int
    ) -> Sequence[ControllerEffect]:
        self.core.on_refused(message, error, now, wall_ms=wall_ms, peer=peer)
        return []

    def _on_peer_message(self, node: NodeId, message: Message) -> None:
        """Put a message of Raft that came over a link which this controller opened into the inbox. A protocol fault
        in it closes no link."""
        self._on_controller_message(None, node, message)

    def _on_controller_message(self, link: Link | None, node: NodeId, message: Message) -> None:
        """Put a message of Raft into the inbox. It is dropped if the inbox is full, since Raft sends it again."""
        if len(self._inbox) < INBOX:
            self._put(link, lambda now, wall_ms: self.core.on_message(node, message, now))

    def _send(self, node: NodeId, message: Message) -> None:
        """Send a message of Raft to the controller ``node``; the message may be lost. If the address of the receiver
        is unknown, because it joined the group after the last entry of this log, the message goes over a link that
        the receiver opened, if there is one."""
        if self.peers.knows(node):
            self.peers.post(node, message)
            return
        for link in self.links:
            if (link.peer.role, link.peer.node) == ("controller", node):
                link.post(message)

    def _on_up(self, node: NodeId) -> None:
        self._up[node] = None
        self.log.event("peer_up", peer=node)

    def _on_down(self, node: NodeId) -> None:
        if node in self._up:
            del self._up[node]
            self.log.event("peer_down", peer=node)
            self._put(None, lambda now, wall_ms: self.core.on_peer_lost(node, now))

    def _on_trouble(self, node: NodeId, error: TidelogError) -> None:
        self.log.event("peer_failed", peer=node, error=str(error))

    def _on_server_message(self, node: NodeId, message: Message) -> None:
        self._put(None, lambda now, wall_ms: self.core.on_server_message(node, message, now))

    def _on_server_down(self, node: NodeId) -> None:
        self._put(None, lambda now, wall_ms: self.core.on_server_down(node, now))

    def _on_server_answer(self, token: int, answer: Message | TidelogError) -> None:
        self._put(None, lambda now, wall_ms: self.core.on_server_answer(token, answer, now))

    def _put(self, link: Link | None, step: Input) -> None:
        """Append an input to the inbox and wake the task that runs ``run``. ``link`` is closed if the input turns out
        to be a protocol fault."""
        self._inbox.append((link, step))
        self._wakeup.wake()

    # --- the owner ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the core until cancelled: handle the inputs in the inbox and the timer, make changes durable, then
        perform the other effects. An error of the store ends this task, and so the process.

        An inbox with one owner is right for a controller because every decision must be on the disk before others
        learn of it, and writing to the disk takes a thread. While the thread writes, inputs gather. The next turn
        handles up to ``TURN_INPUTS`` of them and makes them durable in one transaction, so that a burst of proposals
        costs one sync. Making a change durable earlier than necessary is always safe.

        Inputs are handled before the timer. After a pause of the whole process, the heartbeats that wait in the
        sockets thus count before the sessions that they keep alive are checked."""
        deadline = self.core.deadline()
        while True:
            await self._wait(deadline)
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
                deadline = self.core.deadline()
            await self._perform(effects)
            self._turned.set()

    async def _wait(self, deadline: float | None) -> None:
        """Wait until an input comes or ``deadline`` (seconds of the core's clock) is reached. Lets other tasks run in
        any case. When the deadline is reached, the readers of all links run once more, so that inputs are handled
        before the timer."""
        if not self._inbox:
            self._wakeup.clear()  # earlier inputs have been handled
            await self._wakeup.sleep(deadline)
            if self._clock() < self._wakeup.deadline:
                return
        await trio.lowlevel.checkpoint()

    def _on_fault(self, link: Link | None, error: ProtocolError) -> None:
        """Log that a peer sent a message that no correct controller sends, and close ``link``, over which it came,
        unless that is None."""
        self.log.event("protocol_fault", peer="" if link is None else link.peer.node, error=error.message)
        if link is not None:
            link.close(PROTOCOL_FAULT, error.message)

    async def _perform(self, effects: list[ControllerEffect]) -> None:
        """Make all ``Persist`` effects durable in one transaction, in a thread, and wait for it. Then perform the
        other effects in order. Messages to the same process leave together, at the end."""
        persist = merge(effect for effect in effects if isinstance(effect, Persist))
        if persist is not None:
            began = self._clock()
            await trio.to_thread.run_sync(self._storage.perform, persist)
            self.counts.persists.observe(self._clock() - began)
        with burst():
            for effect in effects:
                self._perform_one(effect)

    def _perform_one(self, effect: ControllerEffect) -> None:
        """Perform an effect that needs no wait: send a message or an answer, log, call a replica server, set
        addresses, or put a snapshot that is to be encoded into its queue. If the queue is full the snapshot is
        dropped, since Raft asks again."""
        match effect:
            case Send():
                self._send(effect.to, effect.message)
            case Answer() | Post():
                self.links.perform(effect)
            case Event():
                self.log.perform(effect)
            case Call():
                self._update_server_addresses()
                self.servers.start_call(
                    effect.to, effect.message, effect.timeout_s, partial(self._on_server_answer, effect.token)
                )
            case ToServer():
                self._update_server_addresses()
                self.servers.post(effect.to, effect.message)
            case AddressesChanged(urls):
                self.peers.set_addresses(urls)
            case MakeSnapshot():
                with suppress(trio.WouldBlock):  # an earlier one is being encoded: Raft asks again
                    self._snapshots.send_nowait(effect)

    def _update_server_addresses(self) -> None:
        """Give ``servers``, the links to the replica servers, the URLs with which these are registered now."""
        self.servers.set_addresses({node: server.url for node, server in self.core.state.servers.items()})

    async def run_snapshots(self) -> None:
        """Encode the snapshots that the core asks for, one after the other, in a thread, and put the bytes into the
        inbox. Runs until cancelled. Other inputs are handled meanwhile."""
        async for wanted in self._wanted_snapshots:
            data = await trio.to_thread.run_sync(encode_state, wanted.state)
            self.log.event("snapshot_taken", index=wanted.index, bytes=len(data))
            self._put(None, partial(self._on_snapshot, wanted.index, data))

    def _on_snapshot(self, index: int, data: bytes, now: float, wall_ms: int) -> Sequence[ControllerEffect]:
        return self.core.on_snapshot(index, data, now)

    async def stop(self) -> None:
        """Let the core stop serving and hand leadership over, and wait until another controller may take over or
        there is none. The wait has no limit of its own: the caller cancels it."""
        self._put(None, lambda now, wall_ms: self.core.on_stop(now))
        while not (self.core.metadata_log.stopping and self.core.metadata_log.may_stop):
            self._turned = trio.Event()
            await self._turned.wait()


def merge(persists: Iterable[Persist]) -> Persist | None:
    """Return one ``Persist`` effect that has the same result as the given ones, performed in their order; None if
    there are none."""
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
