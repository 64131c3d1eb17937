"""Write one bill for each order, exactly once, with transactions.

Symptom: some orders have two bills after a crash, although the bills are written in transactions.
Bug: the group's position is committed after the transaction, not in it.
Report: "Transactions: Add offsets to be committed directly after producer.send",
https://github.com/akka/alpakka-kafka/pull/752
"""

import tidelog
from tidelog.testing import World, exactly_once

from buggy.shop import BY_HAND, place_orders


async def buggy(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="biller", group_options=BY_HAND) as orders,
    ):
        while True:
            batch = await orders.next_records()
            async with log.transaction(f"biller-{orders.member}", timeout_s=10) as tx:
                for order in batch:
                    await tx.send("bills", order.value, key=order.key)
            await orders.commit()


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="biller", group_options=BY_HAND) as orders,
    ):
        while True:
            batch = await orders.next_records()
            async with log.transaction(f"biller-{orders.member}", timeout_s=10) as tx:
                for order in batch:
                    await tx.send("bills", order.value, key=order.key)
                await tx.commit_offsets(orders)


def check(world: World, program) -> None:
    world.topic("orders", partitions=2)
    world.topic("bills", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(exactly_once("bills", of="orders"))
    world.run()
