"""Book every order; orders that cannot be booked go to a topic of dead letters.

Symptom: an order is neither booked nor among the dead letters.
Bug: the position is committed before the dead letter is in the log, so it is lost with the process or the send.
Report: a review of "sqs and kafka queue transports": a dead letter whose delivery is not confirmed is committed,
https://github.com/yaalalabs/agent-kernel/pull/630
"""

import tidelog
import trio
from tidelog.testing import World, at_least_once

from buggy.shop import BY_HAND, NUMBERS, compare, place_orders

booked: set[bytes] = set()
"""The books; an order that is booked again changes nothing."""
MALFORMED = [number for number in NUMBERS if int(number) % 3 == 0]


async def book(order: tidelog.Record) -> None:
    if order.value in MALFORMED:
        raise ValueError(f"order {order.value!r} has no amount")
    await trio.sleep(0.05)
    booked.add(order.value)


async def buggy(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.producer("dead-letters") as letters,
        log.consume("orders", group="books", group_options=BY_HAND) as orders,
    ):
        async for order in orders:
            try:
                await book(order)
                await orders.commit()
            except ValueError:
                await orders.commit()
                await letters.send(order.value, key=order.key)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.producer("dead-letters") as letters,
        log.consume("orders", group="books", group_options=BY_HAND) as orders,
    ):
        async for order in orders:
            try:
                await book(order)
            except ValueError:
                await letters.send(order.value, key=order.key)
            await orders.commit()


def check(world: World, program) -> None:
    booked.clear()
    world.topic("orders", partitions=2)
    world.topic("dead-letters")
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(at_least_once("dead-letters", of=MALFORMED))
    world.invariant(lambda outcome: compare("orders in the books", booked, sorted({*NUMBERS} - {*MALFORMED})))
    world.run()
