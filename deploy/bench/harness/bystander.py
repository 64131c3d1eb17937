"""The well-behaved client beside the attacks of a benchmark: its latencies show what other tenants would notice."""

from __future__ import annotations

import sys

import tidelog
import trio
from tidelog.client.log import Log
from tidelog.errors import TidelogError

RATE = 50
"""Records per second."""


class Bystander:
    """A client that sends records of a few bytes to a topic at ``RATE``, acks ``all``, and remembers how long each
    ack took."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._acks_s: list[float] = []
        self.failed = 0
        """Number of records that were not acked."""

    async def produce(self, log: Log) -> None:
        """Send records at ``RATE`` until cancelled."""
        async with log.producer(self._topic) as producer, trio.open_nursery() as nursery:
            for number in range(sys.maxsize):
                nursery.start_soon(self._send, producer, number)
                await trio.sleep(1 / RATE)

    async def _send(self, producer: tidelog.Producer, number: int) -> None:
        began = trio.current_time()
        try:
            await producer.send(b"%d" % number)
        except TidelogError:  # not within delivery_timeout_s: the figure says so, too
            self.failed += 1
        self._acks_s.append(trio.current_time() - began)

    def take_latencies(self) -> tuple[float, float, float]:
        """Return p50, p99 and the slowest of the acks since the last call, in ms, and forget them; zeros if there was
        no ack."""
        acks, self._acks_s = sorted(self._acks_s) or [0.0], []
        p50, p99 = (acks[int(len(acks) * share)] for share in (0.5, 0.99))
        return round(1e3 * p50, 1), round(1e3 * p99, 1), round(1e3 * acks[-1], 1)
