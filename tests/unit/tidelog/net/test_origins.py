"""Whose web pages may connect to a port."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from support.link_peers import Server
from tidelog.errors import ConfigError
from tidelog.net.origins import Origins, is_origin
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.runtime.config import load
from tidelog_gateway.config import GatewayConfig

NO_BROWSERS = Origins(("*",), browsers=False)
OUTSIDE = Origins()
SECURE = Origins(secure=True)
NAMED = Origins(("https://app.example", "http://10.0.0.7:3000"))

ADMITTED = [
    (OUTSIDE, "", "10.0.0.1:9292"),
    (OUTSIDE, "", ""),
    (OUTSIDE, "http://10.0.0.1:9292", "10.0.0.1:9292"),
    (OUTSIDE, "http://10.0.0.1", "10.0.0.1:80"),
    (OUTSIDE, "http://[fd00::1]:9292", "[fd00::1]:9292"),
    (OUTSIDE, "http://localhost:9292", "localhost:9292"),
    (OUTSIDE, "http://127.0.0.1:9292", "127.0.0.1:9292"),
    (Origins(("http://localhost:3000",)), "http://localhost:3000", "127.0.0.1:9292"),
    (NO_BROWSERS, "", "127.0.0.1:9292"),
    (SECURE, "https://log.example:9292", "log.example:9292"),
    (SECURE, "https://LOG.example", "log.example:443"),
    (NAMED, "https://app.example", "log.example:9292"),
    (NAMED, "http://10.0.0.7:3000", "log.example:9292"),
    (Origins(("*",)), "http://evil.example", "log.example:9292"),
    (Origins(("null",)), "null", "log.example:9292"),
]
REFUSED = [
    (OUTSIDE, "http://evil.example", "10.0.0.1:9292"),
    (OUTSIDE, "http://10.0.0.1:3000", "10.0.0.1:9292"),
    (OUTSIDE, "https://10.0.0.1:9292", "10.0.0.1:9292"),
    (OUTSIDE, "http://localhost:3000", "10.0.0.1:9292"),
    (OUTSIDE, "http://evil.example:9292", "evil.example:9292"),
    (OUTSIDE, "null", "10.0.0.1:9292"),
    (OUTSIDE, "http://10.0.0.1:9292", ""),
    (OUTSIDE, "http://10.0.0.1:nine", "10.0.0.1:nine"),
    (OUTSIDE, "http://localhost:3000", "127.0.0.1:9292"),
    (OUTSIDE, "http://127.0.0.1:3000", "127.0.0.1:9292"),
    (OUTSIDE, "https://127.0.0.2:3000", "localhost:9292"),
    (OUTSIDE, "http://[::1]:3000", "127.0.0.1:9292"),
    (OUTSIDE, "http://localhost:9292", "127.0.0.1:9292"),
    (NO_BROWSERS, "http://127.0.0.1:9292", "127.0.0.1:9292"),
    (NO_BROWSERS, "null", "127.0.0.1:9292"),
    (OUTSIDE, "http://evil.example", "127.0.0.1:9292"),
    (OUTSIDE, "http://evil.example:9292", "evil.example:9292"),
    (OUTSIDE, "http://localhost.evil.example", "localhost:9292"),
    (OUTSIDE, "http://127.0.0.1.evil.example", "localhost:9292"),
    (OUTSIDE, "null", "127.0.0.1:9292"),
    (OUTSIDE, "http://127.0.0.1:9292, http://evil.example", "127.0.0.1:9292"),
    (SECURE, "http://log.example:9292", "log.example:9292"),
    (SECURE, "https://evil.example", "log.example:9292"),
    (NAMED, "https://app.example.evil.example", "log.example:9292"),
    (NAMED, "http://app.example", "log.example:9292"),
]


@pytest.mark.parametrize(("origins", "origin", "host"), ADMITTED)
def test_pages_of_the_port_itself_and_of_named_origins_and_clients_that_are_no_browser_may_connect(
    origins: Origins, origin: str, host: str
) -> None:
    assert origins.admits(origin, host)


@pytest.mark.parametrize(("origins", "origin", "host"), REFUSED)
def test_pages_of_others_may_not(origins: Origins, origin: str, host: str) -> None:
    assert not origins.admits(origin, host)


async def handshake(url: str, *headers: str) -> str:
    """The answer to a handshake with these headers."""
    host = url.removeprefix("ws://")
    asked = [
        "GET / HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol: tidelog.v1",
        *headers,
    ]
    with trio.fail_after(10):
        name, port = host.split(":")
        stream = await trio.open_tcp_stream(name, int(port))
        async with stream:
            await stream.send_all("\r\n".join([*asked, "", ""]).encode())
            answer = (await stream.receive_some(4096)).decode()
            if not answer.startswith("HTTP/1.1 101"):
                answer += (b"".join([data async for data in stream])).decode()
            return answer


async def test_a_page_of_another_origin_is_refused_before_the_upgrade_with_the_reason() -> None:
    async with Server(WebSocketTransport()).running() as server:
        port = server.url.rsplit(":", 1)[1]
        assert (await handshake(server.url, f"Origin: http://127.0.0.1:{port}")).startswith("HTTP/1.1 101")
        assert (await handshake(server.url)).startswith("HTTP/1.1 101")
        for origin in ("http://localhost:3000", "http://127.0.0.1:3000"):  # another program of this machine
            assert (await handshake(server.url, f"Origin: {origin}")).startswith("HTTP/1.1 403")
        refused = await handshake(server.url, "Origin: http://evil.example")
        assert refused.startswith("HTTP/1.1 403")
        assert "pages of http://evil.example may not connect here" in refused
        assert "allowed_origins" in refused
        assert (await handshake(server.url, "Origin: http://localhost", "Origin: http://x.example"))[9:12] == "403"
        assert server.links == []


async def test_an_origin_that_is_named_may_connect() -> None:
    transport, served = WebSocketTransport(), trio.Event()

    async def take(connection: object) -> None:
        served.set()

    async with trio.open_nursery() as nursery:
        serve = partial(transport.serve, "127.0.0.1", 0, take, origins=("https://app.example",))
        url = await nursery.start(serve)
        assert (await handshake(url, "Origin: https://app.example")).startswith("HTTP/1.1 101")
        await served.wait()
        assert (await handshake(url, "Origin: https://other.example")).startswith("HTTP/1.1 403")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("text", ["https://app.example", "http://10.0.0.7:3000", "http://[::1]:80", "*", "null"])
def test_valid_origins_are_recognized(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize(
    "text", ["app.example", "https://app.example/", "ws://app.example", "https://", "https://a:b"]
)
def test_an_invalid_origin_is_a_fault_of_the_configuration(text: str) -> None:
    assert not is_origin(text)
    with pytest.raises(ConfigError, match="allowed_origins"):
        load(GatewayConfig, None, flags={"allowed_origins": text})
