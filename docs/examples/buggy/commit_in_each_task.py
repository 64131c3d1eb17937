"""Tell the carrier of every order; several at a time, since the carrier is slow.

Symptom: now and then a parcel is never picked up, and the order before it and the order behind it are.
Bug: each task commits when it is done, and so commits also the orders that other tasks still work on.
Report: "Offset management skipping message", https://github.com/bsm/sarama-cluster/issues/148; the same in Python:
"Offset committed for second message when first is still being processed",
https://github.com/robinhood/faust/issues/682
"""

import random

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import BY_HAND, NUMBERS, compare, load_orders

shipped: set[bytes] = set()
"""The orders that the carrier knows; it takes each order number once."""


async def ship(order: tidelog.Record) -> None:
    await trio.sleep(random.uniform(0.1, 1))
    shipped.add(order.value)


async def buggy(address: str) -> None:
    async def ship_and_commit(orders: tidelog.GroupConsumer, order: tidelog.Record) -> None:
        await ship(order)
        await orders.commit()

    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="shipping", group_options=BY_HAND) as orders,
        trio.open_nursery() as nursery,
    ):
        async for order in orders:
            nursery.start_soon(ship_and_commit, orders, order)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="shipping", group_options=BY_HAND) as orders,
    ):
        while True:
            async with trio.open_nursery() as nursery:
                for order in await orders.next_records():
                    nursery.start_soon(ship, order)
            await orders.commit()


def check(world: World, program) -> None:
    shipped.clear()
    world.topic("orders", partitions=2)
    world.program(load_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("orders that were shipped", shipped, NUMBERS))
    world.run()
