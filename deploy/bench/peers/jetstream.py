"""The JetStream client of the cases, through nats-py. One server leads a stream, so there are as many streams as the
other products have partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import nats
from bench.peers.measurements import GROUP, Acks, Audience, Order, moments, pauses, stamped, stamped_values, value_of
from nats.errors import Error as NatsError

NOT_YET = (NatsError, OSError, TimeoutError)
"""Errors of a cluster that is not ready yet."""
FIRST_REPLY_S = 5.0


@asynccontextmanager
async def _connected(order: Order) -> AsyncIterator[Any]:
    connection = await nats.connect(list(order.addresses), error_cb=_ignore)
    try:
        yield connection
    finally:
        await connection.close()


async def _ignore(error: Exception) -> None:
    """Ignore an error of the connection: in one of the cases it breaks, and the client connects again by itself."""


def _streams(order: Order) -> list[str]:
    return [f"{order.topic}-{number}" for number in range(order.partitions)]


def create(order: Order) -> None:
    """Create the streams of an order, in files, with three replicas."""
    asyncio.run(_create(order))


async def _create(order: Order) -> None:
    async with _connected(order) as connection:
        context = connection.jetstream(timeout=FIRST_REPLY_S)
        for name in _streams(order):
            await context.add_stream(name=name, subjects=[name], num_replicas=3, storage="file")


def produce(order: Order) -> tuple[int, float]:
    """Send records for ``order.seconds``, and return the number acknowledged and the seconds. Raises ``RuntimeError``
    if some failed."""
    return asyncio.run(_produce(order))


async def _produce(order: Order) -> tuple[int, float]:
    value, streams, acks = value_of(order.size), _streams(order), Acks()

    def settle(future: asyncio.Future[Any]) -> None:
        acks.add(future.exception())

    async with _connected(order) as connection:
        context = connection.jetstream(**order.options)
        for stream in streams:
            await context.publish(stream, value)
        sent, began = 0, time.monotonic()
        while time.monotonic() < began + order.seconds:
            for _ in range(GROUP):
                future = await context.publish_async(streams[sent % len(streams)], value)
                future.add_done_callback(settle)
                sent += 1
        for _ in pauses(lambda: acks.settled == sent, "all acks"):
            await asyncio.sleep(0.001)
        seconds = time.monotonic() - began
    if acks.failed:
        raise RuntimeError(f"{acks.failed} records failed: {acks.first_error}")
    return sent, seconds


def latency(order: Order) -> list[float]:
    """Send records one at a time, and return the seconds that each took."""
    return asyncio.run(_latency(order))


async def _latency(order: Order) -> list[float]:
    value, taken = value_of(order.size), []
    (stream,) = _streams(order)
    async with _connected(order) as connection:
        context = connection.jetstream()
        for _ in range(order.records):
            began = time.monotonic()
            await context.publish(stream, value)
            taken.append(time.monotonic() - began)
    return taken


def consume(order: Order) -> tuple[int, float]:
    """Read every stream to its end by an ordered consumer, and return the bytes of values and the seconds."""
    return asyncio.run(_consume(order))


async def _consume(order: Order) -> tuple[int, float]:
    size, began = 0, 0.0

    async def take(message: Any) -> None:
        nonlocal size, began, left
        began = began or time.monotonic()
        size += len(message.data)
        left -= 1

    async with _connected(order) as connection:
        context = connection.jetstream(timeout=FIRST_REPLY_S)
        left = sum([(await context.stream_info(stream)).state.messages for stream in _streams(order)])
        for stream in _streams(order):
            await context.subscribe(stream, ordered_consumer=True, cb=take)
        for _ in pauses(lambda: left <= 0, "every record"):
            await asyncio.sleep(0.001)
        return size, time.monotonic() - began


def fan_out(order: Order) -> list[float]:
    """Send records at a steady rate, and return for each subscriber and record the seconds until the subscriber has
    it. Each subscriber is an ordered consumer on a connection of its own."""
    return asyncio.run(_fan_out(order))


async def _fan_out(order: Order) -> list[float]:
    audience = Audience(order.subscribers, order.records)
    (stream,) = _streams(order)
    connections: list[Any] = []
    async with _connected(order) as connection:
        context = connection.jetstream()
        for _ in range(order.subscribers):
            connections.append(await _listen(order, audience))
        await context.publish(stream, stamped(order.size, 0.0))
        for _ in pauses(audience.is_awake, "the first record at every subscriber"):
            await asyncio.sleep(0.01)
        for at in moments(order.rate, order.records):
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await context.publish_async(stream, stamped(order.size, time.monotonic()))
        for _ in pauses(audience.is_done, "every record at every subscriber"):
            await asyncio.sleep(0.01)
        for each in connections:
            await each.close()
    return audience.delays


async def _listen(order: Order, audience: Audience) -> Any:
    """Open one subscriber, and return its connection."""

    async def take(message: Any) -> None:
        audience.add(message.data)

    (stream,) = _streams(order)
    connection = await nats.connect(list(order.addresses))
    await connection.jetstream(timeout=FIRST_REPLY_S).subscribe(stream, ordered_consumer=True, cb=take)
    return connection


def subscribe(order: Order, audience: Audience) -> None:
    """Open the subscribers, and keep them open until the process ends. Each is an ordered consumer on a
    connection of its own."""
    asyncio.run(_subscribe(order, audience))


async def _subscribe(order: Order, audience: Audience) -> None:
    connections = []
    async with asyncio.TaskGroup() as tasks:
        for opened in range(order.subscribers):
            for _ in pauses(lambda opened=opened: audience.may_open(opened), "the first record"):
                await asyncio.sleep(0.005)
            connections.append(tasks.create_task(_listen(order, audience)))
        await asyncio.Event().wait()


def publish(order: Order, wait_for_turn: Callable[[], bool]) -> None:
    """Send a record whenever ``wait_for_turn`` has returned True, until it returns False, and wait for each ack. The
    first record is to wake the subscribers."""
    asyncio.run(_publish(order, wait_for_turn))


async def _publish(order: Order, wait_for_turn: Callable[[], bool]) -> None:
    values = stamped_values(order.size)
    (stream,) = _streams(order)
    async with _connected(order) as connection:
        context = connection.jetstream()
        while await asyncio.to_thread(wait_for_turn):
            await context.publish(stream, next(values))


def steady(order: Order, rate: float, acks: Acks, is_over: Callable[[], bool]) -> None:
    """Send records at this rate until ``is_over`` returns True, and count the acks. A record that fails is not sent
    again."""
    asyncio.run(_steady(order, rate, acks, is_over))


async def _steady(order: Order, rate: float, acks: Acks, is_over: Callable[[], bool]) -> None:
    value = value_of(order.size)
    (stream,) = _streams(order)

    async def send(context: Any) -> None:
        try:
            await context.publish(stream, value)
        except NOT_YET as error:
            acks.add(error)
        else:
            acks.add()

    async with _connected(order) as connection, asyncio.TaskGroup() as tasks:
        context = connection.jetstream()
        for at in moments(rate):
            if is_over():
                break
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            tasks.create_task(send(context))


def leader(order: Order) -> str:
    """Return the name of the server that leads the only stream."""
    return asyncio.run(_leader(order))


async def _leader(order: Order) -> str:
    (stream,) = _streams(order)
    async with _connected(order) as connection:
        return str((await connection.jetstream(timeout=FIRST_REPLY_S).stream_info(stream)).cluster.leader)
