"""Publish the rows of an outbox table as events, and mark them as published.

Symptom: rows are marked, and their events are in no partition.
Bug: ``flush`` waits until each record is acknowledged or has failed, and raises nothing: the outcome of the sends is
never looked at.
Report: "Fail fast on Kafka delivery failures instead of confirming the LSN",
https://github.com/lukashes/outboxx/pull/110
"""

import tidelog
import trio
from tidelog.testing import World, at_least_once

from buggy.shop import NUMBERS

OPTIONS = tidelog.ProducerOptions(delivery_timeout_s=5)
unpublished: list[bytes] = []
"""The rows of the outbox that are not marked as published."""


async def buggy(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.producer("events", OPTIONS) as events,
    ):
        while rows := unpublished[:5]:
            for row in rows:
                await events.submit(row)
            await events.flush()
            del unpublished[: len(rows)]
            await trio.sleep(1)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.producer("events", OPTIONS) as events,
    ):
        while rows := unpublished[:5]:
            sent = [await events.submit(row) for row in rows]
            for event in sent:
                await event.wait()  # raises what went wrong; then all five are sent again
            del unpublished[: len(rows)]
            await trio.sleep(1)


def check(world: World, program) -> None:
    unpublished[:] = NUMBERS
    world.topic("events", partitions=2)
    world.program(program)
    world.invariant(at_least_once("events", of=NUMBERS))
    world.run()
