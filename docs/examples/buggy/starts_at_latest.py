"""Follow prices, and keep every one in a table.

Symptom: after each restart the table lacks the prices of some minutes.
Bug: each start begins at the end of the topic, since only what is new seems to matter.
Report: "Losing messages when consumer is offline", https://github.com/Azure/azure-event-hubs-for-kafka/issues/44
"""

from functools import partial

import tidelog
from tidelog.testing import World

from buggy.shop import NUMBERS, PARTITIONS, compare, place_orders

table: dict[tuple[int, int], bytes] = {}
"""The table, by partition and offset."""


async def follow(address: str, start: str | dict[int, int]) -> None:
    async with tidelog.connect(address) as log, log.consume("prices", start=start) as prices:
        async for price in prices:
            table[price.partition, price.offset] = price.value


def next_offsets() -> dict[int, int]:
    """Return for each partition the offset behind the last price in the table."""
    places = {partition: [at for p, at in table if p == partition] for partition in range(PARTITIONS)}
    return {partition: max(offsets, default=-1) + 1 for partition, offsets in places.items()}


async def buggy(address: str) -> None:
    await follow(address, "latest")


async def mended(address: str) -> None:
    await follow(address, next_offsets())


def check(world: World, program) -> None:
    table.clear()
    world.topic("prices", partitions=PARTITIONS)
    world.program(partial(place_orders, topic="prices"), name="exchange")
    world.program(program, ends=False)
    world.invariant(lambda outcome: compare("prices in the table", table.values(), NUMBERS))
    world.run()
