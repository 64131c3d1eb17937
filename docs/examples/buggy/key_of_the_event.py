"""Send the events of orders: created, paid, shipped. A consumer shows the state of each order.

Symptom: an order that was shipped is shown as paid, and stays so.
Bug: the key of a record is the event's own id, so the events of one order are in several partitions, which nothing
keeps in order.
Report: "Suggestion regarding kafka keys", https://github.com/camunda-community-hub/zeebe-kafka-exporter/issues/31
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import load

STATES = ["created", "paid", "shipped"]
EVENTS = [f"order{order} {state}" for ten in range(4) for state in STATES for order in range(5 * ten, 5 * ten + 5)]
shown: dict[str, list[str]] = {}
"""The states of each order, in the order in which the consumer has seen them."""
seen: set[tuple[int, int]] = set()
"""The places of the events that are in ``shown``."""


async def show(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("events", group="show") as events,
    ):
        async for event in events:
            await trio.sleep(0.05)
            if (event.partition, event.offset) not in seen:
                seen.add((event.partition, event.offset))
                order, state = event.value.decode().split()
                shown.setdefault(order, []).append(state)


async def buggy(address: str) -> None:
    records = [(event.encode(), event.encode()) for event in EVENTS]
    async with tidelog.connect(address) as log:
        await load(log, topic="events", records=records)


async def mended(address: str) -> None:
    records = [(event.split()[0].encode(), event.encode()) for event in EVENTS]
    async with tidelog.connect(address) as log:
        await load(log, topic="events", records=records)


def wrong_order() -> str | None:
    """Return the first order whose states were not seen in their order; None if there is none."""
    orders = sorted({event.split()[0] for event in EVENTS})
    return next((f"{order}: {shown.get(order)}" for order in orders if shown.get(order) != STATES), None)


def check(world: World, program) -> None:
    shown.clear()
    seen.clear()
    world.topic("events", partitions=3)
    world.program(show, copies=2, ends=False)
    world.program(program)
    world.invariant(lambda outcome: wrong_order())
    world.run()
