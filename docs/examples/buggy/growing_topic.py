"""Number the changes of each customer's account. The topic gets more partitions while it is written.

Symptom: in the hour after partitions were added, a consumer applied some customers' changes in the wrong order.
Bug: the partition of a key depends on their count, so a customer's later changes are in another partition than the
earlier ones, which are still waiting there.
Report: "Using different keys,still writes messages to same parition", https://github.com/dpkp/kafka-python/issues/1697
(a maintainer: the same key has the same partition unless the count of partitions changes)
"""

from collections.abc import Callable

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import CUSTOMERS, load

CHANGES = [(customer, b"%d" % number) for number in range(15) for customer in CUSTOMERS]
HALF = len(CHANGES) // 2
applied: dict[bytes, list[int]] = {}
"""The changes of each account, in the order in which they were applied."""
seen: set[tuple[int, int]] = set()
"""The places of the changes that are applied."""


async def apply_changes(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("changes", group="accounts") as changes,
    ):
        async for change in changes:
            await trio.sleep(0.2)
            if (change.partition, change.offset) not in seen:
                seen.add((change.partition, change.offset))
                applied.setdefault(change.key, []).append(int(change.value))


async def send_changes(address: str, partition_of: Callable[[bytes], int] | None) -> None:
    """Send the first half of the changes, add partitions, and send the rest."""
    async with tidelog.connect(address) as log:
        await load(log, "changes", CHANGES[:HALF], partition_of)
        if len((await log.topics.describe("changes")).partitions) < 4:
            await log.topics.grow("changes", 4)
        await load(log, "changes", CHANGES, partition_of)


async def buggy(address: str) -> None:
    await send_changes(address, None)


async def mended(address: str) -> None:
    await send_changes(address, lambda customer: CUSTOMERS.index(customer) % 2)  # for ever, whatever is added


def wrong_order() -> str | None:
    """Return the first customer whose changes were not applied as 0, 1, 2 and so on; None if there is none."""
    wanted = list(range(len(CHANGES) // len(CUSTOMERS)))
    wrong = (f"{name.decode()}: {applied.get(name)}" for name in CUSTOMERS if applied.get(name) != wanted)
    return next(wrong, None)


def check(world: World, program) -> None:
    applied.clear()
    seen.clear()
    world.topic("changes", partitions=2)
    world.program(apply_changes, copies=2, ends=False)
    world.program(program)
    world.invariant(lambda outcome: wrong_order())
    world.run()
