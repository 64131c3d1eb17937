"""Charge the card of every order.

Symptom: after a crash or a deployment a few customers got their goods and were never charged.
Bug: the position is committed before the card is charged, so a process that ends in between skips the order.
Report: "Change the default consume_mode to CONSUME_BEFORE_COMMIT_OFFSET to avoid message lost when consumer close",
https://github.com/weiboad/kafka-php/issues/187
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import BY_HAND, NUMBERS, compare, place_orders

charged: set[bytes] = set()
"""The orders that the payment provider has charged; it takes each order number once."""


async def charge(order: tidelog.Record) -> None:
    """Ask the payment provider for the money."""
    await trio.sleep(0.1)
    charged.add(order.value)


async def buggy(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="charges", group_options=BY_HAND) as orders,
    ):
        async for order in orders:
            await orders.commit()
            await charge(order)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="charges", group_options=BY_HAND) as orders,
    ):
        async for order in orders:
            await charge(order)
            await orders.commit()


def check(world: World, program) -> None:
    charged.clear()
    world.topic("orders", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("orders that were charged", charged, NUMBERS))
    world.run()
