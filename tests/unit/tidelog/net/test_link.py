"""Links: over memory, where time is virtual, and over real WebSockets on the loopback interface."""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import pytest
import trio
import trio.testing
from support.link_peers import HELLO, WELCOME, MemoryConnection, MemoryTransport, Server, rest
from tidelog.errors import BrokerError, TimedOut, Unreachable, refuse
from tidelog.net import link as link_module
from tidelog.net import send_queue as outbox
from tidelog.net.failure_detector import Patience
from tidelog.net.link import Link, connect_link
from tidelog.net.transport import Connection, Transport
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire import codec
from tidelog.wire.messages import (
    Credit,
    Delivery,
    Done,
    Heartbeat,
    Hello,
    InitProducer,
    Message,
    Read,
    ReadAnswer,
    Unsubscribe,
    Watch,
)
from trio.testing import MockClock


@pytest.fixture(params=["memory", "websocket"])
def transport(request: pytest.FixtureRequest) -> Transport:
    return WebSocketTransport() if request.param == "websocket" else MemoryTransport()


async def test_calls_answers_refusals(transport: Transport) -> None:
    async with Server(transport).running() as server, server.connect() as link:
        assert link.peer == WELCOME and server.links[0].peer == HELLO
        for size in (0, 10, 65_536, 3 << 20):
            answer = await link.call(Read("t", 0, 1, max_bytes=size), 5)
            assert isinstance(answer, ReadAnswer) and answer.payload == bytes(size)
        with pytest.raises(BrokerError, match="FENCED_BROKER_EPOCH"):
            await link.call(Heartbeat("r", 1), 5)
        with pytest.raises(BrokerError, match="FORBIDDEN"):
            await link.call(InitProducer(), 5)
    assert link.closed and server.closed == server.links


async def test_calls_are_pipelined_and_posts_keep_their_order(transport: Transport) -> None:
    async with Server(transport).running() as server, server.connect() as link:
        results: list[object] = []
        done = trio.Event()

        def on_done(result: object) -> None:
            results.append(result)
            if len(results) == 500:
                done.set()

        for n in range(500):
            link.post(Credit(n, 1))
            link.start_call(Read("t", 0, n, max_bytes=n), 5, on_done)
        await done.wait()
        assert [len(r.payload) for r in results if isinstance(r, ReadAnswer)] == list(range(500))
        assert [m.sub for m in server.seen if isinstance(m, Credit)] == list(range(500))


async def test_the_server_speaks_and_asks_too(transport: Transport) -> None:
    got: list[Message] = []
    heard = trio.Event()

    def handle(link: Link, id: int | None, message: Message) -> None:
        got.append(message)
        if id is not None:
            link.answer(id, Done())
        if isinstance(message, Delivery):
            heard.set()

    async with Server(transport).running() as server, server.connect(handle) as link:
        assert await server.links[0].call(Watch(), 5) == Done()
        await server.links[0].send(Delivery(1, payload=b"abc"))
        await heard.wait()
        assert got == [Watch(), Delivery(1, payload=b"abc")]
        with pytest.raises(TimedOut):
            await link.call(Watch(), 0.01)


async def test_a_client_that_serves_nothing_says_so(transport: Transport) -> None:
    async with Server(transport).running() as server, server.connect():
        with pytest.raises(BrokerError, match="UNSUPPORTED"):
            await server.links[0].call(Watch(), 5)


async def test_a_refused_hello_is_raised(transport: Transport) -> None:
    server = Server(transport)
    server.refusal = refuse("WRONG_CLUSTER", "this is c")
    async with server.running():
        with pytest.raises(BrokerError, match="WRONG_CLUSTER"):
            async with server.connect():
                pytest.fail("it must not open")
        with pytest.raises(BrokerError, match="FORBIDDEN"):
            async with server.connect(hello=Hello(1, "controller", "c1")):
                pytest.fail("it must not open")
    assert not server.links and not server.closed


async def test_the_block_sees_its_own_exceptions_plain(transport: Transport) -> None:
    async with Server(transport).running() as server:
        with pytest.raises(KeyError):
            async with server.connect():
                raise KeyError("mine")
        with trio.move_on_after(0.05) as scope:
            async with server.connect():
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_when_the_server_goes_calls_end_and_the_block_lives_on(transport: Transport) -> None:
    server = Server(transport)
    async with server.running(), server.connect() as link:
        ended: list[object] = []
        link.start_call(Watch(), 60, ended.append)
        server.links[0].close(1001, "restart")
        await link.wait_closed()
        assert isinstance(ended[0], Unreachable) and ended[0].unknown_outcome
        link.start_call(Watch(), 60, ended.append)
        assert isinstance(ended[1], Unreachable)
        with pytest.raises(Unreachable):
            await link.call(Watch(), 1)
        with pytest.raises(Unreachable):
            await link.send(Credit(1, 1))
        link.post(Credit(1, 1))
        link.answer(1, Done())
        link.close()


async def test_messages_queued_before_close_are_sent(transport: Transport) -> None:
    async with Server(transport).running() as server:
        async with server.connect() as link:
            for n in range(100):
                link.post(Credit(n, 1))
        while len(server.closed) < 1:
            await trio.lowlevel.checkpoint()
        assert len(server.seen) == 100


async def test_a_bug_in_a_handler_ends_that_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async with Server(WebSocketTransport()).running() as server, server.connect() as other:
        async with server.connect() as link:
            with pytest.raises(Unreachable), caplog.at_level(logging.CRITICAL, "tidelog"):
                await link.call(Unsubscribe(1), 5)
            assert "1011" in str(link.error)
        assert isinstance(await other.call(Read("t", 0, 1), 5), ReadAnswer)


async def test_a_bug_in_the_connecting_ends_handler_is_raised(transport: Transport) -> None:
    def handle(link: Link, id: int | None, message: Message) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError), flatten_subgroups=True):
        async with Server(MemoryTransport()).running() as server, server.connect(handle):
            server.links[0].post(Credit(1, 1))
            await trio.sleep_forever()


async def test_a_cancelled_call_is_forgotten() -> None:
    async with Server(MemoryTransport()).running() as server, server.connect() as link:
        with trio.move_on_after(0.01):
            await link.call(Watch(), 60)
        assert not link._session._pending


# --- time ------------------------------------------------------------------------------------------------


async def test_calls_time_out_on_time(autojump_clock: MockClock) -> None:
    async with Server(MemoryTransport()).running() as server, server.connect() as link:
        for timeout in (7.0, 0.25, 2.0):
            before = trio.current_time()
            with pytest.raises(TimedOut):
                await link.call(Watch(), timeout)
            assert trio.current_time() - before == pytest.approx(timeout)


async def test_a_peer_without_hello_is_closed_after_five_seconds(autojump_clock: MockClock) -> None:
    transport = MemoryTransport()
    async with Server(transport).running():
        connection = await transport.connect("memory")
        before = trio.current_time()
        with pytest.raises(Unreachable):
            await connection.receive()
        assert trio.current_time() - before == pytest.approx(5.0)
        assert transport.accepted[0].closed_with == (1008, "no hello within 5 s")


async def test_a_server_that_never_welcomes(autojump_clock: MockClock) -> None:
    transport = MemoryTransport()
    before = trio.current_time()
    with pytest.raises(TimedOut, match="no welcome"):
        async with connect_link(transport, "memory", HELLO):
            pytest.fail("it must not open")
    assert trio.current_time() - before <= 8.0


async def test_a_peer_that_does_not_read_is_dropped(autojump_clock: MockClock) -> None:
    transport = MemoryTransport(room=1)
    async with Server(transport).running() as server:
        connection = await transport.connect("memory")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, codec.encode(HELLO, id=0)[0])
            await connection.receive()  # the welcome; nothing more is read
            (link,) = server.links
            before = trio.current_time()
            for n in range(10):
                link.post(Credit(n, 1))
            await link.wait_closed()
        assert link_module.SEND_TIMEOUT_S <= trio.current_time() - before <= 2 * link_module.SEND_TIMEOUT_S
        assert "does not read" in str(link.error)


async def test_send_waits_for_room_and_post_does_not(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "ROOM_MESSAGES", 10)
    monkeypatch.setattr(outbox, "OUTBOX_MESSAGES", 50)
    transport = MemoryTransport(room=0)
    async with Server(transport).running() as server:
        connection = await transport.connect("memory")
        await connection.send(codec.encode(HELLO, id=0)[0])
        await connection.receive()
        (link,) = server.links
        sent = 0
        with trio.move_on_after(1):
            while True:
                await link.send(Credit(sent, 1))
                sent += 1
        assert 10 <= sent <= 13
        for _ in range(60):
            link.post(Credit(0, 1))
        await link.wait_closed()
        assert "outbox is full" in str(link.error)


@pytest.fixture
def small_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ROOM_MESSAGES", 10)
    monkeypatch.setattr(outbox, "OUTBOX_MESSAGES", 50)


async def ask_much(connection: Connection, reads: int) -> None:
    """Ask without reading the answers."""
    for id in range(1, reads + 1):
        head, _ = codec.encode(Read("t", 0, 1), id=id)
        await connection.send(head)


@pytest.mark.usefixtures("small_outbox")
async def test_a_peer_that_asks_for_more_than_it_reads_is_slowed_down_not_dropped(autojump_clock: MockClock) -> None:
    transport = MemoryTransport(room=0)
    async with Server(transport, flow_control=True).running() as server, trio.open_nursery() as nursery:
        connection = await transport.connect("memory")
        await connection.send(codec.encode(HELLO, id=0)[0])
        await connection.receive()
        nursery.start_soon(ask_much, connection, 200)
        await trio.testing.wait_all_tasks_blocked()
        assert 20 <= len(server.seen) <= 30, "the rest waits at its sender"
        for _ in range(200):
            await rest(0.3)
            await connection.receive()
        assert len(server.seen) == 200 and not server.closed


@pytest.mark.usefixtures("small_outbox")
async def test_a_peer_that_asks_much_and_reads_nothing_is_dropped(autojump_clock: MockClock) -> None:
    transport = MemoryTransport(room=0)
    async with Server(transport, flow_control=True).running() as server:
        connection = await transport.connect("memory")
        await connection.send(codec.encode(HELLO, id=0)[0])
        await connection.receive()
        with pytest.raises(Unreachable):
            await ask_much(connection, 200)
        assert "does not read" in str(server.links[0].error) and len(server.seen) <= 30


@pytest.mark.usefixtures("small_outbox")
async def test_a_peer_that_is_not_read_does_not_count_as_silent(autojump_clock: MockClock) -> None:
    class Deaf(MemoryConnection):
        def ping(self) -> None:
            self.answered_at = None

        async def receive(self) -> bytes:
            data = await super().receive()
            self.heard_at = self.answered_at = trio.current_time()
            return data

    def handle(link: Link, id: int | None, message: Message) -> None:
        assert id is not None
        link.answer(id, ReadAnswer(1))

    async with trio.open_nursery() as nursery:
        back, there = trio.open_memory_channel[bytes](0), trio.open_memory_channel[bytes](0)
        connection, peer = Deaf(back[0], there[1], "client"), MemoryConnection(there[0], back[1], "server")
        connection.heard_at = trio.current_time()
        session = link_module.Session(trio.current_time(), welcome=lambda _: WELCOME)
        link = Link(connection, session, handle, patience=Patience(1.5, 1.5), flow_control=True)
        nursery.start_soon(link.run)
        await peer.send(codec.encode(HELLO, id=0)[0])
        await peer.receive()
        async with trio.open_nursery() as asking:
            asking.start_soon(ask_much, peer, 400)
            for _ in range(80):
                await rest(0.3)
                await peer.receive()
            asking.cancel_scope.cancel()
        assert link.error is None
        nursery.cancel_scope.cancel()


async def test_a_silent_peer_is_pinged_then_dropped(autojump_clock: MockClock) -> None:
    class Silent(MemoryConnection):
        pings = 0

        def ping(self) -> None:
            self.pings += 1
            self.answered_at = None
            if self.pings < 4:
                self.heard_at = self.answered_at = trio.current_time()

    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        back = trio.open_memory_channel[bytes](math.inf)
        there = trio.open_memory_channel[bytes](math.inf)
        connection = Silent(back[0], there[1], "silent")
        connection.heard_at = trio.current_time()
        links: list[Link] = []

        @nursery.start_soon
        async def run() -> None:
            session = link_module.Session(trio.current_time(), welcome=lambda _: WELCOME)
            links.append(Link(connection, session, None, patience=Patience(1.5, 1.5)))
            await links[0].run()

        await there[0].send(codec.encode(HELLO, id=0)[0])
    assert connection.pings == 4 and "silent" in str(links[0].error)
    assert trio.current_time() - connection.heard_at == pytest.approx(1.5)
    assert transport.accepted == []


async def test_a_process_that_was_stopped_does_not_blame_its_peer(mock_clock: MockClock) -> None:
    """Hours pass between two looks of the timer; what the peer said meanwhile waits in the socket."""
    async with Server(WebSocketTransport()).running() as server, server.connect() as link:
        for _ in range(3):
            mock_clock.jump(3600.0)
            assert isinstance(await link.call(Read("t", 0, 1), 5), ReadAnswer)
        assert not link.closed and not server.closed


async def test_an_answer_that_has_arrived_is_not_late(mock_clock: MockClock) -> None:
    """A step took longer than a call may, and the timer is looked at before what has arrived."""

    class Slow(Server):
        def handle(self, link: Link, id: int | None, message: Message) -> None:
            super().handle(link, id, message)
            mock_clock.jump(10.0)

    async with Slow(MemoryTransport()).running() as server, server.connect() as link:
        for _ in range(30):
            assert isinstance(await link.call(Read("t", 0, 1), 5), ReadAnswer)


async def test_between_messages_that_cost_much_others_run(mock_clock: MockClock) -> None:
    class Slow(Server):
        def handle(self, link: Link, id: int | None, message: Message) -> None:
            super().handle(link, id, message)
            mock_clock.jump(outbox.ACCEPTED_TURN_S)

    async with Slow(WebSocketTransport()).running() as server, server.connect() as link:
        with outbox.burst():  # they arrive together
            for _ in range(10):
                link.post(Credit(0, 1))
        seen = [0]
        while seen[-1] < 10:
            await trio.lowlevel.checkpoint()
            seen.append(len(server.seen))
        assert max(after - before for before, after in pairwise(seen)) <= 2  # a turn before ours, and one after
