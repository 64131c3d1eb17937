"""Store every order as a document in a database.

Symptom: after brokers were replaced, some orders were in the database twice.
Bug: the consumer makes the id of the document, so an order that is delivered again becomes another document.
Report: "The Day an MSK Upgrade Duplicated Every Outbound Record",
https://developer-playground.com/blog/software-engineer/list/idempotent-kafka-consumer-mongo-upsert/
"""

from collections.abc import Callable
from uuid import uuid4

import tidelog
import trio
from tidelog.testing import World

from buggy.shop import NUMBERS, compare, place_orders

documents: dict[str, bytes] = {}
"""The database: documents by id."""


async def store_orders(address: str, id_of: Callable[[tidelog.Record], str]) -> None:
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="store") as orders,
    ):
        async for order in orders:
            await trio.sleep(0.05)
            documents[id_of(order)] = order.value


async def buggy(address: str) -> None:
    await store_orders(address, lambda order: uuid4().hex)


async def mended(address: str) -> None:
    await store_orders(address, lambda order: f"{order.topic}/{order.partition}/{order.offset}")


def check(world: World, program) -> None:
    documents.clear()
    world.topic("orders", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(lambda outcome: compare("documents", documents.values(), NUMBERS))
    world.run()
