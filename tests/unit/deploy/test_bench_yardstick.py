"""The yardstick beside the benchmark: messages and counts are whole, wherever the bytes are cut. Tests
``bench/profile/yardstick.py``."""

from __future__ import annotations

import trio
import trio.testing
from bench.profile.yardstick import BUFFER, LENGTH, counts, runs


async def pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    left, right = trio.socket.socketpair()
    return trio.SocketStream(left), trio.SocketStream(right)


async def sent(stream: trio.SocketStream, data: bytes, step: int) -> None:
    async with stream:
        for start in range(0, len(data), step):
            await stream.send_all(data[start : start + step])
            await trio.testing.wait_all_tasks_blocked()


async def test_messages_are_passed_on_whole_however_they_arrive() -> None:
    messages = [LENGTH.pack(size) + bytes([size % 251]) * size for size in (0, 1, 7, 8, 300, 5, 1000)]
    for step in (1, 9, 1 << 20):
        near, far = await pair()
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(sent, near, b"".join(messages), step)
            found = [(bytes(run), count) async for run, count in runs(far)]
        assert b"".join(run for run, _ in found) == b"".join(messages)
        assert sum(count for _, count in found) == len(messages)
        assert (len(found) == 1) == (step == 1 << 20)


async def test_more_than_the_buffer_holds_goes_through_it() -> None:
    message = LENGTH.pack(1 << 20) + bytes(1 << 20)
    near, far = await pair()
    async with far, trio.open_nursery() as nursery:
        nursery.start_soon(sent, near, message * 9, len(message) * 9)
        found = [(len(run), count) async for run, count in runs(far)]
    assert sum(count for _, count in found) == 9 and len(message) * 9 > 2 * BUFFER
    assert all(size == count * len(message) for size, count in found)


async def test_of_counts_that_came_together_the_last_one_counts() -> None:
    data = b"".join(LENGTH.pack(count) for count in (1, 2, 3, 70_000))
    for step, wanted in ((1, [1, 2, 3, 70_000]), (32, [70_000]), (20, [2, 70_000])):
        near, far = await pair()
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(sent, near, data, step)
            assert [count async for count in counts(far)] == wanted
