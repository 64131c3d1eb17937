"""What the programs of this folder share: producers that are right, and the comparison at the end."""

from collections import Counter
from collections.abc import Callable, Iterable

import tidelog
import trio

PARTITIONS = 2
ORDERS = 60
CUSTOMERS = [b"ada", b"grace", b"edsger", b"barbara"]
BY_HAND = tidelog.GroupOptions(auto_commit_s=None)
"""Options of a group whose members commit only by ``commit``, or in a transaction."""
NUMBERS = [b"%d" % number for number in range(ORDERS)]
"""The values of all orders."""


async def place_orders(address: str, topic: str = "orders", pause_s: float = 0.2) -> None:
    """Send the orders one by one. Each names the offset that it gets, so a repeated send writes nothing twice, also
    after a restart. The key is the customer; the orders of a customer are in one partition."""
    async with (
        tidelog.connect(address) as log,
        log.producer(topic) as producer,
    ):
        for number in range(ORDERS):
            await append_once(producer, number, CUSTOMERS[number % len(CUSTOMERS)])
            await trio.sleep(pause_s)


async def append_once(producer: tidelog.Producer, number: int, key: bytes) -> None:
    """Append order ``number`` at the only offset where it may be, unless it is there already. What is there may still
    be lost with its leader: then the topic has fewer orders at the end, which is enough for these programs."""
    partition, offset = number % PARTITIONS, number // PARTITIONS
    try:
        await producer.send(b"%d" % number, key=key, partition=partition, expected_offset=offset)
    except tidelog.TidelogError as error:
        if error.code != "UNEXPECTED_OFFSET":
            raise


async def load_orders(address: str) -> None:
    """Send the orders in tens, so that consumers get whole batches of them."""
    orders = [(CUSTOMERS[number % len(CUSTOMERS)], b"%d" % number) for number in range(ORDERS)]
    async with tidelog.connect(address) as log:
        await load(log, topic="orders", records=orders)


async def load(
    log: tidelog.Log,
    topic: str,
    records: list[tuple[bytes, bytes]],
    partition_of: Callable[[bytes], int] | None = None,
) -> None:
    """Send these records (key, value) in tens, each ten in a transaction. A transaction ends what an earlier run has
    left open, and looks first how many records are there: so no record is lost, doubled or out of order."""
    done = 0
    while done < len(records):
        async with log.transaction(f"load-{topic}", timeout_s=10) as tx:
            done = len([record async for record in log.consume(topic, start="earliest", end="latest")])
            for key, value in records[done : done + 10]:
                await tx.submit(topic, value, key=key, partition=partition_of(key) if partition_of else None)
        await trio.sleep(1)


def compare(what: str, found: Iterable[bytes], wanted: Iterable[bytes]) -> str | None:
    """Return a sentence that names the values that are missing, doubled or too many; None if all are there once."""
    have, want = Counter(found), Counter(wanted)
    lists = {"missing": want - have, "too many": have - want}
    texts = [f"{name}: {b', '.join(sorted(some.elements())).decode()}" for name, some in lists.items() if some]
    return f"{what}: {'; '.join(texts)}" if texts else None
