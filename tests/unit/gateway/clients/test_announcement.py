"""What a gateway announces to the active controller, how often, and what it learns of the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from support.link_peers import rest
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.wire.messages import AnnounceGateway, GatewayInfo, GatewaysAnswer, Message
from tidelog_gateway.clients.announcement import ANNOUNCE_S, CALL_TIMEOUT_S, announce
from tidelog_gateway.cluster_view import ClusterView

G1, G2 = GatewayInfo("g1", "ws://g1"), GatewayInfo("g2", "ws://g2")


class Controllers:
    """Answer announcements with ``outcome``; ``urls``: what was announced, and when."""

    def __init__(self) -> None:
        self.outcome: TidelogError | GatewaysAnswer = GatewaysAnswer((G1,))
        self.urls: list[tuple[float, str]] = []

    async def call(self, request: Message, timeout_s: float) -> Message:
        assert isinstance(request, AnnounceGateway) and timeout_s == CALL_TIMEOUT_S
        self.urls.append((trio.current_time(), request.url))
        if isinstance(self.outcome, TidelogError):
            raise self.outcome
        return self.outcome


@asynccontextmanager
async def announcing(url: str) -> AsyncIterator[tuple[Controllers, ClusterView, trio.Event]]:
    controllers, view, ending = Controllers(), ClusterView(), trio.Event()
    shell: Any = SimpleNamespace(controllers=controllers, cluster=view)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announce, shell, url, ending)
        await trio.testing.wait_all_tasks_blocked()
        yield controllers, view, ending
        nursery.cancel_scope.cancel()


async def test_the_url_is_announced_again_and_again_and_the_gateways_are_kept(autojump_clock) -> None:
    async with announcing("ws://g1") as (controllers, view, _):
        assert view.gateways == (G1,)
        controllers.outcome = GatewaysAnswer((G1, G2))
        await rest(2.5 * ANNOUNCE_S)
        assert controllers.urls == [(n * ANNOUNCE_S, "ws://g1") for n in range(3)]
        assert view.gateways == (G1, G2)


async def test_a_gateway_without_a_url_learns_of_the_others(autojump_clock) -> None:
    async with announcing("") as (controllers, view, _):
        assert controllers.urls == [(0.0, "")] and view.gateways == (G1,)


async def test_while_no_controller_answers_the_list_stays(autojump_clock) -> None:
    async with announcing("ws://g1") as (controllers, view, _):
        controllers.outcome = Unreachable("no active controller was found")
        await rest(3.5 * ANNOUNCE_S)
        assert len(controllers.urls) == 4 and view.gateways == (G1,)


async def test_with_a_controller_of_an_earlier_release_there_is_none_until_it_is_upgraded(autojump_clock) -> None:
    controllers, view = Controllers(), ClusterView()
    controllers.outcome = refuse("UNSUPPORTED", "no such operation: announce_gateway")
    shell: Any = SimpleNamespace(controllers=controllers, cluster=view)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announce, shell, "ws://g1", trio.Event())
        await rest(1.5 * ANNOUNCE_S)
        assert len(controllers.urls) == 2 and view.gateways == ()
        controllers.outcome = GatewaysAnswer((G1, G2))
        await rest(ANNOUNCE_S)
        assert view.gateways == (G1, G2)
        nursery.cancel_scope.cancel()


async def test_a_gateway_that_is_ending_withdraws_its_url_at_once(autojump_clock) -> None:
    async with announcing("ws://g1") as (controllers, _, ending):
        ending.set()
        await rest(10 * ANNOUNCE_S)
        assert controllers.urls == [(0.0, "ws://g1"), (0.0, "")]
