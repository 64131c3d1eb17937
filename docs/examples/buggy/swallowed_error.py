"""Write an invoice for every order into another topic.

Symptom: in the night of an outage some orders got no invoice; the program's log has an error for each.
Bug: the error of a send is logged and the loop goes on, so the position moves past the order.
Report: "Committer::commitMessage() ignores its $success argument, so failed messages are committed and lost",
https://github.com/mateusjunges/laravel-kafka/issues/394
"""

import logging

import tidelog
from tidelog.testing import World, at_least_once

from buggy.shop import place_orders

OPTIONS = tidelog.ProducerOptions(delivery_timeout_s=5)
log_of_errors = logging.getLogger("invoices")


async def buggy(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.producer("invoices", OPTIONS) as invoices,
        log.consume("orders", group="invoices") as orders,
    ):
        async for order in orders:
            try:
                await invoices.send(order.value, key=order.key)
            except Exception:
                log_of_errors.exception("order %s has no invoice", order.value)


async def mended(address: str) -> None:
    async with (
        tidelog.connect(address) as log,
        log.producer("invoices", OPTIONS) as invoices,
        log.consume("orders", group="invoices") as orders,
    ):
        async for order in orders:
            await invoices.send(order.value, key=order.key)  # an error ends the program before it is finished


def check(world: World, program) -> None:
    world.topic("orders", partitions=2)
    world.topic("invoices", partitions=2)
    world.program(place_orders)
    world.program(program, copies=2, ends=False)
    world.invariant(at_least_once("invoices", of="orders"))
    world.run()
