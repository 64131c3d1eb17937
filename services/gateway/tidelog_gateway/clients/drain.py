"""Orderly shutdown of a gateway: each link is closed when nothing of its client is in flight any more.

``leave`` closes the port, so that new clients connect to the next gateway at once. Connections being opened, new
batches and new requests are refused with ``OVERLOADED``, which clients retry: nothing of them was begun. Each link is
closed (1001, going away) as soon as the batches and requests that came over it before are answered. Its client
connects to the next gateway and repeats its unanswered requests and its subscriptions there.
"""

from __future__ import annotations

import structlog
import trio
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import GOING_AWAY

from tidelog_gateway.client_link import ClientLink
from tidelog_gateway.shell import GatewayShell


class Drain:
    """The orderly shutdown of a gateway. It does nothing until ``leave`` begins it; then it closes each client's link
    when no batch or request of the client is unanswered."""

    def __init__(self, shell: GatewayShell) -> None:
        self._shell = shell
        self.begun = trio.Event()
        """Set once draining has begun, so that the port is closed to new clients."""
        shell.on_settled = self._close_if_settled
        self._log = structlog.get_logger()

    def refuse_new(self) -> TidelogError | None:
        """Return the error ``OVERLOADED`` with which a new connection, batch or request is refused; None before
        draining has begun."""
        return refuse("OVERLOADED", "this gateway is ending: use another") if self.begun.is_set() else None

    async def leave(self) -> None:
        """Begin to drain, and return when the links of all clients are closed. The port closes, and new batches and
        requests are refused from now on. The links of idle clients are closed at once, those of the others when their
        last batch or request is answered."""
        self.begun.set()
        links = list(self._shell.links)
        self._log.info("leaving", clients=len(links))
        for link in links:
            self._close_if_settled(link)
        for link in links:
            await link.wait_closed()
        self._log.info("left")

    def _close_if_settled(self, link: ClientLink) -> None:
        """Close a client's link (going away) if draining has begun and no batch or request of the client is
        unanswered."""
        if self.begun.is_set() and not self._shell.owes(link):
            link.close(GOING_AWAY, "this gateway is ending: use another")
