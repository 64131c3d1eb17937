"""The Tidelog client of the cases: its own Python client, on trio."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from bench.peers.measurements import GROUP, Acks, Audience, Order, moments, pauses, stamped, stamped_values, value_of
from tidelog import connect
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError

NOT_YET = (TidelogError, OSError, trio.TooSlowError)
"""Errors of a cluster that is not ready yet."""
AT_ONCE = 100_000
"""Most records without an awaited ack."""


def _log(order: Order) -> Any:
    return connect(list(order.addresses), connect_timeout_s=10)


def create(order: Order) -> None:
    """Create the topic of an order with three replicas, if there is none. ``settings`` hold the flush policy."""
    trio.run(_create, order)


async def _create(order: Order) -> None:
    async with _log(order) as log:
        if order.topic not in [topic.name for topic in await log.topics.list()]:
            await log.topics.create(
                order.topic, partitions=order.partitions, replication_factor=3, config=order.settings
            )


def produce(order: Order) -> tuple[int, float]:
    """Send records for ``order.seconds``, and return the number acknowledged and the seconds. Raises the error of a
    record that failed."""
    return trio.run(_produce, order)


async def _produce(order: Order) -> tuple[int, float]:
    value = value_of(order.size)
    waiting: deque[Any] = deque()
    records = 0
    async with _log(order) as log, log.producer(order.topic, ProducerOptions(**order.options)) as producer:
        await producer.send(value)
        began = time.monotonic()
        while time.monotonic() < began + order.seconds:
            for _ in range(GROUP):
                waiting.append(await producer.submit(value))
            while len(waiting) > AT_ONCE:
                await waiting.popleft().wait()
                records += 1
        await producer.flush()
        for pending in waiting:
            await pending.wait()
        return records + len(waiting), time.monotonic() - began


def latency(order: Order) -> list[float]:
    """Send records one at a time, and return the seconds that each took."""
    return trio.run(_latency, order)


async def _latency(order: Order) -> list[float]:
    value, taken = value_of(order.size), []
    async with _log(order) as log, log.producer(order.topic, ProducerOptions(**order.options)) as producer:
        for _ in range(order.records):
            began = time.monotonic()
            await producer.send(value)
            taken.append(time.monotonic() - began)
    return taken


def consume(order: Order) -> tuple[int, float]:
    """Read the topic to its end, and return the bytes of values and the seconds."""
    return trio.run(_consume, order)


async def _consume(order: Order) -> tuple[int, float]:
    size = 0
    async with _log(order) as log, log.consume(order.topic, start="earliest", end="latest") as consumer:
        await consumer.next_records()
        began = time.monotonic()
        while records := await consumer.next_records():
            size += sum(len(record.value or b"") for record in records)
        return size, time.monotonic() - began


def fan_out(order: Order) -> list[float]:
    """Send records at a steady rate, and return for each subscriber and record the seconds until the subscriber has
    it. Each subscriber is a consumer on a connection of its own."""
    return trio.run(_fan_out, order)


async def _fan_out(order: Order) -> list[float]:
    audience = Audience(order.subscribers, order.records)
    async with _log(order) as log, log.producer(order.topic) as producer, trio.open_nursery() as nursery:
        for _ in range(order.subscribers):
            nursery.start_soon(_listen, order, audience)
        await producer.send(stamped(order.size, 0.0))
        for _ in pauses(audience.is_awake, "the first record at every subscriber"):
            await trio.sleep(0.01)
        for at in moments(order.rate, order.records):
            await trio.sleep(max(0.0, at - time.monotonic()))
            await producer.submit(stamped(order.size, time.monotonic()))
        for _ in pauses(audience.is_done, "every record at every subscriber"):
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    return audience.delays


async def _listen(order: Order, audience: Audience) -> None:
    """Be one subscriber, until cancelled."""
    async with _log(order) as log, log.consume(order.topic, start="earliest") as consumer:
        async for record in consumer:
            audience.add(record.value or b"")


def subscribe(order: Order, audience: Audience) -> None:
    """Open the subscribers, and keep them open until the process ends. Each is a consumer on a connection of
    its own."""
    trio.run(_subscribe, order, audience)


async def _subscribe(order: Order, audience: Audience) -> None:
    async with trio.open_nursery() as nursery:
        for opened in range(order.subscribers):
            for _ in pauses(lambda opened=opened: audience.may_open(opened), "the first record"):
                await trio.sleep(0.005)
            nursery.start_soon(_listen, order, audience)


def publish(order: Order, wait_for_turn: Callable[[], bool]) -> None:
    """Send a record whenever ``wait_for_turn`` has returned True, until it returns False, and wait for each ack. The
    first record is to wake the subscribers."""
    trio.run(_publish, order, wait_for_turn)


async def _publish(order: Order, wait_for_turn: Callable[[], bool]) -> None:
    values = stamped_values(order.size)
    async with _log(order) as log, log.producer(order.topic) as producer:
        while await trio.to_thread.run_sync(wait_for_turn):
            await producer.send(next(values))


def steady(order: Order, rate: float, acks: Acks, is_over: Callable[[], bool]) -> None:
    """Send records at this rate until ``is_over`` returns True, and count the acks."""
    trio.run(_steady, order, rate, acks, is_over)


async def _steady(order: Order, rate: float, acks: Acks, is_over: Callable[[], bool]) -> None:
    value = value_of(order.size)

    async def settle(pending: Any) -> None:
        try:
            await pending.wait()
        except TidelogError as error:
            acks.add(error)
        else:
            acks.add()

    async with (
        _log(order) as log,
        log.producer(order.topic) as producer,
        trio.open_nursery() as nursery,
    ):
        for at in moments(rate):
            if is_over():
                break
            await trio.sleep(max(0.0, at - time.monotonic()))
            nursery.start_soon(settle, await producer.submit(value))


def leader(order: Order) -> str:
    """Return the replica server that leads the topic's only partition."""
    return trio.run(_leader, order)


async def _leader(order: Order) -> str:
    async with _log(order) as log:
        return str((await log.topics.describe(order.topic)).partitions[0].leader)
