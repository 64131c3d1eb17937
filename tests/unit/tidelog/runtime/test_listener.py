"""A port that is open before there is anything behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from support.link_peers import ALLOWED, HELLO, WELCOME
from tidelog.errors import BrokerError
from tidelog.explain.samples import total
from tidelog.net.link import Link, connect_link
from tidelog.net.transport import Page
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.runtime.listener import Listener
from tidelog.runtime.metrics import RecentMetrics
from tidelog.sansio.counters import Metric, by_label
from tidelog.wire.messages import DescribeMetrics, Done, Message, MetricsAnswer, UnreadablePlace, Watch

from unit.tidelog.net.test_http_pages import ask_at


class Shell:
    """Answers, and remembers who is there."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.left = trio.Event()

    def on_open(self, link: Link) -> None:
        self.links.append(link)

    def on_close(self, link: Link) -> None:
        self.links.remove(link)
        self.left.set()

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        assert id is not None
        link.answer(id, Done())


@asynccontextmanager
async def listening(*more: str) -> AsyncIterator[tuple[Listener, str]]:
    """Clients may send what they may in these tests, and ``more``."""
    entrance = Listener("r1", lambda hello: WELCOME)
    async with trio.open_nursery() as nursery:
        allowed = {role: operations | {*more} for role, operations in ALLOWED.items()}
        listen = partial(entrance.serve, WebSocketTransport(), "127.0.0.1", 0, allowed, role="replica")
        yield entrance, await nursery.start(listen)
        nursery.cancel_scope.cancel()


async def test_until_it_opens_every_request_is_answered_that_it_is_starting() -> None:
    async with listening() as (_, url):
        with pytest.raises(BrokerError, match=r"\[OFFLINE\] r1 is starting"):
            async with connect_link(WebSocketTransport(), url, HELLO):
                pytest.fail("nobody is there")
        assert (await ask_at(url, "/metrics")).status == 503
        assert (await ask_at(url, "/healthz")).status == 200, "to start it again would not help"
        ready = await ask_at(url, "/readyz")
        assert (ready.status, ready.body) == (503, b"r1 is starting\n")


async def test_an_open_listener_passes_requests_to_its_service() -> None:
    shell = Shell()
    async with listening() as (entrance, url):
        reasons = ["no controller", "drained"]
        entrance.open(shell, lambda accept: Page(b"counts"), lambda: reasons)
        async with connect_link(WebSocketTransport(), url, HELLO) as link:
            assert await link.call(Watch(), 30) == Done()
            assert len(shell.links) == 1
        with trio.fail_after(30):
            await shell.left.wait()
        assert not shell.links
        assert (await ask_at(url, "/metrics")).body == b"counts"
        ready = await ask_at(url, "/readyz")
        assert (ready.status, ready.body) == (503, b"no controller\ndrained\n")
        reasons.clear()
        ready = await ask_at(url, "/readyz")
        assert (ready.status, ready.body) == (200, b"ready\n")


async def test_the_answer_to_describe_metrics_has_what_was_counted_recently() -> None:
    counts = {"a": 3}
    metric = Metric("tidelog_tea", "counter", "cups", "Cups.", ("kind",))
    recent = RecentMetrics(lambda: by_label(metric, counts), trio.current_time)
    counts["a"] += 2
    async with listening("describe_metrics") as (entrance, url):
        entrance.open(Shell(), lambda accept: Page(b"counts"), tuple, recent=recent)
        async with connect_link(WebSocketTransport(), url, HELLO) as link:
            answer = await link.call(DescribeMetrics("r1"), 30)
            assert isinstance(answer, MetricsAnswer) and answer.recent_ms >= 0
            assert total(answer.recent, "tidelog_tea_total", kind="a") == 2


async def test_the_answer_to_describe_metrics_names_batches_that_cannot_be_decoded() -> None:
    place = UnreadablePlace("t1", 3, 10, 12, 7)
    async with listening("describe_metrics") as (entrance, url):
        entrance.open(Shell(), lambda accept: Page(b"counts"), tuple, unreadable=lambda: (place,))
        async with connect_link(WebSocketTransport(), url, HELLO) as link:
            answer = await link.call(DescribeMetrics("r1"), 30)
            assert isinstance(answer, MetricsAnswer) and answer.unreadable == (place,)
