"""Take orders and keep the books, side by side: Tidelog on trio.

    python docs/examples/orders_trio.py [ws://127.0.0.1:9292]

The shop sends orders without waiting for each; the books follow the topic while they come, and say where to go on.
"""

import json
import sys

import tidelog
import trio

CUSTOMERS = ["ada", "grace", "edsger"]
ORDERS = 30


async def shop(log: tidelog.Log) -> None:
    """Sends the orders. At the end of the block all are acknowledged, or an error says how many are not."""
    async with log.producer("orders-trio") as producer:
        for number in range(ORDERS):
            order = json.dumps({"number": number, "amount": 10 * number}).encode()
            key = CUSTOMERS[number % 3].encode()  # the same key: the same partition, in order
            await producer.submit(order, key=key)
        await producer.flush()
    print(f"{ORDERS} orders are safe")


async def books(log: tidelog.Log, start: dict[int, tidelog.Position]) -> None:
    """Adds up what each customer owes, from these positions on, until all orders have come."""
    owed = dict.fromkeys(CUSTOMERS, 0)
    async with log.consume("orders-trio", start=start) as orders:
        for _ in range(ORDERS):
            record = await anext(orders)
            assert record.key is not None and record.value is not None
            owed[record.key.decode()] += json.loads(record.value)["amount"]
        for name, amount in owed.items():
            print(f"{name} owes {amount}")
        print("tomorrow goes on from", {p: at.offset for p, at in sorted(orders.positions.items())})


async def main(url: str) -> None:
    async with tidelog.connect(url) as log:
        await log.topics.create("orders-trio", partitions=3, exist_ok=True)
        async with log.consume("orders-trio", start="latest") as now:
            start = now.positions
        async with trio.open_nursery() as nursery:
            nursery.start_soon(books, log, start)
            nursery.start_soon(shop, log)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:9292")
