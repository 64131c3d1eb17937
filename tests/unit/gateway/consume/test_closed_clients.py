"""Clients that close their connection while a gateway reads for them: nothing more is asked, and nothing is kept.
Tests ``tidelog_gateway/shell.py`` and ``consume/server_reads.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import trio
from tidelog.errors import TidelogError
from tidelog.net.link import PROTOCOL_VERSION, Link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import ClusterImage, PartitionState, ServerState, TopicState
from tidelog.wire.messages import Hello, Message, Read, ReadAnswer, Subscribe
from tidelog_gateway.consume.server_read_window import WindowSettings
from tidelog_gateway.consume.server_reads import ServerReads
from tidelog_gateway.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import RETRY_S, GatewayShell
from trio.testing import MockClock, wait_all_tasks_blocked

PARTITIONS = 8
Sent = tuple[Message, Callable[[Message | TidelogError], None]]


class Connection:
    """As much of a link as the shell asks for."""

    def __init__(self) -> None:
        self.source = 7
        self.closed = False
        self.heard: list[Message | TidelogError] = []

    def answer(self, id: int, message: Message | TidelogError) -> None:
        self.heard.append(message)

    def post(self, message: Message) -> None:
        self.heard.append(message)


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[GatewayShell, Link, list[Sent]]]:
    """A gateway with a client, and what it sends to the one leader of all partitions."""
    sent: list[Sent] = []

    def start_call(node: str, message: Message, timeout_s: float, done: Any) -> None:
        sent.append((message, done))

    async with trio.open_nursery() as nursery:
        settings = RouterSettings(), SubscriptionSettings()
        hello = Hello(PROTOCOL_VERSION, "gateway", "g1")
        shell = GatewayShell(WebSocketTransport(), hello, [], *settings, trio.current_time, nursery)
        state = PartitionState(("r1",), ("r1",), "r1", 1, 1)
        topics = (TopicState("t", "orders", partitions=(state,) * PARTITIONS),)
        shell.cluster.update(ClusterImage(1, "c", (ServerState("r1", "ws://r1", 1, False),), topics))
        shell.reads = ServerReads(start_call, shell.cluster, WindowSettings(), trio.current_time)
        link = cast(Link, Connection())
        shell.on_open(link, "ann")
        yield shell, link, sent
        nursery.cancel_scope.cancel()


async def all_answered(sent: list[Sent]) -> int:
    """Answer what was sent, and what is sent then; how much that was."""
    count = 0
    while sent:
        _, done = sent.pop(0)
        done(ReadAnswer(1, 9, 0, b""))
        count += 1
        await wait_all_tasks_blocked()
    return count


async def test_subscriptions_that_wait_for_room_are_given_up(mock_clock: MockClock) -> None:
    async with gateway() as (shell, link, sent):
        for partition in range(PARTITIONS):
            shell.on_message(link, partition + 1, Subscribe(partition, "t", partition, 0, credit=8 << 20))
        waits, sent[:] = sent[:], []
        for _, done in waits:
            done(ReadAnswer(1, 9))  # there is news, and more of it than a wait brings
        assert shell.reads.window.waiting > 1
        link.closed = True
        shell.on_close(link)
        assert not shell.reads.window.waiting
        under_way = len(sent)
        assert await all_answered(sent) == under_way
        assert not shell.reads.window.bytes and not shell.subscriptions.open_count


async def test_reads_that_wait_for_room_are_not_asked_again(mock_clock: MockClock) -> None:
    async with gateway() as (shell, link, sent):
        for partition in range(PARTITIONS):
            shell.on_message(link, partition + 1, Read("t", partition, 0, max_bytes=4 << 20))
        under_way = len(sent)
        assert 0 < under_way < PARTITIONS
        link.closed = True
        shell.on_close(link)
        mock_clock.jump(2 * RETRY_S)
        await wait_all_tasks_blocked()
        assert await all_answered(sent) == under_way
        mock_clock.jump(2 * RETRY_S)
        await wait_all_tasks_blocked()
        assert not sent and not shell.reads.window.waiting and not shell.reads.window.bytes
        assert not shell._request_share.total, "their places are free"
