"""A counter that many may change and nobody overwrites: Tidelog on asyncio, with conditional appends.

    python docs/examples/tickets_asyncio.py [ws://127.0.0.1:9292]

Several clerks take numbered tickets from one topic. Each reads the log to its end, and appends the next number there
and nowhere else: of two who try the same, one is told that the log has grown meanwhile, reads on, and tries again.
"""

import asyncio
import sys

import tidelog
import tidelog.aio

TOPIC = "tickets"
TICKETS = 5


class Clerk:
    """Takes tickets. What it knows of the topic is what it has read."""

    def __init__(self, name: str, log: tidelog.Log, producer: tidelog.Producer) -> None:
        self.name = name
        self.lost = 0
        self._log = log
        self._producer = producer
        self._end = 0

    async def take(self) -> int:
        """The number of a ticket that nobody else has."""
        while True:
            async for record in self._log.consume(TOPIC, start=self._end, end="latest"):
                self._end = record.offset + 1
            try:
                ticket = f"ticket {self._end} is {self.name}'s".encode()
                ack = await self._producer.send(ticket, partition=0, expected_offset=self._end)
                return ack.offset
            except tidelog.TidelogError as error:
                if error.code != "UNEXPECTED_OFFSET":  # the code says what it is, never the text
                    raise
                self.lost += 1


async def work(clerk: Clerk) -> list[int]:
    return [await clerk.take() for _ in range(TICKETS)]


async def main(url: str) -> None:
    async with tidelog.aio.connect(url) as log:
        await log.topics.create(TOPIC, exist_ok=True)
        async with log.producer(TOPIC) as first, log.producer(TOPIC) as second:
            clerks = [Clerk("ada", log, first), Clerk("grace", log, second)]
            taken = await asyncio.gather(*map(work, clerks))
        for clerk, tickets in zip(clerks, taken, strict=True):
            print(f"{clerk.name} has {tickets}, and was too late {clerk.lost} times")
        assert len({ticket for tickets in taken for ticket in tickets}) == 2 * TICKETS


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:9292"))
