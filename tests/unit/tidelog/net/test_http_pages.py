"""Plain HTTP on the port that speaks WebSocket: pages, and what is no page."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import h11
import pytest
import trio
from support.link_peers import ALLOWED, HELLO, WELCOME
from tidelog.net.http_pages import answer
from tidelog.net.link import connect_link, serve_links
from tidelog.net.transport import Page, Pages
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve as serve_controller

from unit.tidelog.net.test_host_names import REBOUND


def broken(accept: str) -> Page:
    raise RuntimeError("a bug of ours")


PAGES: Pages = {"/hello": lambda accept: Page(f"you take {accept}".encode(), "text/x-hello"), "/broken": broken}


class Reply(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    async def serve(task_status: trio.TaskStatus[str]) -> None:
        await serve_links(
            WebSocketTransport(),
            "127.0.0.1",
            0,
            lambda hello: WELCOME,
            lambda link, id, message: None,
            allowed=ALLOWED,
            pages=PAGES,
            task_status=task_status,
        )

    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()


async def ask(target: str, method: str = "GET", **headers: str) -> Reply:
    """One request to a server of these pages."""
    async with serving() as url:
        return await ask_at(url, target, method, **headers)


async def ask_at(url: str, target: str, method: str = "GET", **headers: str) -> Reply:
    """One request to a server, which then hangs up."""
    connection = h11.Connection(h11.CLIENT)
    named = {"host": url.partition("://")[2]} | headers
    request = h11.Request(method=method, target=target, headers=list(named.items()))
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream:
        await stream.send_all((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        data = b""
        while more := await stream.receive_some():
            data += more
    connection.receive_data(data)
    connection.receive_data(b"")
    response, body = connection.next_event(), b""
    assert isinstance(response, h11.Response)
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    return Reply(response.status_code, dict(response.headers), body)


async def test_a_page_is_served_beside_the_websocket() -> None:
    reply = await ask("/hello?for=nothing", accept="tea")
    assert (reply.status, reply.headers[b"content-type"], reply.body) == (200, b"text/x-hello", b"you take tea")
    async with serving() as url, connect_link(WebSocketTransport(), url, HELLO) as link:
        assert not link.closed


async def test_a_request_for_an_unknown_page_gets_the_list_of_pages() -> None:
    reply = await ask("/nothing")
    assert reply.status == 404 and b"WebSocket" in reply.body and b"/hello\n" in reply.body
    reply = await ask("/hello", "POST", **{"content-length": "0"})
    assert (reply.status, reply.headers[b"allow"]) == (405, b"GET, HEAD")


async def test_a_head_has_the_length_but_not_the_body() -> None:
    reply = await ask("/hello", "HEAD", accept="tea")
    assert (reply.status, reply.headers[b"content-length"], reply.body) == (200, b"12", b"")


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("", False),
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("GZIP", True),
        ("identity, gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("x-gzipped", False),
    ],
)
def test_a_compressed_page_goes_to_clients_that_accept_it(accepted: str, compressed: bool) -> None:
    pages = {"/long": lambda accept: Page(b"long " * 99, gzipped=gzip.compress(b"long " * 99))}
    reply = answer(f"GET /long HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {accepted}\r\n\r\n".encode(), pages)
    assert reply is not None
    head, _, body = reply.partition(b"\r\n\r\n")
    assert f"\r\ncontent-length: {len(body)}\r\n".encode() in head and b"\r\nvary: accept-encoding" in head
    assert (b"\r\ncontent-encoding: gzip" in head) == compressed
    assert (gzip.decompress(body) if compressed else body) == b"long " * 99


async def test_a_page_that_fails_is_a_fault_of_ours_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    reply = await ask("/broken")
    assert (reply.status, reply.body) == (500, b"internal error\n")
    assert "a bug of ours" in caplog.text
    assert (await ask("/hello", accept="tea")).status == 200


@pytest.mark.parametrize(("metrics", "status"), [(True, 200), (False, 404)])
async def test_metrics_can_be_turned_off(tmp_path: Path, metrics: bool, status: int) -> None:
    config = ControllerConfig(port=0, data_dir=str(tmp_path), metrics=metrics, shutdown_s=0)
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(serve_controller, config, transport=WebSocketTransport()))
        assert (await ask_at(url, "/metrics")).status == status
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", REBOUND)
async def test_metrics_are_served_only_under_names_of_this_service(tmp_path: Path, host: str) -> None:
    """The page of a name that was made to lead here is of the same origin as the metrics, and sends no Origin."""
    config = ControllerConfig(port=0, data_dir=str(tmp_path), shutdown_s=0, allowed_hosts=("C1.example",))
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(serve_controller, config, transport=WebSocketTransport()))
        for own in ("127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:9192", "10.0.0.7:9192", "c1.example:9192"):
            assert (await ask_at(url, "/metrics", host=own)).status == 200
        reply = await ask_at(url, "/metrics", host=host)
        assert reply.status == 403 and b"allowed_hosts" in reply.body and b"tidelog_" not in reply.body
        assert (await ask_at(url, "/healthz", host=host)).status == 200, "whoever balances load may ask by any name"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"GET /hello HTTP/1.1\r\n\r\n",
    ],
    ids=["an upgrade", "TLS", "bytes beyond ASCII", "no host"],
)
def test_heads_of_other_requests_are_left_to_the_handshake(head: bytes) -> None:
    assert answer(head, PAGES) is None
