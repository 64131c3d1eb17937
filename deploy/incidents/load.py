"""The load of a cluster in which incidents are planted: a producer for each topic, and a group that reads the first.

Clients go on after any error with a new connection, as programs that are restarted do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError

PAUSE_S = 0.05
"""Seconds between two records of a producer."""
AGAIN_S = 0.5
"""Seconds until a client that failed is started again."""
DELIVERY_S = 5.0
"""Seconds after which a record has failed."""


class Load:
    """The clients that run all the time. ``acked`` and ``read`` count records by topic; ``errors`` counts errors by
    topic and code."""

    def __init__(self, topics: tuple[str, ...], group: str, connect: Callable[[], Any]) -> None:
        self.topics = topics
        self.group = group
        self.acked: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()
        self._connect = connect
        self._began = trio.Event()

    async def running(self) -> None:
        """Wait until every topic has taken a record and the group has read one."""
        await self._began.wait()

    async def run(self) -> None:
        """Run all clients until cancelled."""
        async with trio.open_nursery() as nursery:
            for topic in self.topics:
                nursery.start_soon(self._again, topic, self._produce)
            nursery.start_soon(self._again, self.topics[0], self._consume)

    async def _again(self, topic: str, work: Callable[[Log, str], Awaitable[None]]) -> None:
        """Run ``work`` with a new client after each failure."""
        while True:
            try:
                async with self._connect() as log:
                    await work(log, topic)
            except* TidelogError as group:
                self.errors.update((topic, _code(error)) for error in leaves(group))
            await trio.sleep(AGAIN_S)

    async def _produce(self, log: Log, topic: str) -> None:
        async with log.producer(topic, ProducerOptions(delivery_timeout_s=DELIVERY_S)) as producer:
            while True:
                await producer.send(b"{}" * 40)
                self.acked[topic] += 1
                self._look()
                await trio.sleep(PAUSE_S)

    async def _consume(self, log: Log, topic: str) -> None:
        async with log.consume(topic, group=self.group) as member:
            async for _ in member:
                self.read[topic] += 1
                self._look()
                await member.commit()

    def _look(self) -> None:
        if self.read[self.topics[0]] and all(self.acked[topic] for topic in self.topics):
            self._began.set()


def leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """Return the errors in a group of errors, however deep."""
    found: list[Exception] = []
    for one in group.exceptions:
        found += leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found


def _code(error: Exception) -> str:
    return str(getattr(error, "code", "") or type(error).__name__)
