"""One connection over HTTP: what keeps it open and what ends it, and clients that are slow, foreign or hostile. Tests
``http/http_port.py`` and ``http/cross_origin.py`` with a gateway that has no cluster."""

from __future__ import annotations

from itertools import count

import h11
import pytest
import trio
from support.http.port import http_port
from tidelog.acl import new_token
from tidelog.net.websocket.frame_stream import PROGRESS_S
from tidelog.types import Token
from tidelog_gateway.http.http_port import HEAD_S, IDLE_S, SEND_S
from tidelog_gateway.http.request_head import MAX_HEAD_BYTES
from tidelog_gateway.http.responses import Response
from tidelog_gateway.rights.authorizer import AuthorizerSettings
from trio.testing import MockClock

APPEND = "/v1/topics/orders/records"
CLOSED = AuthorizerSettings(authentication=True)


def token_for(principal: str) -> tuple[str, Token]:
    made = new_token()
    return made.text, Token(made.token_id, principal, made.digest)


async def test_requests_follow_one_another_on_a_connection_also_if_they_are_sent_at_once(
    autojump_clock: MockClock,
) -> None:
    async with http_port() as port:
        client = port.connect()
        assert (await client.ask("GET", "/v1/openapi.json")).status == 200
        request = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        await client.stream.send_all(request + request + b"\r\n" + request)
        for _ in range(3):
            assert (await client.answer()).json["openapi"] == "3.1.0"
        head = await client.ask("HEAD", "/v1/openapi.json")
        assert (head.status, head.body, int(head.headers["content-length"]) > 1000) == (200, b"", True)


async def test_a_request_for_another_part_of_the_port_is_handed_back_whole(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        await client.ask("GET", "/v1/openapi.json")
        page = b"GET /console/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nrest"
        await client.stream.send_all(page)
        assert await client.is_closed()
        assert port.left == [page]


async def test_a_connection_that_is_idle_ends_without_a_word(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        began = trio.current_time()
        assert await client.is_closed()
        assert trio.current_time() - began == IDLE_S


async def test_a_head_that_does_not_come_to_its_end_is_answered(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        began = trio.current_time()
        await client.stream.send_all(b"GET /v1/")
        assert (await client.answer()).code == "REQUEST_TIMED_OUT"
        assert trio.current_time() - began == HEAD_S
        assert await client.is_closed()


async def test_a_body_that_does_not_get_on_is_answered_and_nothing_is_appended(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        await client.stream.send_all(
            f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\n".encode()
        )
        await client.stream.send_all(b"x" * 100)
        answer = await client.answer()
        assert (answer.status, answer.code) == (408, "REQUEST_TIMED_OUT")
        assert port.shell.router.counts.batches == 0
        assert await client.is_closed()


async def test_a_client_may_ask_before_it_sends_a_body(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        head = f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        await client.stream.send_all(head.encode())
        assert await client.stream.receive_some(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.stream.send_all(b"ab")
        assert (await client.answer()).code == "UNKNOWN_TOPIC"


async def test_of_bodies_that_hold_too_much_the_oldest_gives_up(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        port.backlog._most = 1 << 20
        old, new = port.connect(), port.connect()
        head = f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n".encode()
        await old.stream.send_all(head + bytes(600_000))
        await trio.testing.wait_all_tasks_blocked()
        await new.stream.send_all(head + bytes(600_000))
        answer = await old.answer()
        assert (answer.status, answer.code) == (503, "OVERLOADED")
        await new.stream.send_all(bytes(400_000))
        assert (await new.answer()).code == "UNKNOWN_TOPIC"
        assert port.backlog.total == 0


WIRE: dict[str, tuple[bytes, int]] = {
    "a head without an end": (b"GET /v1/topics HTTP/1.1\r\n" + b"X: y\r\n" * 3000, 431),
    "a head that is too long, with its end": (
        b"GET /v1/topics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        431,
    ),
    "a request in a body of two lengths": (
        b"POST /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nDELETE /v1/topics/orders HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        400,
    ),
    "a broken chunk": (
        b"POST /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        400,
    ),
    "a body that is announced too long": (
        b"POST /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n",
        413,
    ),
    "a method that is no word": (b"G@T /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "a page of another origin": (
        b"POST /v1/topics/orders/records HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 1\r\n\r\nx",
        403,
    ),
    "a page that has bound its name to this address": (
        b"GET /v1/topics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        403,
    ),
    "a request in the target of a proxy, for another host": (
        b"GET http://evil.example/v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        403,
    ),
    "TRACE": (b"TRACE /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
    "CONNECT": (b"CONNECT /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
    "HTTP/0.9": (b"GET /v1/topics\r\n\r\n", 400),
    "a name that is not UTF-8": (b"GET /v1/topics/%ff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "another kind of credentials": (
        b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic YTpi\r\n\r\n",
        401,
    ),
    "a token that does not exist": (
        b"GET /v1/topics HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer tl_x_y\r\n\r\n",
        401,
    ),
}


@pytest.mark.parametrize(("wire", "status"), WIRE.values(), ids=WIRE)
async def test_what_is_refused_before_its_body_is_read_ends_the_connection(
    wire: bytes, status: int, autojump_clock: MockClock
) -> None:
    async with http_port() as port:
        client = port.connect()
        answer = await client.raw(wire + b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert answer.status == status and answer.code
        assert answer.headers["connection"] == "close"
        assert await client.is_closed(), "and nothing behind it is read"
        assert port.left == [None]


async def test_a_client_that_never_sends_the_body_it_has_asked_for_is_answered(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        began = trio.current_time()
        head = f"POST {APPEND} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        await client.stream.send_all(head.encode())
        assert await client.stream.receive_some(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.answer()).status == 408
        assert trio.current_time() - began == PROGRESS_S
        assert await client.is_closed()


def sockets() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two connected sockets, which take what is sent at once."""
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def test_a_client_that_sends_many_requests_at_once_takes_turns_with_others() -> None:
    async with http_port() as port:
        many, other = port.connect(sockets), port.connect(sockets)
        request = b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        served = count()
        port.http.wall_ms = lambda: next(served)  # which each answer asks
        head = request.replace(b"GET", b"HEAD")
        await many.stream.send_all(head * 200)
        assert (await other.ask("GET", "/v1/openapi.json")).status == 200
        assert next(served) < 50
        for _ in range(200):
            assert (await many.answer("HEAD")).status == 200
        for client in (many, other):
            await client.stream.aclose()


async def test_of_long_answers_that_nobody_takes_the_oldest_gives_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def long(link: object) -> Response:
        return Response(200, bytes(6 << 20))

    async with http_port() as port:
        monkeypatch.setattr(port.http.administration, "list_topics", long)
        port.backlog._most = 10 << 20
        old, new = (port.connect(trio.testing.lockstep_stream_pair) for _ in range(2))
        for client in (old, new):
            await client.stream.send_all(b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
        assert 0 < port.backlog.total <= 10 << 20
        assert len((await new.answer()).body) == 6 << 20
        with pytest.raises(h11.RemoteProtocolError):  # it ends in the middle
            await old.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert port.backlog.total == 0


async def test_a_client_that_does_not_take_its_answer_is_disconnected(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def long(link: object) -> Response:
        return Response(200, bytes(1 << 20))

    async with http_port() as port:
        monkeypatch.setattr(port.http.administration, "list_topics", long)
        client = port.connect(trio.testing.lockstep_stream_pair)
        await client.stream.send_all(b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        mock_clock.jump(SEND_S - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not port.left
        mock_clock.jump(2)
        await trio.testing.wait_all_tasks_blocked()
        assert port.left == [None]
        assert not port.clients._clients


async def test_a_page_of_a_listed_origin_may_ask_and_its_browser_is_told(autojump_clock: MockClock) -> None:
    origin = "https://app.example"
    async with http_port() as port:
        client = port.connect()
        client.host = "gateway.example"  # without a token, and a name that nobody knows: the origin decides
        told = await client.ask("OPTIONS", APPEND, Origin=origin, Access_Control_Request_Method="POST")
        assert (told.status, told.headers["access-control-allow-origin"]) == (204, origin)
        assert told.headers["access-control-allow-methods"] == "POST, OPTIONS"
        assert "idempotency-key" in told.headers["access-control-allow-headers"]
        answer = await client.ask("POST", APPEND, b"x", Origin=origin)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, origin)
        refused = await client.ask("POST", APPEND, b"x", Origin="https://other.example")
        assert refused.status == 403 and "access-control-allow-origin" not in refused.headers


async def test_a_token_is_asked_for_and_each_request_counts_for_its_own(autojump_clock: MockClock) -> None:
    alice, bob = token_for("alice"), token_for("bob")
    async with http_port(CLOSED) as port:
        port.know(alice[1], bob[1])
        await trio.testing.wait_all_tasks_blocked()
        client = port.connect()
        refused = await client.ask("GET", "/v1/topics")
        assert (refused.code, refused.headers["www-authenticate"]) == ("UNAUTHENTICATED", "Bearer")
        client = port.connect()
        for token, principal in ((alice[0], "alice"), (bob[0], "bob"), (alice[0], "alice")):
            client.token = token
            assert (await client.ask("GET", "/v1/topics")).status == 200
            assert [client.principal for client in port.clients._clients.values()] == [principal]
        port.know(bob[1])  # that of alice is revoked
        assert await client.is_closed()
        assert not port.clients._clients


async def test_connections_count_for_their_address(autojump_clock: MockClock) -> None:
    async with http_port(address_max_connections=1) as port:
        first, second = port.connect(), port.connect()
        assert (await first.ask("GET", "/v1/topics")).status == 200
        assert (await second.ask("GET", "/v1/topics")).code == "OVERLOADED"
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (await port.connect().ask("GET", "/v1/topics")).status == 200


async def test_a_gateway_that_ends_closes_idle_connections(autojump_clock: MockClock) -> None:
    async with http_port() as port:
        client = port.connect()
        await client.ask("GET", "/v1/topics")
        await port.drain.leave()
        assert await client.is_closed()
        assert (await port.connect().ask("GET", "/v1/topics")).code == "OVERLOADED"


async def test_a_bug_is_answered_and_ends_this_connection_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_port() as port:
        monkeypatch.setattr(port.http.administration, "list_topics", lambda link: 1 / 0)
        client, other = port.connect(), port.connect()
        answer = await client.ask("GET", "/v1/topics")
        assert (answer.status, answer.json["detail"]) == (500, "internal error")
        assert (await other.ask("GET", "/v1/metadata")).status == 200
