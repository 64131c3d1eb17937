"""Pay what a topic of payouts says.

Symptom: a payout that its sender took back was paid.
Bug: the consumer reads uncommitted records, to be faster, and pays also what an aborted transaction has written.
Report: "Set the isolation level to read-uncommitted when using the Kafka consumer",
https://github.com/risingwavelabs/risingwave/issues/9024 (dirty data by the default of Kafka's consumer)
"""

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import NUMBERS, compare, load_orders

paid: dict[tuple[int, int], bytes] = {}
"""What the bank has paid, by the place of the payout: a payout that is delivered again is paid once."""


async def pay(address: str, isolation: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="bank", isolation=isolation) as payouts,
    ):
        async for payout in payouts:
            await trio.sleep(0.05)
            paid[payout.partition, payout.offset] = payout.value


async def buggy(address: str) -> None:
    await pay(address, isolation="uncommitted")


async def mended(address: str) -> None:
    await pay(address, isolation="committed")


def check(world: World, program) -> None:
    paid.clear()
    world.topic("orders", partitions=2)
    world.program(load_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("payouts that were paid", paid.values(), NUMBERS))
    world.run()
