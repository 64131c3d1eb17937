"""The announcement of this gateway at the active controller, and the list of gateways that comes back.

A gateway announces the URL under which clients reach it, again and again, and gets the gateways that have done so.
Answers to ``metadata`` name them, so that a client can go on at another gateway when this one ends. While no
controller answers, or where the active one is of a release that does not know of announcements, the list stays as it
is. A gateway that is ending withdraws its URL first."""

from __future__ import annotations

from contextlib import suppress

import trio
from tidelog.errors import TidelogError
from tidelog.wire.messages import AnnounceGateway, GatewaysAnswer

from tidelog_gateway.shell import GatewayShell

ANNOUNCE_S = 2.0
"""Seconds between two announcements, after which a change of the gateways is known to all of them."""
CALL_TIMEOUT_S = 5.0


async def announce(shell: GatewayShell, url: str, ending: trio.Event) -> None:
    """Announce ``url`` every ``ANNOUNCE_S`` seconds ("": clients are not told of this gateway), and keep the gateways
    that the controller names in the cluster view. Once ``ending`` is set, withdraw the URL and return."""
    while True:
        ends = ending.is_set()
        with suppress(TidelogError):  # then what is known of the gateways stays in force
            answer = await shell.controllers.call(AnnounceGateway("" if ends else url), CALL_TIMEOUT_S)
            assert isinstance(answer, GatewaysAnswer)
            shell.cluster.gateways = answer.gateways
        if ends:
            return
        with trio.move_on_after(ANNOUNCE_S):
            await ending.wait()
