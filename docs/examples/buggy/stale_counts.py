"""Number the orders of each customer: 1, 2, 3 and so on, without a gap and without a number twice.

Symptom: when instances come and go, some customers' numbers jump back, and a gap follows.
Bug: an instance keeps the counts of a partition that was taken away. When it gets the partition again, the counts are
old, since another instance has numbered orders meanwhile.
Report: "fix(kafkaEventBus): Reset kafka consumer on cleanup", https://github.com/argoproj/argo-events/pull/2611
"""

import tidelog
from tidelog.testing import World, exactly_once, no_gap

from buggy.shop import BY_HAND, place_orders

Counts = dict[bytes, int]


async def last_counts(log: tidelog.Log, partition: int) -> Counts:
    """Return the last number of each customer in a partition of the topic ``numbered``."""
    records = log.consume("numbered", start="earliest", end="latest", partitions=[partition])
    return {record.key: int(record.value) async for record in records}


async def number_orders(address: str, drops: bool) -> None:
    """Number the orders. ``drops``: whether the counts of a partition are dropped when it is taken away."""
    async with tidelog.connect(address) as log:
        counts: dict[int, Counts] = {}  # by partition; also the records of a customer are in one partition

        def drop(gone: list[tuple[str, int]]) -> None:
            for _, partition in gone:
                counts.pop(partition, None)

        hooks = tidelog.Hooks(on_revoked=drop, on_lost=drop) if drops else tidelog.Hooks()
        async with log.consume("orders", group="numbers", group_options=BY_HAND, hooks=hooks) as orders:
            while True:
                batch = await orders.next_records()
                partition = batch[0].partition
                async with log.transaction(f"numbers-{partition}", timeout_s=10) as tx:
                    if partition not in counts:
                        counts[partition] = await last_counts(log, partition)
                    mine = counts[partition]
                    for order in batch:
                        mine[order.key] = mine.get(order.key, 0) + 1
                        headers = {"order": order.value}
                        await tx.send(
                            "numbered", b"%d" % mine[order.key], key=order.key, partition=partition, headers=headers
                        )
                    await tx.commit_offsets(orders)


async def buggy(address: str) -> None:
    await number_orders(address, drops=False)


async def mended(address: str) -> None:
    await number_orders(address, drops=True)


def check(world: World, program) -> None:
    world.topic("orders", partitions=2)
    world.topic("numbered", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(no_gap("numbered", by=lambda record: int(record.value)))
    world.invariant(
        exactly_once("numbered", of="orders", identity=lambda record: dict(record.headers).get("order", record.value))
    )
    world.run()
