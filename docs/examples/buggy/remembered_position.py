"""Collect events and insert them into a table, ten at a time; pass over events that were collected already.

Symptom: after rebalances some rows are missing, although nothing is committed before it is inserted.
Bug: when a partition is taken away, the batch in memory is dropped, and the position that was reached in it is not.
When the partition comes back, the dropped events are passed over.
Report: "Data loss in restartStreamsOnRebalancing mode", https://github.com/zio/zio-kafka/issues/469; positions that
outlive their generation: "Reset partition state on rebalance, to handle possible missed generation",
https://github.com/cerner/common-kafka/pull/45
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import BY_HAND, NUMBERS, compare, load_orders

rows: dict[tuple[int, int], bytes] = {}
"""The table. Its key is the place of the event, so an event that is inserted again changes nothing."""


class Collector:
    """The events that wait to be inserted. ``forgets``: whether a partition that is taken away is forgotten whole."""

    def __init__(self, forgets: bool) -> None:
        self.batch: list[tidelog.Record] = []
        self._next: dict[tuple[str, int], int] = {}
        self._forgets = forgets

    def add(self, event: tidelog.Record) -> None:
        """Collect an event, unless it was collected before."""
        share = event.topic, event.partition
        if event.offset >= self._next.get(share, 0):
            self.batch.append(event)
            self._next[share] = event.offset + 1

    def drop(self, gone: list[tuple[str, int]]) -> None:
        """Drop the events of partitions that are taken away: their next owner reads them again."""
        self.batch = [event for event in self.batch if (event.topic, event.partition) not in gone]
        if self._forgets:
            for share in gone:
                self._next.pop(share, None)

    async def insert(self) -> None:
        batch, self.batch = self.batch, []
        await trio.sleep(0.2)
        rows.update({(event.partition, event.offset): event.value for event in batch})


async def copy_events(address: str, forgets: bool) -> None:
    async with tidelog.connect(address) as log:
        collector = Collector(forgets)
        hooks = tidelog.Hooks(on_revoked=collector.drop, on_lost=collector.drop)
        async with log.consume("orders", group="table", group_options=BY_HAND, hooks=hooks) as events:
            while True:
                with trio.move_on_after(2):  # a batch waits no longer than that for its next event
                    collector.add(await anext(events))
                    if len(collector.batch) < 10:
                        continue
                await collector.insert()
                await events.commit()


async def buggy(address: str) -> None:
    await copy_events(address, forgets=False)


async def mended(address: str) -> None:
    await copy_events(address, forgets=True)


def check(world: World, program) -> None:
    rows.clear()
    world.topic("orders", partitions=2)
    world.program(load_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("rows", rows.values(), NUMBERS))
    world.run()
