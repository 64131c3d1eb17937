"""The real transport: what it says when a connection cannot be had."""

from __future__ import annotations

import pytest
import trio
from support.link_peers import ALLOWED, HELLO, Server
from tidelog.errors import ConfigError, Unreachable
from tidelog.net.link import connect_link, serve_links
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import (
    Delivery,
)


async def test_a_refused_connection_fails_fast() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with trio.fail_after(30), pytest.raises(Unreachable, match=f"ws://127.0.0.1:{port}: nothing listens there"):
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
        with trio.fail_after(30), pytest.raises(Unreachable):
            await WebSocketTransport().connect(f"ws://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def test_a_server_that_hangs_up_in_the_handshake() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, lambda stream: stream.aclose(), 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(30), pytest.raises(Unreachable):
            await WebSocketTransport().connect(f"ws://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


async def test_a_message_beyond_the_limit_closes_with_1009() -> None:
    transport = WebSocketTransport(max_message_bytes=1000)
    server = Server(transport)
    async with server.running(), connect_link(WebSocketTransport(), server.url, HELLO) as link:
        link.post(Delivery(1, payload=bytes(1001)))
        await link.wait_closed()
        assert "1009" in str(link.error)
