"""Hostile peers on a real socket: each is told off with the right close code, in bounded time, and alone. Tests
``net/link.py`` and ``net/websocket/transport.py``.

Every case speaks raw TCP, or wsproto where a correct client is needed. While it misbehaves, a well-behaved client of
the same server goes on being served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import cbor2
import pytest
import trio
from support.hostile_wire import GOOD, HANDSHAKES, MESSAGES, REFUSED, ending, frame, frames_for
from tidelog.errors import TidelogError
from tidelog.net.link import Link, connect_link, serve_links
from tidelog.net.transport import SUBPROTOCOL
from tidelog.net.websocket.transport import HELLO_BYTES, WebSocketTransport
from tidelog.wire import codec
from tidelog.wire.cbor import bytes_head
from tidelog.wire.messages import Done, Hello, InitProducer, ProducerId, Welcome
from tidelog.wire.messages import Message as TidelogMessage
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Request

WELCOME = Welcome(1, "c", "g1", "gateway", 1 << 20, 100)
ALLOWED = {"client": frozenset({"init_producer", "list_offset", "produce", "metadata", "credit"})}
LIMIT = 1 << 20
PATIENCE_S = 30.0
"""Only a hang lasts longer, however busy the machine is."""


def welcome(hello: Hello) -> Welcome | TidelogError:
    return WELCOME


def handle(link: Link, id: int | None, message: TidelogMessage) -> None:
    if id is not None:
        link.answer(id, ProducerId(7) if isinstance(message, InitProducer) else Done())


@pytest.fixture
async def url(nursery: trio.Nursery) -> str:
    transport = WebSocketTransport(max_message_bytes=LIMIT)

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        await serve_links(transport, "127.0.0.1", 0, welcome, handle, allowed=ALLOWED, task_status=task_status)

    return str(await nursery.start(serve))


async def assert_served(url: str) -> None:
    """A well-behaved client gets its answer."""
    with trio.fail_after(PATIENCE_S):
        async with connect_link(WebSocketTransport(), url, Hello(1, "client", "good")) as link:
            assert await link.call(InitProducer(), PATIENCE_S) == ProducerId(7)


class Peer:
    """A client made by hand: wsproto's frames, or any bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.protocol = WSConnection(ConnectionType.CLIENT)
        self._events: list[Any] = []

    async def event(self) -> Any:
        """The next thing that the server says; None when it hung up."""
        while not self._events:
            try:
                data = await self.stream.receive_some(1 << 16)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.protocol.receive_data(data)
            self._events += self.protocol.events()
        return self._events.pop(0)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def rest_after(self, data: bytes) -> bytes:
        """Send this, then all that the server says until it hangs up, which may be before it has read everything."""
        said = b""
        with suppress(trio.BrokenResourceError), trio.fail_after(PATIENCE_S):
            await self.send(data)
            while more := await self.stream.receive_some(1 << 16):
                said += more
        return said

    async def say(self, event: Message) -> None:
        await self.send(self.protocol.send(event))

    async def ask(self, **header: object) -> dict[str, Any]:
        await self.say(BytesMessage(cbor2.dumps(header)))
        event = await self.event()
        assert isinstance(event, BytesMessage)
        answer: dict[str, Any] = cbor2.loads(bytes(event.data))
        return answer

    async def hello(self) -> None:
        await self.say(BytesMessage(codec.encode(Hello(1, "client", "bad"), id=0)[0]))
        assert isinstance(await self.event(), BytesMessage)

    async def assert_closed(self, code: int) -> str:
        """The server closes with this code, then hangs up; its reason."""
        with trio.fail_after(PATIENCE_S):
            while not isinstance(event := await self.event(), CloseConnection):
                assert event is not None, "hung up without a close frame"
            assert event.code == code
            await self.stream.aclose()
        return event.reason or ""


@asynccontextmanager
async def tcp(url: str) -> AsyncIterator[Peer]:
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream:
        yield Peer(stream)


@asynccontextmanager
async def opened(url: str, *, hello: bool = True) -> AsyncIterator[Peer]:
    async with tcp(url) as peer:
        await peer.say(Request(host="x", target="/", subprotocols=[SUBPROTOCOL]))  # type: ignore[arg-type]
        event = await peer.event()
        assert isinstance(event, AcceptConnection) and event.subprotocol == SUBPROTOCOL and event.extensions == []
        if hello:
            await peer.hello()
        yield peer


@pytest.mark.parametrize(("message", "code"), MESSAGES.values(), ids=MESSAGES)
async def test_messages_that_close(url: str, message: bytes, code: int) -> None:
    async with opened(url) as peer:
        await peer.send(frame(2, message))
        assert await peer.assert_closed(code) != ""
    await assert_served(url)


@pytest.mark.parametrize(("message", "words"), REFUSED.values(), ids=REFUSED)
async def test_bad_requests_are_answered_and_the_connection_stays(url: str, message: bytes, words: str) -> None:
    async with opened(url) as peer:
        for _ in range(2):  # the number is free again
            await peer.say(BytesMessage(message))
            event = await peer.event()
            assert isinstance(event, BytesMessage)
            answer = cbor2.loads(bytes(event.data))
            assert answer["re"] == 1 and answer["error"]["code"] == "MALFORMED"
            assert words in answer["error"]["message"] and "detail" not in answer["error"]
        assert (await peer.ask(op="init_producer", id=4)) == {"re": 4, "producer_id": 7}


FRAMES = frames_for(LIMIT)


@pytest.mark.parametrize(("wire", "code"), FRAMES.values(), ids=FRAMES)
async def test_frames_that_close(url: str, wire: bytes, code: int) -> None:
    async with opened(url) as peer:
        await peer.send(wire)
        assert await peer.assert_closed(code) != ""
    await assert_served(url)


async def test_a_peer_that_has_not_said_hello_may_not_send_much(url: str) -> None:
    async with opened(url, hello=False) as peer:
        await peer.send(frame(2, bytes(HELLO_BYTES + 1))[:14])
        assert (
            await peer.assert_closed(1009)
            == f"a message of {HELLO_BYTES + 1} bytes or more; the limit is {HELLO_BYTES}"
        )
    async with opened(url) as peer:
        await peer.send(frame(2, cbor2.dumps({"op": "later"}) + bytes_head(HELLO_BYTES) + bytes(HELLO_BYTES)))
        assert (await peer.ask(op="init_producer", id=4)) == {"re": 4, "producer_id": 7}


async def test_unknown_and_forbidden_requests_are_answered(url: str) -> None:
    async with opened(url) as peer:
        for number, (code, header) in enumerate(
            [
                ("UNSUPPORTED", {"op": "fly"}),
                ("FORBIDDEN", {"op": "fetch", "node": "r1", "broker_epoch": 1, "max_bytes": 1, "parts": []}),
                ("FORBIDDEN", {"op": "hello", "version": 1, "role": "replica", "node": "r1"}),
            ]
        ):
            assert (await peer.ask(**header, id=number))["error"]["code"] == code
        assert (await peer.ask(op="init_producer", id=4)) == {"re": 4, "producer_id": 7}


async def test_unknown_keys_and_ops_of_the_future_are_ignored(url: str) -> None:
    async with opened(url) as peer:
        await peer.say(BytesMessage(cbor2.dumps({"op": "glow", "brightness": 3.5})))
        assert (await peer.ask(op="init_producer", id=1, later={"a": [1]})) == {"re": 1, "producer_id": 7}
        await peer.say(BytesMessage(cbor2.dumps({"re": 77})))
        assert (await peer.ask(op="init_producer", id=2)) == {"re": 2, "producer_id": 7}


@pytest.mark.parametrize(
    "header",
    [GOOD, {"op": "credit", "sub": 1, "bytes": 1}, {"re": 0}, {"op": "hello"}],
    ids=["a request", "one-way", "an answer", "half a hello"],
)
async def test_nothing_before_hello(url: str, header: dict[str, object]) -> None:
    async with opened(url, hello=False) as peer:
        await peer.say(BytesMessage(cbor2.dumps(header)))
        await peer.assert_closed(1002)
    await assert_served(url)


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (Hello(9, "client", "x"), "UNSUPPORTED"),
        (Hello(1, "replica", "r1"), "FORBIDDEN"),
        (Hello(1, "", ""), "FORBIDDEN"),
    ],
)
async def test_a_hello_that_is_refused(url: str, hello: Hello, code: str) -> None:
    async with opened(url, hello=False) as peer:
        await peer.say(BytesMessage(codec.encode(hello, id=0)[0]))
        event = await peer.event()
        assert isinstance(event, BytesMessage) and cbor2.loads(bytes(event.data))["error"]["code"] == code
        await peer.assert_closed(1008)


@pytest.mark.parametrize(("wire", "status"), HANDSHAKES.values(), ids=HANDSHAKES)
async def test_handshakes_that_are_none(url: str, wire: bytes, status: int) -> None:
    async with tcp(url) as peer:
        assert ending(await peer.rest_after(wire)) == status
    await assert_served(url)


async def test_compression_is_not_accepted(url: str) -> None:
    async with tcp(url) as peer:
        head = (await peer.rest_after(HANDSHAKES["compression"][0])).lower()
        assert head.startswith(b"http/1.1 101") and b"extensions" not in head


async def test_frames_sent_with_the_handshake_are_not_lost(url: str) -> None:
    """A hasty peer sends its hello before it has seen the server's answer."""
    async with tcp(url) as peer:
        handshake = peer.protocol.send(Request(host="x", target="/", subprotocols=[SUBPROTOCOL]))  # type: ignore
        await peer.send(handshake + frame(2, codec.encode(Hello(1, "client", "hasty"), id=0)[0]))
        assert isinstance(await peer.event(), AcceptConnection)
        event = await peer.event()
        assert isinstance(event, BytesMessage) and cbor2.loads(bytes(event.data))["re"] == 0


async def test_a_browsers_masking_is_honoured(url: str) -> None:
    async with opened(url) as peer:
        assert (await peer.ask(op="init_producer", id=1, padding="x" * 100_000)) == {"re": 1, "producer_id": 7}


async def test_many_hostile_peers_at_once(url: str) -> None:
    async def misbehave(message: bytes) -> None:
        async with opened(url) as peer:
            await peer.send(frame(2, message))
            while await peer.event() is not None:
                continue

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for message, _ in MESSAGES.values():
                nursery.start_soon(misbehave, message)
            await assert_served(url)
    await assert_served(url)


@pytest.mark.parametrize("last", [frame(2, b"\xff" * 100_000), frame(0, b""), frame(2, bytes(100_000))[:-1]])
async def test_messages_of_a_peer_are_released_with_its_link(nursery: trio.Nursery, last: bytes) -> None:
    """The error of an ended link is kept; the frames that it came through would keep the message."""
    links: list[Link] = []

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        transport = WebSocketTransport()
        await serve_links(
            transport,
            *("127.0.0.1", 0, welcome, handle),
            allowed=ALLOWED,
            on_open=links.append,
            task_status=task_status,
        )

    async with opened(str(await nursery.start(serve))) as peer:
        await peer.send(last)
        await peer.stream.send_eof()
        with trio.fail_after(PATIENCE_S):
            await links[0].wait_closed()
    error = links[0].error
    assert error is not None and (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
