"""Links: over memory, where time is virtual, and over real WebSockets on the loopback interface."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from tidelog import link as link_module
from tidelog.errors import BrokerError, ConfigError, TidelogError, TimedOut, Unreachable, refuse
from tidelog.link import Link, connect_link, serve_links
from tidelog.transport import Connection, Transport
from tidelog.websocket import WebSocketTransport
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    Credit,
    Delivery,
    Done,
    Heartbeat,
    Hello,
    InitProducer,
    Message,
    Payload,
    Read,
    ReadAnswer,
    Unsubscribe,
    Watch,
    Welcome,
)
from trio.testing import MockClock

HELLO = Hello(1, "client", "me")
WELCOME = Welcome(1, "c", "g1", "gateway", 1 << 24, 1000)
ALLOWED = {"client": frozenset({"read", "credit", "watch", "unsubscribe", "heartbeat"})}


class MemoryConnection:
    """One end of a pair of memory channels that hold ``room`` messages each."""

    def __init__(
        self, send: trio.MemorySendChannel[bytes], receive: trio.MemoryReceiveChannel[bytes], remote: str
    ) -> None:
        self.remote = remote
        self.closed_with: tuple[int, str] | None = None
        self._send, self._receive = send, receive

    async def send(self, head: bytes, payload: Payload = b"") -> None:
        try:
            await self._send.send(head + payload_view(payload))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Unreachable("the memory connection is closed") from error

    async def receive(self) -> bytes:
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise Unreachable("the memory connection is closed") from error

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        self.closed_with = self.closed_with or (code, reason)
        self._send.close()
        self._receive.close()


class MemoryTransport:
    """One server within the process."""

    def __init__(self, room: float = math.inf) -> None:
        self.accepted: list[MemoryConnection] = []
        self._room = room
        self._arrivals, self._to_accept = trio.open_memory_channel[MemoryConnection](math.inf)

    async def connect(self, url: str) -> Connection:
        there, back = trio.open_memory_channel[bytes](self._room), trio.open_memory_channel[bytes](self._room)
        await self._arrivals.send(MemoryConnection(back[0], there[1], "client"))
        return MemoryConnection(there[0], back[1], url)

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started("memory")
            async for connection in self._to_accept:
                self.accepted.append(connection)
                nursery.start_soon(handler, connection)


class Server:
    """Serves links; answers reads with as many bytes as asked for, never answers ``Watch``."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.links: list[Link] = []
        self.closed: list[Link] = []
        self.seen: list[Message] = []
        self.refusal: TidelogError | None = None
        self.url = ""

    def welcome(self, hello: Hello) -> Welcome | TidelogError:
        return self.refusal or WELCOME

    def handle(self, link: Link, id: int | None, message: Message) -> None:
        self.seen.append(message)
        match message:
            case Read():
                assert id is not None
                link.answer(id, ReadAnswer(1, 2, 3, payload=bytes(message.max_bytes)))
            case Heartbeat():
                raise refuse("FENCED_BROKER_EPOCH", "another life")
            case Unsubscribe():
                raise RuntimeError("a bug of ours")

    @asynccontextmanager
    async def running(self) -> Any:
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[str]) -> None:
                await serve_links(
                    self.transport,
                    "127.0.0.1",
                    0,
                    self.welcome,
                    self.handle,
                    allowed=ALLOWED,
                    on_open=self.links.append,
                    on_close=self.closed.append,
                    task_status=task_status,
                )

            self.url = await nursery.start(serve)
            yield self
            nursery.cancel_scope.cancel()

    def connect(self, handler: Any = None, hello: Hello = HELLO) -> AbstractAsyncContextManager[Link]:
        return connect_link(self.transport, self.url, hello, handler)


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


async def test_what_was_queued_before_close_is_sent(transport: Transport) -> None:
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
            nursery.start_soon(connection.send, link_module.codec.encode(HELLO, id=0)[0])
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
    monkeypatch.setattr(link_module, "ROOM_MESSAGES", 10)
    monkeypatch.setattr(link_module, "OUTBOX_MESSAGES", 50)
    transport = MemoryTransport(room=0)
    async with Server(transport).running() as server:
        connection = await transport.connect("memory")
        await connection.send(link_module.codec.encode(HELLO, id=0)[0])
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


async def test_a_silent_peer_is_pinged_then_dropped(autojump_clock: MockClock) -> None:
    class Silent(MemoryConnection):
        pings = 0
        heard_at = 0.0

        def ping(self) -> None:
            self.pings += 1
            if self.pings < 4:
                self.heard_at = trio.current_time()

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
            links.append(Link(connection, session, None))
            await links[0].run()

        await there[0].send(link_module.codec.encode(HELLO, id=0)[0])
    assert connection.pings == 4 and "silent" in str(links[0].error)
    assert transport.accepted == []


# --- real sockets ----------------------------------------------------------------------------------------


async def test_a_refused_connection_fails_fast() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with trio.fail_after(1), pytest.raises(Unreachable, match=f"ws://127.0.0.1:{port}: Connection refused"):
        async with connect_link(WebSocketTransport(), f"ws://127.0.0.1:{port}", HELLO):
            pytest.fail("nobody listens there")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ws://", "ws://h:notaport", "nonsense", "ws://h:99999"])
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(Unreachable, match=url):
        await WebSocketTransport().connect(url)


async def test_a_port_in_use_is_named() -> None:
    transport = WebSocketTransport()
    async with Server(transport).running() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} is in use"):
            await serve_links(transport, "127.0.0.1", port, server.welcome, server.handle, allowed=ALLOWED)


async def test_connections_are_limited() -> None:
    transport = WebSocketTransport(max_connections=1)
    async with Server(transport).running() as server, server.connect():
        with pytest.raises(Unreachable, match="HTTP 503"):
            await WebSocketTransport().connect(server.url)


async def test_a_server_that_is_no_websocket_server() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(2), pytest.raises(Unreachable):
            await WebSocketTransport().connect(f"ws://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def test_a_server_that_hangs_up_in_the_handshake() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, lambda stream: stream.aclose(), 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(2), pytest.raises(Unreachable):
            await WebSocketTransport().connect(f"ws://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def test_a_message_beyond_the_limit_closes_with_1009() -> None:
    transport = WebSocketTransport(max_message_bytes=1000)
    server = Server(transport)
    async with server.running(), connect_link(WebSocketTransport(), server.url, HELLO) as link:
        link.post(Delivery(1, payload=bytes(1001)))
        await link.wait_closed()
        assert "1009" in str(link.error)
