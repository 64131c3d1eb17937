"""``TlsStream`` over socket pairs, also against trio's own ``SSLStream``, and below a ``FrameStream``."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trio
from tidelog.net.dev_certificates import Authority, open_authority
from tidelog.net.tls import NodeIdentity, TlsFiles
from tidelog.net.tls_stream import RECORD_BYTES, TlsStream
from tidelog.net.transport import outgoing
from tidelog.net.websocket.frame_stream import FrameStream

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
LIMIT = 16 << 20


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return open_authority(tmp_path_factory.mktemp("ca"), NOW, DAY)


@pytest.fixture(scope="module")
def contexts(authority: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of the connecting and of the accepting end; both know the authority."""
    one = TlsFiles(authority.issue("c1", [NodeIdentity("controller", "c1")], ("localhost",), NOW, DAY))
    return one.connecting(), one.accepting()


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def version(request: pytest.FixtureRequest, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> str:
    """Both ends speak this version of TLS only."""
    newest = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}[request.param]
    contexts[0].maximum_version = newest
    return str(request.param)


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def ours(stream: trio.SocketStream, context: ssl.SSLContext, server: bool) -> TlsStream:
    return TlsStream(stream, context, server_side=server, server_hostname=None if server else "localhost")


@asynccontextmanager
async def pair(contexts: Contexts) -> AsyncIterator[tuple[TlsStream, TlsStream]]:
    """A connecting and an accepting end after the handshake."""
    near, far = trio.socket.socketpair()
    with near, far, trio.fail_after(20):
        client = ours(trio.SocketStream(near), contexts[0], False)
        server = ours(trio.SocketStream(far), contexts[1], True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.do_handshake)
            nursery.start_soon(server.do_handshake)
        yield client, server


async def read_exactly(stream: trio.abc.Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(1 << 20)
        assert more, "the connection ended"
        data += more
    return data


@pytest.mark.parametrize("size", [1, RECORD_BYTES, RECORD_BYTES + 1, 5 << 20])
async def test_what_is_sent_arrives_in_both_directions(contexts: Contexts, version: str, size: int) -> None:
    data = os.urandom(size)
    async with pair(contexts) as (client, server):
        for one, other in ((client, server), (server, client)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.send_all, data)
                assert await read_exactly(other, size) == data


@pytest.mark.parametrize("accepting", [True, False])
async def test_it_speaks_with_the_streams_of_trio(contexts: Contexts, version: str, accepting: bool) -> None:
    near, far = trio.socket.socketpair()
    with near, far, trio.fail_after(20):
        mine = ours(trio.SocketStream(near), contexts[accepting], accepting)
        theirs = trio.SSLStream(
            trio.SocketStream(far),
            contexts[not accepting],
            server_side=not accepting,
            server_hostname="localhost" if accepting else None,
            https_compatible=True,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mine.do_handshake)
            nursery.start_soon(theirs.do_handshake)
        data = os.urandom(300_000)
        for one, other in ((mine, theirs), (theirs, mine)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.send_all, data)
                assert await read_exactly(other, len(data)) == data


async def test_one_read_of_the_socket_returns_several_records(contexts: Contexts, version: str) -> None:
    async with pair(contexts) as (client, server):
        for part in (b"a", b"b", b"c"):
            assert client.write_now([part]) == 1
        await trio.lowlevel.wait_readable(server.socket)
        assert server.read_now(1 << 20) == b"abc"
        assert server.read_now(1 << 20) is None


async def test_records_that_arrive_in_pieces_are_put_together(contexts: Contexts, version: str) -> None:
    rng = random.Random(7)
    data = os.urandom(200_000)
    async with pair(contexts) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, data)
        received = b""
        while len(received) < len(data):
            await trio.lowlevel.wait_readable(server.socket)
            received += server.read_now(rng.choice((1, 5, 100, 20_000))) or b""
        assert received == data


async def test_what_the_kernel_does_not_take_leaves_before_the_next_data(contexts: Contexts, version: str) -> None:
    first, second = os.urandom(8 << 20), os.urandom(100)
    async with pair(contexts) as (client, server):
        assert client.write_now([first]) == len(first)
        assert client.has_unsent, "8 MiB fit into no socket buffer"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, second)
            assert await read_exactly(server, len(first) + 100) == first + second
        assert not client.has_unsent


@pytest.mark.parametrize("sizes", [(3, 0, 5), (70_000, 2, 3, 90_000), (RECORD_BYTES - 1,) * 9, (0,), ()])
async def test_buffers_arrive_in_order_whether_they_are_joined_or_not(
    contexts: Contexts, version: str, sizes: tuple[int, ...]
) -> None:
    buffers = [memoryview(os.urandom(size)) for size in sizes]
    async with pair(contexts) as (client, server):
        assert client.write_now(buffers) == sum(sizes)
        await client.send_all(b"end")
        assert await read_exactly(server, sum(sizes) + 3) == b"".join(buffers) + b"end"


async def close_with_notify(client: TlsStream) -> None:
    """Say ``close_notify``, and keep the TCP connection open."""
    with pytest.raises(ssl.SSLWantReadError):
        client._tls.unwrap()
    await client.flush()


async def close_without(client: TlsStream) -> None:
    """Close the TCP connection alone."""
    await client.aclose()


@pytest.mark.parametrize("close", [close_with_notify, close_without])
async def test_the_end_is_reported_after_the_last_data_and_again(
    contexts: Contexts, version: str, close: Callable[[TlsStream], Awaitable[None]]
) -> None:
    async with pair(contexts) as (client, server):
        await client.send_all(b"last")
        await close(client)
        assert await read_exactly(server, 4) == b"last"
        assert [await server.receive_some(100) for _ in range(2)] == [b"", b""]
        await trio.lowlevel.wait_readable(server.socket)
        assert server.read_now(100) == b""


async def test_bytes_that_are_no_tls_break_the_connection(contexts: Contexts, version: str) -> None:
    async with pair(contexts) as (client, server):
        await client.socket.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some(100)


async def test_a_changed_byte_breaks_the_connection(contexts: Contexts, version: str) -> None:
    async with pair(contexts) as (client, server):
        client._encrypt([b"pay 100 to alice"])
        sealed = bytearray(client._outgoing.read())
        sealed[-1] ^= 1
        await client.socket.send(sealed)
        with pytest.raises(trio.BrokenResourceError):
            await server.receive_some(100)


async def test_an_end_that_does_not_know_the_authority_sends_an_alert(contexts: Contexts) -> None:
    near, far = trio.socket.socketpair()
    with near, far, trio.fail_after(20):
        client = ours(trio.SocketStream(near), ssl.create_default_context(), False)
        server = ours(trio.SocketStream(far), contexts[1], True)
        failures: list[BaseException | None] = []

        async def shake(stream: TlsStream) -> None:
            try:
                await stream.do_handshake()
                await stream.receive_some(1)
            except trio.BrokenResourceError as error:
                failures.append(error.__cause__)
                await stream.flush()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake, client)
            nursery.start_soon(shake, server)
        assert isinstance(failures[0], ssl.SSLCertVerificationError)
        assert "UNKNOWN_CA" in str(failures[1])


async def test_messages_that_are_sent_without_waiting_arrive_in_order(contexts: Contexts, version: str) -> None:
    async with pair(contexts) as (client, server):
        near = FrameStream(client, "far", server=False, max_bytes=LIMIT)
        far = FrameStream(server, "near", server=True, max_bytes=LIMIT)
        bulk = os.urandom(8 << 20)
        await near.send(b"hello")
        assert await far.receive() == b"hello"
        assert near.can_send_now
        assert near.send_now([outgoing(b"1"), outgoing(b"2", [b"x", memoryview(b"yz")])])
        assert not near.send_now([outgoing(b"3", bulk)]), "8 MiB fit into no socket buffer"
        assert not near.can_send_now, "the next would overtake"
        received = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send_many, [outgoing(b"4")])
            for _ in range(4):
                received.append(await far.receive())
        assert received == [b"1", b"2xyz", b"3" + bulk, b"4"]
        assert near.can_send_now


async def test_session_tickets_of_the_server_leave_with_its_first_message(contexts: Contexts) -> None:
    contexts[0].maximum_version = ssl.TLSVersion.TLSv1_3
    async with pair(contexts) as (client, server):
        assert server.has_unsent, "a client that closes at once would reset the connection under them"
        await server.send_all(b"welcome")
        assert await read_exactly(client, 7) == b"welcome"
        assert not server.has_unsent
