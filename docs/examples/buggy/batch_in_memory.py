"""Collect events and insert them into a table, ten at a time.

Symptom: each time that instances are added, some hundred rows are missing, always neighbours.
Bug: a record counts as finished when the next one is asked for, so the position is committed while the batch is only
in memory.
Report: "kafka: prevent data loss on cooperative rebalance in unordered reader",
https://github.com/redpanda-data/connect/pull/4009
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import BY_HAND, NUMBERS, compare, load_orders

rows: dict[tuple[int, int], bytes] = {}
"""The table. Its key is the place of the event, so an event that is inserted again changes nothing."""


async def insert(batch: list[tidelog.Record]) -> None:
    await trio.sleep(0.2)
    rows.update({(event.partition, event.offset): event.value for event in batch})


async def copy_events(address: str, options: tidelog.GroupOptions) -> None:
    async with tidelog.connect(address) as log:
        batch: list[tidelog.Record] = []
        async with log.consume("orders", group="table", group_options=options) as events:
            while True:
                with trio.move_on_after(2):  # a batch waits no longer than that for its next event
                    batch.append(await anext(events))
                    if len(batch) < 10:
                        continue
                if batch:
                    await insert(batch)
                    batch.clear()
                    await events.commit()


async def buggy(address: str) -> None:
    await copy_events(address, tidelog.GroupOptions())


async def mended(address: str) -> None:
    await copy_events(address, BY_HAND)


def check(world: World, program) -> None:
    rows.clear()
    world.topic("orders", partitions=2)
    world.program(load_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("rows", rows.values(), NUMBERS))
    world.run()
