"""Write one bill for each order, exactly once, by one instance; during a deployment the old and the new one overlap.

Symptom: after a deployment some orders have two bills, each in a committed transaction.
Bug: each start takes a random name as its application, so no instance fences the one before it.
Report: "storage: fix kafka transational fencing logic", https://github.com/MaterializeInc/materialize/pull/23363; the
question "Proper value for TransactionalID", https://github.com/twmb/franz-go/issues/416
"""

import random
from uuid import uuid4

import tidelog
import trio
from tidelog.testing import World, exactly_once

from buggy.shop import PARTITIONS, place_orders


async def places(log: tidelog.Log) -> dict[int, tidelog.Position]:
    """Return for each partition the place of the first order that has no bill."""
    known = await log.groups.fetch_offsets("biller", "orders")
    return {partition: known.get(partition, tidelog.Position(-1, 0)) for partition in range(PARTITIONS)}


async def bill_orders(address: str, app: str) -> None:
    """Bill the orders in transactions of this application. A transaction looks again where to begin, since another
    instance may have billed orders before it has begun; from then on none can."""
    async with tidelog.connect(address) as log:
        while True:
            async with log.consume("orders", start=await places(log)) as orders:
                await anext(orders)  # there is an order to bill
            async with log.transaction(app, timeout_s=10) as tx:
                async with log.consume("orders", start=await places(log), end="latest") as orders:
                    async for order in orders:
                        await tx.submit("bills", order.value, key=order.key)
                    positions = {("orders", partition): at for partition, at in orders.positions.items()}
                await tx.commit_offsets("biller", positions)
            await trio.sleep(random.uniform(0.5, 1.5))


async def buggy(address: str) -> None:
    await bill_orders(address, app=f"biller-{uuid4().hex}")


async def mended(address: str) -> None:
    await bill_orders(address, app="biller")


def check(world: World, program) -> None:
    world.topic("orders", partitions=PARTITIONS)
    world.topic("bills", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(exactly_once("bills", of="orders"))
    world.run()
