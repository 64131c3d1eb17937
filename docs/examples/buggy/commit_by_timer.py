"""Copy every order into a warehouse, and commit once a second.

Symptom: records are missing in the warehouse after a rebalance or a crash, a few at a time.
Bug: the timer commits what was returned last, also the part of it that is not stored yet.
Report: "record loss observed in consumer", https://github.com/linkedin/kafka-monitor/issues/303
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import BY_HAND, NUMBERS, compare, load_orders

rows: set[bytes] = set()
"""The rows of the warehouse; an order that is stored again changes nothing."""


async def store(order: tidelog.Record) -> None:
    await trio.sleep(0.1)
    rows.add(order.value)


async def commit_every_second(orders: tidelog.GroupConsumer) -> None:
    while True:
        await trio.sleep(1)
        await orders.commit()


async def buggy(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="warehouse", group_options=BY_HAND) as orders,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(commit_every_second, orders)
        while True:
            for order in await orders.next_records():
                await store(order)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="warehouse", group_options=BY_HAND) as orders,
    ):
        committed = trio.current_time()
        while True:
            for order in await orders.next_records():
                await store(order)
            if trio.current_time() > committed + 1:
                await orders.commit()
                committed = trio.current_time()


def check(world: World, program) -> None:
    rows.clear()
    world.topic("orders", partitions=2)
    world.program(load_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("rows of the warehouse", rows, NUMBERS))
    world.run()
