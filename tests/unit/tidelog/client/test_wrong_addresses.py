"""Addresses that lead to something else than a gateway: what the error says, and when it comes. Tests
``client/connection.py``."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path

import pytest
import trio
from support.fake_gateway import FakeCluster
from support.link_peers import MemoryTransport, Server, rest
from tidelog.client.log import Log, open_log
from tidelog.client.loop import wall_ms
from tidelog.client.trio_loop import TrioLoop
from tidelog.errors import Unreachable
from tidelog.net.dev_certificates import open_authority
from tidelog.net.link import serve_links
from tidelog.net.tls import TlsFiles, TlsOptions
from tidelog.net.transport import Connection
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import Welcome

Answer = Callable[[trio.SocketStream], Awaitable[None]]
FOREVER_S = 1e6


def connecting(*urls: str, tls: TlsOptions | None = None) -> AbstractAsyncContextManager[Log]:
    """Return the context manager of a client that gives up when every gateway has failed once."""
    loop = TrioLoop(WebSocketTransport(tls=TlsFiles(tls or TlsOptions())))
    return open_log(urls, loop, FOREVER_S, FOREVER_S, "", "me", wall_ms, failed_timeout_s=0.0)


async def failure(*urls: str, tls: TlsOptions | None = None) -> str:
    """Return what the client says when no gateway is there."""
    with trio.fail_after(30), pytest.raises(Unreachable, match="no gateway can be reached") as caught:
        async with connecting(*urls, tls=tls):
            pytest.fail("connected")
    return caught.value.message


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """Yield the address of a TCP server that answers every connection so."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        yield f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def saying(data: bytes) -> Answer:
    """Return a server that says this to everybody and then waits for the end."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(data)
        async for _ in stream:
            pass

    return answer


async def hang_up(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.aclose()


@asynccontextmanager
async def service(role: str, *roles: str, secret: bytes = b"", tls: TlsFiles | None = None) -> AsyncIterator[str]:
    """Yield the URL of a service of this role that takes connections of these roles."""
    transport = WebSocketTransport(secret=secret, tls=tls)
    serve = partial(
        serve_links,
        transport,
        "127.0.0.1",
        0,
        lambda hello: Welcome(1, "c", "n", role, 1 << 20, 100),
        lambda *_: None,
        allowed=dict.fromkeys(roles, frozenset()),
        own_urls=(),
        role="" if role == "gateway" else role,
    )
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (saying(b"HTTP/1.1 404 Not Found\r\nServer: nginx\r\ncontent-length: 9\r\n\r\n"), "an HTTP server (nginx)"),
        (saying(b"\x15\x03\x03\x00\x02\x02\x16"), "the port speaks TLS: use wss://127.0.0.1:"),
        (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), "something else than a gateway answers there: b'SSH-2.0"),
        (hang_up, "the peer hung up without an answer"),
    ],
    ids=["HTTP", "TLS", "SSH", "hangs up"],
)
async def test_a_server_of_another_kind_is_named(answer: Answer, words: str) -> None:
    async with answering(answer) as url:
        assert f"{url}: {words}" in await failure(url)


async def test_an_address_at_which_nothing_listens_is_named() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{bound.getsockname()[1]}"
        assert f"{url}: nothing listens there" in await failure(url)


async def test_a_host_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    said = await failure("ws://log.example:1")
    assert "ws://log.example:1: the name of the host is not known (Name or service not known)" in said


@pytest.mark.parametrize(
    ("role", "roles", "secret", "words"),
    [
        ("controller", ("client",), b"", "a controller listens there, no gateway"),
        ("controller", ("client",), b"k" * 32, "a controller listens there, no gateway"),
        ("replica", ("gateway",), b"", "a replica server listens there, no gateway"),
    ],
    ids=["lets clients in", "wants a secret", "takes no clients"],
)
async def test_a_service_that_is_no_gateway_is_named_at_once(
    role: str, roles: tuple[str, ...], secret: bytes, words: str
) -> None:
    async with service(role, *roles, secret=secret) as url:
        assert f"{url}: {words}" in await failure(url)
        loop = TrioLoop(WebSocketTransport())
        with trio.fail_after(30), pytest.raises(Unreachable, match=words):
            async with open_log(url, loop, FOREVER_S, FOREVER_S, "", "me", failed_timeout_s=inf):
                pytest.fail("connected")


async def test_tls_and_plain_text_are_named_where_the_other_is_spoken(tmp_path: Path) -> None:
    ca = open_authority(tmp_path, datetime.now(UTC), timedelta(days=1))
    files = ca.issue("g1", [], ("127.0.0.1",), datetime.now(UTC), timedelta(days=1))
    trusted = TlsOptions(str(ca.ca))
    async with service("gateway", "client", tls=TlsFiles(files)) as url:
        assert f"use {url}" in await failure(url.replace("wss:", "ws:"), tls=trusted)
        assert "the certificate shown is not accepted" in await failure(url)
    async with service("gateway", "client") as url:
        assert "is it a port without TLS (ws://)?" in await failure(url.replace("ws:", "wss:"), tls=trusted)


async def test_another_gateway_is_tried_and_the_error_names_the_failure_of_each() -> None:
    wrongs = service("controller", "client"), answering(hang_up)
    async with FakeCluster().gateways() as [url], wrongs[0] as wrong, wrongs[1] as other:
        async with connecting(other, wrong, url) as log:
            assert await log.topics.list() == ()
        said = await failure(other, wrong)
        assert f"{other}: the peer hung up" in said and f"{wrong}: a controller listens there" in said


async def test_a_gateway_that_has_not_failed_yet_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """One has failed, and the other takes its time."""

    class Slow(MemoryTransport):
        async def connect(self, url: str) -> Connection:
            if url == "ws://g1":
                raise Unreachable("it is down")
            await rest(2.0)
            return await super().connect(url)

    server = Server(Slow())
    async with server.running():
        log = open_log(["ws://g1", "ws://g2"], TrioLoop(server.transport), 3.0, 3.0, "", "me", failed_timeout_s=0.3)
        async with log:
            assert trio.current_time() >= 2.0
        assert server.links


async def test_failures_are_waited_out_until_the_time_for_them_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Down(MemoryTransport):
        tries = 0

        async def connect(self, url: str) -> Connection:
            self.tries += 1
            raise Unreachable("it is down")

    transport = Down()
    with pytest.raises(Unreachable, match="ws://g1: it is down"):
        async with open_log("ws://g1", TrioLoop(transport), 3.0, 3.0, "", "me", failed_timeout_s=0.3):
            pytest.fail("connected")
    assert trio.current_time() == pytest.approx(0.3) and transport.tries > 1
