"""Import the payments of a bank statement into a topic, each once.

Symptom: after a slow night a payment is there twice, with two offsets.
Bug: a send of unknown outcome is repeated by a new producer, which nobody can recognise as the same one.
Report: invented. Kafka's documentation warns of it: sends that are repeated by the application are not de-duplicated
by an idempotent producer (https://kafka.apache.org/documentation/#producerconfigs_enable.idempotence).
"""

import tidelog
import trio
from tidelog.testing import World, exactly_once

from buggy.shop import NUMBERS

OPTIONS = tidelog.ProducerOptions(delivery_timeout_s=5)


async def payments_there(log: tidelog.Log) -> int:
    return len([record async for record in log.consume("payments", start="earliest", end="latest")])


async def buggy(address: str) -> None:
    async with tidelog.connect(address) as log:
        for payment in NUMBERS[await payments_there(log) :]:
            while True:
                try:
                    async with log.producer("payments", OPTIONS) as payments:
                        await payments.send(payment)
                    break
                except tidelog.TidelogError:
                    await trio.sleep(0.5)
            await trio.sleep(0.1)


async def mended(address: str) -> None:
    async with tidelog.connect(address) as log:
        there = await payments_there(log)
        for offset, payment in list(enumerate(NUMBERS))[there:]:
            while True:
                try:
                    async with log.producer("payments", OPTIONS) as payments:
                        await payments.send(payment, partition=0, expected_offset=offset)
                    break
                except tidelog.TidelogError as error:
                    if error.code == "UNEXPECTED_OFFSET":
                        break  # an earlier send has reached the log
                    await trio.sleep(0.5)
            await trio.sleep(0.1)


def check(world: World, program) -> None:
    world.topic("payments")
    world.program(program)
    world.invariant(exactly_once("payments", of=NUMBERS))
    world.run()
