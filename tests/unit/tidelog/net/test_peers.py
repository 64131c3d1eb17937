"""Outgoing links over loopback: on demand, kept, moved; and the search for the active controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from support.link_peers import MemoryTransport, rest
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.net.controller_link import ANSWER_TIMEOUT_S, CHECK_S, ControllerLink
from tidelog.net.link import PROTOCOL_VERSION, Handler, Link, serve_links
from tidelog.net.peers import TRYING_S, Peers
from tidelog.net.transport import Connection, Transport
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import (
    ControllerInfo,
    DeleteTopic,
    DescribeQuorum,
    Done,
    Hello,
    Message,
    QuorumAnswer,
    Welcome,
)
from trio.testing import MockClock

NOWHERE = "ws://127.0.0.1:1"
HELLO = Hello(PROTOCOL_VERSION, "gateway", "g1")
TRANSPORT = WebSocketTransport()


async def serve(
    node: str,
    handler: Handler,
    links: list[Link],
    *,
    transport: Transport = TRANSPORT,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    await serve_links(
        transport,
        "127.0.0.1",
        0,
        lambda _: Welcome(PROTOCOL_VERSION, "test", node, "replica", 1 << 20, 10),
        handler,
        allowed={"gateway": frozenset({DescribeQuorum.OP, DeleteTopic.OP})},
        on_open=links.append,
        task_status=task_status,
    )


def done(link: Link, id: int | None, _message: Message) -> None:
    assert id is not None
    link.answer(id, Done())


class Watcher:
    """What ``Peers`` told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.troubles: list[tuple[str, str]] = []
        self._news = trio.Event()

    def tell(self, what: str) -> Callable[[str], None]:
        def call(node: str) -> None:
            self.told.append((what, node))
            self._news.set()
            self._news = trio.Event()

        return call

    async def wait(self, what: str, node: str, times: int = 1) -> None:
        with trio.fail_after(30):
            while self.told.count((what, node)) < times:
                await self._news.wait()


class ClosedLast(WebSocketTransport):
    """Whose connections are not closed before ``told`` is set, or the caller gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.told = trio.Event()
        self.gave_up = False

    async def connect(self, url: str) -> Connection:
        connection = await super().connect(url)
        close = connection.aclose

        async def aclose(code: int = 1000, reason: str = "") -> None:
            try:
                await self.told.wait()
            finally:
                self.gave_up = not self.told.is_set()
                await close(code, reason)

        connection.aclose = aclose  # type: ignore[method-assign]
        return connection


@asynccontextmanager
async def peers(
    *, keep: bool, transport: Transport = TRANSPORT
) -> AsyncIterator[tuple[Peers, Watcher, trio.Nursery]]:
    watcher = Watcher()
    made = Peers(
        transport,
        HELLO,
        on_message=lambda _node, _message: None,
        on_up=watcher.tell("up"),
        on_down=watcher.tell("down"),
        on_trouble=lambda node, error: watcher.troubles.append((node, error.code)),
        keep=keep,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made, watcher, nursery
        nursery.cancel_scope.cancel()


async def ask(one: Peers, node: str) -> Message | TidelogError:
    answers: list[Message | TidelogError] = []
    answered = trio.Event()

    def keep(answer: Message | TidelogError) -> None:
        answers.append(answer)
        answered.set()

    one.start_call(node, DeleteTopic("x"), 5, keep)
    with trio.fail_after(30):
        await answered.wait()
    return answers[0]


async def test_a_call_opens_the_link_and_waits_for_it() -> None:
    async with peers(keep=False) as (one, watcher, nursery):
        url = await nursery.start(serve, "r1", done, [])
        one.set_addresses({"r1": url})
        assert not one.is_up("r1")
        assert await ask(one, "r1") == Done()
        assert one.is_up("r1") and watcher.told == [("up", "r1")]


async def test_a_link_that_broke_is_opened_again_on_demand() -> None:
    async with peers(keep=False) as (one, watcher, nursery):
        links: list[Link] = []
        one.set_addresses({"r1": await nursery.start(serve, "r1", done, links)})
        assert await ask(one, "r1") == Done()
        links[0].close()
        await watcher.wait("down", "r1")
        assert await ask(one, "r1") == Done()


async def test_a_link_is_down_before_its_connection_is_closed() -> None:
    """The closing takes a second where the other side is silent."""
    transport = ClosedLast()
    async with peers(keep=False, transport=transport) as (one, watcher, nursery):
        links: list[Link] = []
        one.set_addresses({"r1": await nursery.start(serve, "r1", done, links)})
        assert await ask(one, "r1") == Done()
        links[0].close()
        await watcher.wait("down", "r1")
        transport.told.set()
        assert not transport.gave_up
        assert await ask(one, "r1") == Done()
        assert watcher.told == [("up", "r1"), ("down", "r1"), ("up", "r1")]


@pytest.mark.parametrize("url", [NOWHERE, None])
async def test_an_unreachable_node_is_reported_at_once(url: str | None) -> None:
    async with peers(keep=False) as (one, watcher, _):
        one.set_addresses({"r1": url} if url else {})
        assert isinstance(await ask(one, "r1"), Unreachable)
        if url:
            await watcher.wait("down", "r1")


@pytest.mark.parametrize("keep", [False, True])
async def test_when_links_are_held_no_more_nobody_can_be_reached(keep: bool) -> None:
    """A process that ends may still have something to tell: what it had begun goes on to its end."""
    async with peers(keep=keep) as (one, _, nursery):
        nursery.cancel_scope.cancel()
    one.set_addresses({"r1": NOWHERE})
    one.post("r1", DeleteTopic("x"))
    assert isinstance(await ask(one, "r1"), Unreachable)


@pytest.mark.parametrize("turns", range(6))
async def test_a_message_may_be_sent_in_each_turn_in_which_the_links_close(turns: int) -> None:
    """The owner of the links may still write to its disk when the links are cancelled, and send messages then. Trio
    runs the tasks of a turn in random order, so each turn is tried many times."""
    for _attempt in range(20):
        async with peers(keep=False) as (one, _, nursery):
            one.set_addresses({"r1": NOWHERE})
            nursery.cancel_scope.cancel()
            for _turn in range(turns):
                await trio.lowlevel.cancel_shielded_checkpoint()
            one.post("r1", DeleteTopic("x"))


async def test_a_peer_that_answers_under_another_name_is_not_taken_for_the_node() -> None:
    async with peers(keep=False) as (one, _, nursery):
        one.set_addresses({"r1": await nursery.start(serve, "r2", done, [])})
        assert isinstance(await ask(one, "r1"), Unreachable)


async def test_the_reason_why_a_link_does_not_come_up_is_reported_once() -> None:
    async with peers(keep=True) as (one, watcher, _):
        one.set_addresses({"r1": "ws://127.0.0.1:1"})
        await watcher.wait("down", "r1", 3)
        assert watcher.troubles == [("r1", "UNREACHABLE")]


async def test_a_kept_link_comes_back() -> None:
    async with peers(keep=True) as (one, watcher, nursery):
        links: list[Link] = []
        one.set_addresses({"r1": await nursery.start(serve, "r1", done, links)})
        await watcher.wait("up", "r1")
        links[0].close()
        await watcher.wait("up", "r1", 2)
        assert watcher.told == [("up", "r1"), ("down", "r1"), ("up", "r1")]


async def test_a_node_to_which_no_connection_succeeds_is_unreachable_for_as_long() -> None:
    async with peers(keep=True) as (one, watcher, nursery):
        one.set_addresses({"r1": "ws://127.0.0.1:1"})
        assert one.unreachable_s() == {}, "nothing was tried yet"
        await watcher.wait("down", "r1", 3)
        began = one.unreachable_s()["r1"]
        assert began > 0
        await watcher.wait("down", "r1", 6)
        assert one.unreachable_s()["r1"] > began
        one.set_addresses({"r1": await nursery.start(serve, "r1", done, [])})
        await watcher.wait("up", "r1")
        assert one.unreachable_s() == {}


async def test_a_node_that_nobody_tries_to_reach_any_more_is_not_unreachable(autojump_clock: MockClock) -> None:
    async with peers(keep=False) as (one, _, _nursery):
        one.set_addresses({"r1": NOWHERE})
        assert isinstance(await ask(one, "r1"), Unreachable)
        autojump_clock.jump(TRYING_S / 2)
        assert list(one.unreachable_s()) == ["r1"]
        autojump_clock.jump(TRYING_S)
        assert one.unreachable_s() == {}
        assert isinstance(await ask(one, "r1"), Unreachable)
        assert one.unreachable_s()["r1"] < TRYING_S, "what failed before the pause does not count"


async def test_a_node_that_moved_is_down_before_it_is_up_again() -> None:
    async with peers(keep=True) as (one, watcher, nursery):
        for times in (1, 2):
            one.set_addresses({"r1": await nursery.start(serve, "r1", done, [])})
            await watcher.wait("up", "r1", times)
        one.set_addresses({})
        assert not one.is_up("r1")
        assert watcher.told == [("up", "r1"), ("down", "r1")] * 2


class Controllers:
    """Scripted controllers that agree on who is active."""

    def __init__(self) -> None:
        self.active = "c1"
        self.urls: dict[str, str] = {}
        self.silent: set[str] = set()
        self.disks_needed: tuple[str, ...] = ()
        self.deleted: list[str] = []

    def handler(self, node: str) -> Handler:
        def handle(link: Link, id: int | None, message: Message) -> None:
            assert id is not None
            if node in self.silent:
                return
            if isinstance(message, DescribeQuorum):
                infos = tuple(ControllerInfo(n, url, "unknown") for n, url in self.urls.items())
                link.answer(id, QuorumAnswer(self.active, 1, 1, infos, disks_needed=self.disks_needed))
            elif node != self.active:
                link.answer(id, refuse("NOT_ACTIVE_CONTROLLER", "no"))
            else:
                self.deleted.append(node)
                link.answer(id, Done())

        return handle


async def test_the_active_controller_is_found_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.net.controller_link.ANSWER_TIMEOUT_S", 0.2)
    controllers = Controllers()
    async with trio.open_nursery() as nursery:
        for node in ("c1", "c2", "c3"):
            controllers.urls[node] = await nursery.start(serve, node, controllers.handler(node), [])
        controllers.active = "c3"
        link = ControllerLink(
            TRANSPORT,
            [NOWHERE, *controllers.urls.values()],
            HELLO,
            on_message=lambda _: None,
            on_up=lambda: None,
        )
        nursery.start_soon(link.run)
        assert await link.call(DeleteTopic("x"), 5) == Done()
        controllers.active = "c2"
        assert await link.call(DeleteTopic("x"), 5) == Done()
        controllers.silent.add("c2")
        controllers.active = "c1"
        with pytest.raises(TidelogError, match="REQUEST_TIMED_OUT"):
            await link.call(DeleteTopic("x"), 0.2)
        assert await link.call(DeleteTopic("x"), 10) == Done()
        assert controllers.deleted == ["c3", "c2", "c1"]
        nursery.cancel_scope.cancel()


async def test_a_controller_that_was_active_and_hangs_is_tried_last(autojump_clock: MockClock) -> None:
    """To connect to it would take time, in which the sessions of servers end."""
    controllers = Controllers()
    tried: list[str] = []
    ways = {"c1": MemoryTransport(), "c2": MemoryTransport()}

    class Routes(MemoryTransport):
        """The way to each controller, by its name."""

        async def connect(self, url: str) -> Connection:
            tried.append(url)
            return await ways[url].connect(url)

    async with trio.open_nursery() as nursery:
        for node, way in ways.items():
            controllers.urls[node] = node
            await nursery.start(partial(serve, node, controllers.handler(node), [], transport=way))
        controllers.active = "c2"
        link = ControllerLink(Routes(), ["c1", "c2"], HELLO, on_message=lambda _: None, on_up=lambda: None)
        nursery.start_soon(link.run)
        assert await link.call(DeleteTopic("x"), 5) == Done()
        controllers.silent.add("c2")
        controllers.active = "c1"
        with pytest.raises(TidelogError, match="REQUEST_TIMED_OUT"):
            await link.call(DeleteTopic("x"), 0.2)
        assert await link.call(DeleteTopic("x"), 5) == Done()
        assert tried == ["c1", "c2", "c1"]
        nursery.cancel_scope.cancel()


async def test_only_a_controller_that_has_answered_nothing_lately_is_asked(autojump_clock: MockClock) -> None:
    """Requests every half a second are served for ten seconds; then the controller hangs."""
    questions: list[float] = []
    controllers = Controllers()
    handler = controllers.handler("c1")

    def handle(link: Link, id: int | None, message: Message) -> None:
        if isinstance(message, DescribeQuorum):
            questions.append(trio.current_time())
        handler(link, id, message)

    async with trio.open_nursery() as nursery:
        transport = MemoryTransport()
        await nursery.start(partial(serve, "c1", handle, [], transport=transport))
        up, down = trio.Event(), trio.Event()
        link = ControllerLink(transport, ["memory"], HELLO, on_message=lambda _: None, on_up=up.set, on_down=down.set)
        nursery.start_soon(link.run)
        await up.wait()
        for _ in range(20):
            await rest(CHECK_S * 2 / 3)
            link.start_call(DeleteTopic("x"), ANSWER_TIMEOUT_S, lambda _: None)
        assert len(questions) == 1, "the one that found it"
        await rest(0.01)
        answered = trio.current_time()
        controllers.silent.add("c1")
        await down.wait()
        assert trio.current_time() <= answered + CHECK_S + ANSWER_TIMEOUT_S
        assert len(questions) == 2
        nursery.cancel_scope.cancel()


async def test_where_nobody_can_be_active_for_want_of_disks_it_is_known_which() -> None:
    controllers = Controllers()
    controllers.active, controllers.disks_needed = "", ("c9",)
    async with trio.open_nursery() as nursery:
        for node in ("c1", "c2"):
            controllers.urls[node] = await nursery.start(serve, node, controllers.handler(node), [])
        urls = list(controllers.urls.values())
        link = ControllerLink(TRANSPORT, urls, HELLO, on_message=lambda _: None, on_up=lambda: None)
        nursery.start_soon(link.run)
        with trio.fail_after(30):
            while link.missing_disks is None:
                await trio.lowlevel.checkpoint()
            assert link.missing_disks.disks_needed == ("c9",)
            controllers.active, controllers.disks_needed = "c2", ()
            assert await link.call(DeleteTopic("x"), 30) == Done()
        assert link.missing_disks is None
        nursery.cancel_scope.cancel()
