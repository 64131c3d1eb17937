"""A client goes on at gateways that the cluster names: when it learns of them, and as whom it goes there. Tests
``client/connection.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import tidelog
import trio
import trio.testing
from support.link_peers import rest
from tidelog.client.connection import DISCOVER_S
from tidelog.client.log import open_log
from tidelog.client.trio_loop import TrioLoop
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import GatewayInfo, Hello, Message, Metadata, MetadataAnswer, Welcome

A, B, C = "ws://a", "ws://b", "ws://c"


class FakeLink:
    """A link to a gateway that names ``gateways``, until ``end``."""

    error: TidelogError | None = None
    peer = Welcome(1, "ours", "g", "gateway", 1 << 20, 100)

    def __init__(self, network: Network) -> None:
        self._network = network
        self._ended = trio.Event()

    @property
    def closed(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        """Break the link."""
        self._ended.set()

    async def wait_closed(self) -> None:
        await self._ended.wait()

    async def call(self, request: Message, _timeout_s: float) -> Message:
        if self.closed:
            raise Unreachable("the link has ended")
        assert isinstance(request, Metadata)
        self._network.asked += 1
        return MetadataAnswer("ours", 1, (), (), tuple(GatewayInfo(url, url) for url in self._network.named))

    def start_call(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> None:
        async def ask() -> None:
            done(await self.call(request, timeout_s))

        self._network.nursery.start_soon(ask)


class Network(TrioLoop):
    """Gateways that name ``named``. ``refused`` has the errors of those that let nobody in; ``tried`` each address
    that was tried, with the cluster that the client asked for."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(WebSocketTransport())
        self.nursery = nursery
        self.named: list[str] = []
        self.refused: dict[str, TidelogError] = {}
        self.tried: list[tuple[str, str]] = []
        self.asked = 0
        self.link: FakeLink

    @asynccontextmanager
    async def open_link(self, url: str, hello: Hello, _handler: object) -> AsyncIterator[FakeLink]:  # type: ignore[override]
        self.tried.append((url, hello.cluster))
        await trio.lowlevel.checkpoint()
        if url in self.refused:
            raise self.refused[url]
        self.link = FakeLink(self)
        yield self.link

    def lose(self, error: TidelogError) -> None:
        """End the client's link; its gateway answers with this error from now on."""
        self.refused[self.tried[-1][0]] = error
        self.tried.clear()
        self.link.end()


@asynccontextmanager
async def connected(*urls: str, discover: bool = True) -> AsyncIterator[tuple[tidelog.Log, Network]]:
    async with trio.open_nursery() as nursery:
        network = Network(nursery)
        async with open_log(urls, network, 3.0, 3.0, "", "me", discover=discover) as log:
            yield log, network


GONE = Unreachable("it is down")


async def test_a_found_gateway_must_be_of_the_cluster_that_has_named_it(autojump_clock) -> None:
    async with connected(A) as (log, network):
        network.named = [A, B]
        await log.topics.list()
        network.lose(GONE)
        await log.topics.list()
        assert network.tried == [(A, ""), (B, "ours")]


async def test_where_gateways_name_none_as_of_old_the_given_one_is_tried_again(autojump_clock) -> None:
    async with connected(A) as (log, network):
        await log.topics.list()
        network.lose(GONE)
        with pytest.raises(Unreachable):
            await log.topics.list()
        assert len(network.tried) > 3 and set(network.tried) == {(A, "")}


async def test_what_an_earlier_gateway_named_holds_where_the_next_one_names_none(autojump_clock) -> None:
    async with connected(A, C) as (log, network):
        network.named = [B]
        await log.topics.list()
        network.named = []
        network.lose(GONE)
        await log.topics.list()
        assert network.tried == [(C, "")]
        network.lose(GONE)
        await log.topics.list()
        assert network.tried == [(A, ""), (C, ""), (B, "ours")]


async def test_a_lost_link_begins_a_new_round(autojump_clock) -> None:
    async with connected(A, C) as (log, network):
        network.named = [B]
        await log.topics.list()
        network.refused[C] = GONE
        network.lose(GONE)
        await log.topics.list()
        assert network.tried == [(C, ""), (A, ""), (B, "ours")]


async def test_a_client_that_is_connected_asks_again_now_and_then(autojump_clock) -> None:
    async with connected(A) as (log, network):
        network.named = [B]
        await log.topics.list()
        network.named = [C]
        await rest(2.5 * DISCOVER_S)
        assert network.asked == 3
        network.lose(GONE)
        await log.topics.list()
        assert network.tried == [(A, ""), (C, "ours")]


async def test_without_discovery_it_asks_for_nothing_and_goes_nowhere_else(autojump_clock) -> None:
    async with connected(A, discover=False) as (log, network):
        network.named = [B]
        await log.topics.list()
        await rest(2.5 * DISCOVER_S)
        assert network.asked == 1
        network.lose(GONE)
        with pytest.raises(Unreachable):
            await log.topics.list()
        assert set(network.tried) == {(A, "")}


async def test_a_refusal_by_what_was_given_is_final_whatever_was_found(autojump_clock) -> None:
    async with connected(A) as (log, network):
        network.named = [B]
        await log.topics.list()
        network.refused[B] = GONE
        network.lose(refuse("UNAUTHENTICATED", "the token was revoked"))
        with pytest.raises(TidelogError, match="revoked"):
            await log.topics.list()
        assert trio.current_time() < 1.0


async def test_the_error_names_the_found_gateways_that_failed(autojump_clock) -> None:
    async with connected(A) as (log, network):
        network.named = [B]
        await log.topics.list()
        network.refused[B] = Unreachable("no route")
        network.lose(GONE)
        with pytest.raises(Unreachable, match=r"ws://a: it is down; ws://b: no route"):
            await log.topics.list()
