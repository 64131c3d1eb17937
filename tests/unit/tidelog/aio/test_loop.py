"""The client's loop on asyncio keeps the promises of ``Loop``, and its links report why they cannot be opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import tidelog.aio
from support.gateway_thread import served
from tidelog.aio.loop import AsyncioLoop
from tidelog.errors import Closed, ConfigError, Unreachable
from tidelog.net.tls import TlsFiles, TlsOptions
from tidelog.types import TopicPartition

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def loop() -> AsyncioLoop:
    return AsyncioLoop(TlsFiles(TlsOptions()))


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(main())


def test_a_wait_ends_with_the_event_or_at_the_deadline() -> None:
    async def test() -> None:
        event = loop().event()
        await loop().wait(event, loop().now())
        assert not event.is_set()
        async with loop().tasks() as start:

            async def set_it() -> None:
                event.set()

            start(set_it)
            await loop().wait(event)
        assert event.is_set()

    run(test())


def test_the_first_error_ends_the_others_and_comes_bare() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise Closed("first")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def test() -> None:
        with pytest.raises(Closed, match="first"):
            await loop().gather([waits, fails, fails])

    run(test())
    assert ended == ["waits"]


def test_an_exception_in_the_block_is_raised_bare_and_its_tasks_end() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def test() -> None:
        with pytest.raises(KeyError):
            async with loop().tasks() as start:
                start(waits)
                await asyncio.sleep(0)
                raise KeyError("x")

    run(test())
    assert ended == ["waits"]


def test_a_task_that_breaks_ends_the_block() -> None:
    async def breaks() -> None:
        raise KeyError("a fault of ours")

    async def test() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with loop().tasks() as start:
                start(breaks)
                await asyncio.Event().wait()
        assert isinstance(caught.value.exceptions[0], KeyError)

    run(test())


def http(status: str, more: str = "") -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\n{more}content-length: 0\r\n\r\n".encode())
            await writer.drain()
        finally:  # also where the test is over before
            writer.close()

    return answer


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http("404 Not Found"), "an HTTP server answers there with status 404"),
        (http("426 Upgrade Required", "upgrade: TLS/1.2\r\n"), "the port speaks TLS: use wss://"),
        (hang_up, "ws://127.0.0.1"),
    ],
    ids=["no WebSocket", "TLS", "hangs up"],
)
def test_a_server_that_is_no_gateway_is_unreachable_and_the_error_says_why(answer: Answer, why: str) -> None:
    async def test() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Unreachable, match=why):
                async with tidelog.aio.connect(f"ws://127.0.0.1:{port}", connect_timeout_s=0.1):
                    raise AssertionError("connected")

    run(test())


def test_an_invalid_url_is_refused() -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match=r"did you mean ws://127\.0\.0\.1:1"):
            async with tidelog.aio.connect("http://127.0.0.1:1", connect_timeout_s=0.1):
                raise AssertionError("connected")

    run(test())
    with pytest.raises(ConfigError, match="no gateway URL"):
        tidelog.aio.connect([])


def test_a_member_of_a_group_whose_task_is_cancelled_leaves_at_once() -> None:
    async def test() -> None:
        with served() as (cluster, url):
            joined = asyncio.Event()

            async def member() -> None:
                async with tidelog.aio.connect(url) as log, log.consume("orders", group="g") as consumer:
                    async with log.producer("orders") as producer:
                        await producer.send(b"v")
                    await consumer.__anext__()
                    joined.set()
                    await asyncio.Event().wait()

            cluster.group.give("", [TopicPartition(cluster.topics["orders"].topic_id, 0)])
            task = asyncio.create_task(member())
            await joined.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(cluster.group.left) == 1

    run(test())
