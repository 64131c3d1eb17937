"""How a gateway ends in order: each client is let go when nothing of it is in flight any more, and goes to another.

From ``leave`` on the port is closed, so that newcomers find the next gateway at once. Whoever was about to come in,
new batches and new requests are refused with ``OVERLOADED``, which clients try again: nothing of them was begun. Each
link is closed (1001, going away) as soon as the batches and requests that came over it before are answered; its
client finds the next gateway and has its unanswered requests and its subscriptions there.
"""

from __future__ import annotations

import structlog
import trio
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import GOING_AWAY, Link

from tidelog_gateway.shell import GatewayShell


class Drain:
    """What the end of a gateway is for its clients."""

    def __init__(self, shell: GatewayShell) -> None:
        self._shell = shell
        self.begun = trio.Event()
        """The end has begun: the port is closed to newcomers."""
        shell.on_settled = self._close_if_settled
        self._log = structlog.get_logger()

    def refuse_new(self) -> TidelogError | None:
        """Why nothing new is taken; None before the end has begun."""
        return refuse("OVERLOADED", "this gateway is ending: use another") if self.begun.is_set() else None

    async def leave(self) -> None:
        """Begin to end, and wait until all clients are gone."""
        self.begun.set()
        links = self._shell.links
        self._log.info("leaving", clients=len(links))
        for link in links:
            self._close_if_settled(link)
        for link in links:
            await link.wait_closed()
        self._log.info("left")

    def _close_if_settled(self, link: Link) -> None:
        if self.begun.is_set() and not self._shell.owes(link):
            link.close(GOING_AWAY, "this gateway is ending: use another")
