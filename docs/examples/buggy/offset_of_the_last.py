"""Write one bill for each order, exactly once.

Symptom: after each restart one order of a partition is billed a second time.
Bug: the transaction stores the offset of the last order, but a position is the offset of the next one.
Report: "Fix off-by-one error in per-message commit", https://github.com/haskell-works/hw-kafka-client/pull/49
"""

import tidelog
from tidelog.testing import World, exactly_once

from buggy.shop import BY_HAND, place_orders


async def bill_orders(address: str, step: int) -> None:
    """Bill each order in a transaction that also moves the group's position, to the order's offset plus ``step``."""
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="biller", group_options=BY_HAND) as orders,
    ):
        async for order in orders:
            position = tidelog.Position(order.leader_epoch, order.offset + step)
            async with log.transaction(f"biller-{orders.member}", timeout_s=10) as tx:
                await tx.send("bills", order.value, key=order.key)
                await tx.commit_offsets(orders, {(order.topic, order.partition): position})


async def buggy(address: str) -> None:
    await bill_orders(address, step=0)


async def mended(address: str) -> None:
    await bill_orders(address, step=1)


def check(world: World, program) -> None:
    world.topic("orders", partitions=2)
    world.topic("bills", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(exactly_once("bills", of="orders"))
    world.run()
