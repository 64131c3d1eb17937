"""Outgoing links of a service to named nodes, one for each node.

A link is opened on demand, or kept open (``keep``): then it is opened as soon as the node has an address, and opened
again after a pause when it breaks. Requests that are made while it is being opened wait for it, up to ``WAITING`` of
them. ``on_down`` is called at once when a connection is refused or breaks; calls without an answer end with
``Unreachable`` before that. ``on_trouble`` is called with the reason why a link did not open: once, until the reason
changes or the link opens. A node that is silent is pinged, and its link breaks when it does not answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from tidelog.errors import TidelogError, Unreachable
from tidelog.net.failure_detector import Patience
from tidelog.net.link import Link, connect_link
from tidelog.net.transport import Transport
from tidelog.types import NodeId
from tidelog.wire.messages import Hello, Message

WAITING = 1000
CONNECT_TIMEOUT_S = 2.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.02, 0.5
PATIENCE = Patience(2.0, 2.0)
"""A server that is silent for so long on an open link hangs, or its host is cut off: the link is closed."""

OnMessage = Callable[[NodeId, Message], None]
Answered = Callable[[Message | TidelogError], None]


@dataclass(slots=True, eq=False)
class _Peer:
    node: NodeId
    url: str
    link: Link | None = None
    opening: bool = False
    trouble: str = ""
    """Why the last try failed; "" once the link is open."""
    gone: bool = False
    """The node has another address now, or none: events of this link are not reported any more."""
    waiting: deque[Callable[[Link | None], None]] = field(default_factory=deque)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Peers:
    """All outgoing links of a process to named nodes. Methods may be called once ``run`` runs. When ``run`` has
    ended, as in a process that is ending, no node can be reached."""

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        *,
        on_message: OnMessage,
        on_up: Callable[[NodeId], None] = lambda _: None,
        on_down: Callable[[NodeId], None],
        on_trouble: Callable[[NodeId, TidelogError], None] = lambda _node, _error: None,
        keep: bool,
        patience: Patience = PATIENCE,
    ) -> None:
        self._transport = transport
        self._patience = patience
        self._hello = hello
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._on_trouble = on_trouble
        self._keep = keep
        self._peers: dict[NodeId, _Peer] = {}
        self._nursery: trio.Nursery | None = None
        self._over = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the links open until cancelled; then close all of them."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._over = True  # before the nursery closes: other tasks run while it does

    def set_addresses(self, urls: Mapping[NodeId, str]) -> None:
        """Replace the addresses of all nodes. Links to nodes that are gone or have another address are closed, and
        ``on_down`` is called for them. With ``keep`` links to new nodes are opened."""
        for node, peer in list(self._peers.items()):
            if urls.get(node) != peer.url:
                del self._peers[node]
                self._end(peer)  # before a link opens under the same name
                peer.gone = True
                peer.scope.cancel()
        for node, url in urls.items():
            if node not in self._peers:
                self._peers[node] = _Peer(node, url)
                if self._keep and not self._over:
                    self._open(self._peers[node])

    def knows(self, node: NodeId) -> bool:
        """Return whether the node has an address."""
        return node in self._peers

    def is_up(self, node: NodeId) -> bool:
        """Return whether the link to this node is open."""
        peer = self._peers.get(node)
        return peer is not None and peer.link is not None

    def patience_s(self) -> dict[NodeId, float]:
        """Return, for each node to which a link is open, the seconds for which it may be silent before the link is
        closed."""
        return {node: peer.link.patience_s for node, peer in self._peers.items() if peer.link is not None}

    def post(self, node: NodeId, message: Message) -> None:
        """Send a one-way message to a node, after opening the link if necessary. The message is lost if the node has
        no address or cannot be reached."""
        peer = self._peers.get(node)
        if peer is None:
            return
        if peer.link is not None:
            peer.link.post(message)
        else:
            self._wait(peer, lambda link: link.post(message) if link is not None else None)

    def start_call(self, node: NodeId, request: Message, timeout_s: float, done: Answered) -> None:
        """Send a request to a node, after opening the link if necessary. ``done`` is called exactly once with the
        answer or the error; with ``Unreachable`` if the node has no address or cannot be reached."""
        peer = self._peers.get(node)
        if peer is None:
            done(Unreachable(f"no address of {node} is known"))
        elif peer.link is not None:
            peer.link.start_call(request, timeout_s, done)
        else:

            def go(link: Link | None) -> None:
                if link is None:
                    done(Unreachable(f"{node} at {peer.url} cannot be reached"))
                else:
                    link.start_call(request, timeout_s, done)

            self._wait(peer, go)

    def _wait(self, peer: _Peer, go: Callable[[Link | None], None]) -> None:
        if self._over or (self._keep and not peer.opening) or len(peer.waiting) >= WAITING:
            go(None)
            return
        peer.waiting.append(go)
        if not peer.opening:
            self._open(peer)

    def _open(self, peer: _Peer) -> None:
        assert self._nursery is not None, "run() does not run"
        peer.opening = True
        peer.scope = trio.CancelScope()
        self._nursery.start_soon(self._hold, peer)

    async def _hold(self, peer: _Peer) -> None:
        """Open one node's link and wait until it ends; with ``keep`` again and again, with growing pauses."""
        pause_s = PAUSE_FIRST_S
        with peer.scope:
            while True:
                peer.opening = True
                if await self._hold_once(peer):
                    pause_s = PAUSE_FIRST_S
                if not self._keep:
                    break
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _hold_once(self, peer: _Peer) -> bool:
        """Open one node's link, send what waits for it, and wait until it ends. Return whether it opened. Failures
        are reported to ``on_down``, and new reasons to ``on_trouble``."""

        def handle(_link: Link, _id: int | None, message: Message) -> None:
            if not peer.gone:
                self._on_message(peer.node, message)

        try:
            with trio.move_on_after(CONNECT_TIMEOUT_S) as connecting:
                async with connect_link(self._transport, peer.url, self._hello, handle, self._patience) as link:
                    connecting.deadline = trio.current_time() + 1e9  # the limit is for opening it only
                    if peer.gone:
                        return False
                    if link.peer.node != peer.node:
                        raise Unreachable(f"{peer.url} is {link.peer.node}, not {peer.node}")
                    peer.link = link
                    peer.opening = False
                    peer.trouble = ""
                    self._on_up(peer.node)
                    while peer.waiting:
                        peer.waiting.popleft()(link)
                    try:
                        await link.wait_closed()
                    finally:
                        self._end(peer)  # at once: the closing of a silent connection takes a second
                    return True
        except TidelogError as error:  # refused, or another node than expected
            if not peer.gone and peer.trouble != str(error):
                peer.trouble = str(error)
                self._on_trouble(peer.node, error)
        self._end(peer)
        return False

    def _end(self, peer: _Peer) -> None:
        if peer.gone:
            return
        peer.link = None
        peer.opening = False
        while peer.waiting:
            peer.waiting.popleft()(None)
        self._on_down(peer.node)
