"""A client that writes in each way there is, as a process of its own: ``python earlier_client.py TOPIC GATEWAY...``

``upgrade_check.py`` runs it from the source of an earlier revision. It prints one line of JSON: for each way of
writing ``acked``, or the code and the message of the error.
"""

from __future__ import annotations

import json
import sys

import tidelog
import trio
from tidelog.client.log import Log
from tidelog.errors import TidelogError


async def produce(log: Log, topic: str, *, idempotent: bool) -> None:
    """Write one record. Raises ``TidelogError`` as soon as the cluster has refused it."""
    async with log.producer(topic, tidelog.ProducerOptions(idempotent=idempotent)) as producer:
        await producer.send(b"by an earlier client")


async def transact(log: Log, topic: str) -> None:
    """Write one record in a transaction, and commit it. Raises ``TidelogError``."""
    async with log.transaction("earlier-client") as tx:
        await tx.send(topic, b"by an earlier client, in a transaction")


async def main(topic: str, gateways: list[str]) -> None:
    outcomes = {}
    async with tidelog.connect(gateways, connect_timeout_s=60, request_timeout_s=60) as log:
        ways = {
            "plain": lambda: produce(log, topic, idempotent=False),
            "idempotent": lambda: produce(log, topic, idempotent=True),
            "transaction": lambda: transact(log, topic),
        }
        for way, write in ways.items():
            try:
                await write()
                outcomes[way] = "acked"
            except TidelogError as error:
                outcomes[way] = f"{error.code}: {error}"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2:])
