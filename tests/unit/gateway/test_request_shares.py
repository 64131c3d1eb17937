"""Requests that wait for answers: how many a connection, and a principal, may have at a gateway. Tests
``tidelog_gateway/shell.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

import trio
from tidelog.acl import ANONYMOUS
from tidelog.errors import TidelogError
from tidelog.net.link import PROTOCOL_VERSION, Link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import Done, Hello, Message
from tidelog_gateway.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import MAX_CALLS, Answered, GatewayShell

NUMBERS = count(1)


class Connection:
    """As much of a link as the shell asks for."""

    def __init__(self) -> None:
        self.source = next(NUMBERS)
        self.answers: list[Message | TidelogError] = []

    def answer(self, id: int, message: Message | TidelogError) -> None:
        self.answers.append(message)


class Bench:
    def __init__(self, shell: GatewayShell) -> None:
        self.shell = shell

    def connect(self, principal: str, **how: bool) -> Link:
        link = cast(Link, Connection())
        self.shell.on_open(link, principal, **how)
        return link

    def begin(self, link: Link, requests: int, **how: Any) -> list[Answered]:
        """As many as it may."""
        begun = []
        for number in range(requests):
            try:
                begun.append(self.shell.begin_request(link, number, **how))
            except TidelogError as error:
                assert error.code == "OVERLOADED" and error.retriable
        return begun


@asynccontextmanager
async def gateway() -> AsyncIterator[Bench]:
    hello = Hello(PROTOCOL_VERSION, "gateway", "g1")
    async with trio.open_nursery() as nursery:
        settings = RouterSettings(), SubscriptionSettings()
        yield Bench(GatewayShell(WebSocketTransport(), hello, [], *settings, trio.current_time, nursery))


async def test_a_principal_with_many_connections_leaves_room_for_others() -> None:
    async with gateway() as bench:
        begun = [done for _ in range(9) for done in bench.begin(bench.connect("ann"), 512)]
        assert len(begun) == MAX_CALLS * 3 // 8
        assert len(bench.begin(bench.connect("ben"), 512)) == MAX_CALLS * 3 // 16
        for done in begun:
            done(Done())
        assert len(bench.begin(bench.connect("ann"), 512)) == MAX_CALLS * 9 // 32


async def test_connections_without_a_name_leave_room_for_the_next() -> None:
    async with gateway() as bench:
        for _ in range(25):
            bench.begin(bench.connect(ANONYMOUS), 512)
        assert len(bench.begin(bench.connect(ANONYMOUS), 512)) == MAX_CALLS // 128
        assert len(bench.begin(bench.connect("ann"), 512)) == MAX_CALLS // 128


async def test_strangers_together_have_as_much_as_one_principal_where_rules_are_heeded() -> None:
    async with gateway() as bench:
        begun = 0
        for _ in range(25):
            begun += len(bench.begin(bench.connect(ANONYMOUS, strangers_are_one=True), 512))
        assert begun == MAX_CALLS * 3 // 8
        assert len(bench.begin(bench.connect("ann", strangers_are_one=True), 512)) == MAX_CALLS * 3 // 16


async def test_reads_do_not_use_up_the_places_of_other_requests() -> None:
    async with gateway() as bench:
        reads = [done for _ in range(9) for done in bench.begin(bench.connect("ann"), 512, is_call=False)]
        assert len(reads) == 9 * 512
        assert len(bench.begin(bench.connect("ann"), 512)) == 512


async def test_the_share_of_a_client_that_left_is_returned_when_its_requests_end() -> None:
    async with gateway() as bench:
        ann = bench.connect("ann")
        begun = bench.begin(ann, 512)
        bench.shell.on_close(ann)
        for done in begun:
            done(Done())
        assert cast(Connection, ann).answers == []
        assert bench.shell._call_share.total == bench.shell._request_share.total == 0
