"""Bursts: what is queued together leaves together, in order, without the writer; what the kernel does not take is
not lost. Over real sockets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tidelog.errors import TidelogError, Unreachable
from tidelog.net.link import PROTOCOL_VERSION, Link, burst, connect_link, serve_links
from tidelog.net.transport import outgoing
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import Hello, Message, Read, ReadAnswer, Welcome

HELLO = Hello(PROTOCOL_VERSION, role="client", node="c")


@asynccontextmanager
async def socket_pair() -> AsyncIterator[tuple[FrameStream, FrameStream]]:
    near, far = trio.socket.socketpair()
    with near, far:
        yield (
            FrameStream(trio.SocketStream(near), "far", server=False, max_bytes=16 << 20),
            FrameStream(trio.SocketStream(far), "near", server=True, max_bytes=16 << 20),
        )


@asynccontextmanager
async def open_link() -> AsyncIterator[Link]:
    """A link to a server that answers each read with its offset."""

    def answer(link: Link, id: int | None, message: Message) -> None:
        assert isinstance(message, Read) and id is not None
        link.answer(id, ReadAnswer(0, message.offset, 0, b"x" * message.max_bytes))

    def welcome(hello: Hello) -> Welcome | TidelogError:
        return Welcome(PROTOCOL_VERSION, "cluster", "s", "gateway", 16 << 20, 1000)

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        allowed = {"client": frozenset({Read.OP})}
        await serve_links(
            WebSocketTransport(), "127.0.0.1", 0, welcome, answer, allowed=allowed, task_status=task_status
        )

    async with trio.open_nursery() as nursery:
        url = await nursery.start(serve)
        async with connect_link(WebSocketTransport(), url, HELLO) as link:
            yield link
        nursery.cancel_scope.cancel()


async def test_messages_of_send_now_arrive() -> None:
    async with socket_pair() as (near, far):
        assert near.can_send_now
        assert near.send_now([outgoing(b"a"), outgoing(b"b", b"payload"), outgoing(b"c", [b"1", memoryview(b"23")])])
        assert [await far.receive() for _ in range(3)] == [b"a", b"bpayload", b"c123"]


async def test_bytes_that_the_kernel_does_not_take_go_first_with_the_next_send() -> None:
    async with socket_pair() as (near, far):
        bulk = os.urandom(8 << 20)
        messages = [outgoing(b"1"), outgoing(b"2", bulk), outgoing(b"3", [bulk[:5], memoryview(bulk)[5:9]])]
        assert not near.send_now(messages), "8 MiB fit into no socket buffer"
        assert not near.can_send_now, "the next would overtake"
        received = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.send_many, [outgoing(b"4")])
            for _ in range(4):
                received.append(await far.receive())
        assert received == [b"1", b"2" + bulk, b"3" + bulk[:9], b"4"]
        assert near.can_send_now


async def test_no_close_frame_is_written_into_half_a_message() -> None:
    async with socket_pair() as (near, far):
        near.send_now([outgoing(b"", bytes(8 << 20))])
        await near.aclose()
        with pytest.raises(Unreachable):
            await far.receive()


async def test_a_broken_socket_is_the_senders_to_report() -> None:
    async with socket_pair() as (near, far):
        await trio.aclose_forcefully(far._stream)
        assert not near.send_now([outgoing(b"a")])
        with pytest.raises(Unreachable):
            await near.send_many([])


async def test_a_burst_is_one_send(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    writev = os.writev

    def count(fd: int, buffers: Sequence[Any]) -> int:
        writes.append(len(buffers))
        return writev(fd, buffers)

    answers: list[int] = []
    done = trio.Event()

    def on_answer(answer: Message | TidelogError) -> None:
        assert isinstance(answer, ReadAnswer)
        answers.append(answer.high_watermark)
        if len(answers) == 20:
            done.set()

    async with open_link() as link:
        monkeypatch.setattr(os, "writev", count)
        with burst():
            for offset in range(10):
                link.start_call(Read("t", 0, offset, max_bytes=10), 5.0, on_answer)
            with burst():  # within another: the outer one ends it
                for offset in range(10, 20):
                    link.start_call(Read("t", 0, offset, max_bytes=10), 5.0, on_answer)
            assert writes == []
        assert writes == [20]
        await done.wait()
    assert answers == list(range(20))


async def test_bursts_and_the_writer_keep_the_order() -> None:
    answers: list[int] = []
    done = trio.Event()

    def on_answer(answer: Message | TidelogError) -> None:
        assert isinstance(answer, ReadAnswer)
        answers.append(answer.high_watermark)
        if len(answers) == 200:
            done.set()

    async with open_link() as link:
        for round in range(10):
            for number in range(10):  # by the writer
                link.start_call(Read("t", 0, 20 * round + number, max_bytes=300_000), 5.0, on_answer)
            if round % 2:
                await trio.lowlevel.checkpoint()
            with burst():
                for number in range(10, 20):
                    link.start_call(Read("t", 0, 20 * round + number, max_bytes=300_000), 5.0, on_answer)
        await done.wait()
    assert answers == list(range(200))


async def test_a_ping_and_its_pong_leave_without_the_writer() -> None:
    """No task calls ``send_many``, and none is asked to."""
    asked: list[str] = []
    async with socket_pair() as (near, far), trio.open_nursery() as nursery:
        near.on_urgent, far.on_urgent = lambda: asked.append("near"), lambda: asked.append("far")
        nursery.start_soon(near.receive)
        nursery.start_soon(far.receive)
        near.ping()
        with trio.fail_after(10):
            while near.answered_at is None:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert not asked


async def test_a_ping_behind_what_the_kernel_has_not_taken_is_left_to_the_writer() -> None:
    asked: list[str] = []
    async with socket_pair() as (near, far), trio.open_nursery() as nursery:
        near.on_urgent = lambda: asked.append("near")
        assert not near.send_now([outgoing(b"", bytes(8 << 20))])
        near.ping()
        assert asked == ["near"]
        nursery.start_soon(near.send_many, [])
        assert len(await far.receive()) == 8 << 20
        nursery.start_soon(far.receive)
        nursery.start_soon(near.receive)
        with trio.fail_after(10):
            while near.answered_at is None:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
