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
"""Most requests and messages for one node that wait while its link is being opened."""
CONNECT_TIMEOUT_S = 2.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.02, 0.5
TRYING_S = 10.0
"""A node to which no connection was tried for this many seconds does not count as unreachable."""
PATIENCE = Patience(2.0, 2.0)
"""A server that is silent for this many seconds on an open link hangs, or its host is cut off: the link is closed."""

OnMessage = Callable[[NodeId, Message], None]
Answered = Callable[[Message | TidelogError], None]


@dataclass(slots=True, eq=False)
class _Peer:
    """A node, its address, its link and the messages that wait for the link."""

    node: NodeId
    url: str
    link: Link | None = None
    opening: bool = False
    trouble: str = ""
    """Text of the error with which the last attempt failed; "" once the link is open."""
    failing_since: float | None = None
    """When the first attempt failed since the link was open last, or since a pause of more than ``TRYING_S``; None:
    no attempt has failed since the link was open."""
    failed_at: float = 0.0
    """When the last attempt failed."""
    gone: bool = False
    """Whether the node has another address now, or none: events of this link are not reported any more."""
    waiting: deque[Callable[[Link | None], None]] = field(default_factory=deque)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Peers:
    """All outgoing links of a process to nodes of the cluster, one for each node. With ``keep`` links stay open and
    are opened again when they break; without it they are opened on demand. Methods may be called only while ``run``
    runs; after that every node counts as unreachable."""

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
        """Keep the links open until cancelled; then close all of them."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._over = True  # before the nursery closes: other tasks run while it does

    def set_addresses(self, urls: Mapping[NodeId, str]) -> None:
        """Replace the addresses of all nodes. For each node that is gone or has another address, the link is closed,
        waiting messages end as unreachable, and ``on_down`` is called. With ``keep`` links to new nodes are
        opened."""
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
        """Return whether the link to this node is open; False for an unknown node."""
        peer = self._peers.get(node)
        return peer is not None and peer.link is not None

    def patience_s(self) -> dict[NodeId, float]:
        """Return the seconds for which each node with an open link may be silent before its link is closed."""
        return {node: peer.link.patience_s for node, peer in self._peers.items() if peer.link is not None}

    def unreachable_s(self) -> dict[NodeId, float]:
        """Return for how many seconds the attempts to connect have failed, by node; only nodes with an attempt in the
        last ``TRYING_S`` seconds that are not connected."""
        now = trio.current_time()
        return {
            node: now - peer.failing_since
            for node, peer in self._peers.items()
            if peer.failing_since is not None and now - peer.failed_at <= TRYING_S
        }

    def post(self, node: NodeId, message: Message) -> None:
        """Send a one-way message to a node, without waiting. The message waits for a link that is being opened;
        without ``keep`` it opens the link. It is lost if the node has no address, cannot be reached, or too many
        messages wait."""
        peer = self._peers.get(node)
        if peer is None:
            return
        if peer.link is not None:
            peer.link.post(message)
        else:
            self._wait(peer, lambda link: link.post(message) if link is not None else None)

    def start_call(self, node: NodeId, request: Message, timeout_s: float, done: Answered) -> None:
        """Send a request to a node, without waiting. The request waits for a link that is being opened; without
        ``keep`` it opens the link. ``done`` is called exactly once with the answer or the error; with ``Unreachable``
        if the node has no address, cannot be reached, or too many requests wait."""
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
        """Call ``go`` with the node's link as soon as it is open, or with None if it cannot be opened. Opens the link
        if nothing opens it yet. Calls ``go(None)`` at once after the end of ``run``, between two attempts of
        ``keep``, and if too many wait."""
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
        """Open one node's link and wait until it ends; with ``keep`` again and again, with pauses that grow while it
        fails."""
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
        """Open one node's link, send the messages that wait for it, and wait until it ends. Return whether it opened.
        Calls ``on_up`` when it opens, ``on_down`` when it fails or ends, and ``on_trouble`` if it fails for a new
        reason. A server that has another node id than expected counts as a failure."""

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
                    peer.trouble, peer.failing_since = "", None
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
        now = trio.current_time()
        if peer.failing_since is None or now - peer.failed_at > TRYING_S:
            peer.failing_since = now
        peer.failed_at = now
        self._end(peer)
        return False

    def _end(self, peer: _Peer) -> None:
        """Mark the node's link as ended, end the messages that wait for it as unreachable, and call ``on_down``. Does
        nothing if the node is gone."""
        if peer.gone:
            return
        peer.link = None
        peer.opening = False
        while peer.waiting:
            peer.waiting.popleft()(None)
        self._on_down(peer.node)
