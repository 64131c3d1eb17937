"""The environment of a measurement: connections, a topic that is removed at the end, a load with its schedule, and
progress on stderr."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Literal

import trio

from tidelog.cli.main import connect
from tidelog.cli.output import say
from tidelog.cli.pasted import gateway_words
from tidelog.cli.progress import Bar, shown
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.log import Log

BLOB_BYTES = 4 << 20
"""Values are cut out of this many hexadecimal digits, the same in every run. Compression halves them, and no more."""
LOOK_S = 0.2
"""Seconds between two updates of the progress bar."""
CONNECT_S = 30.0
"""Longest time in seconds to open one of many connections. The gateway has answered before."""
REMOVE_S = 10.0
"""Longest time in seconds that the removal of a topic may take."""


@dataclass(frozen=True)
class Load:
    """The records that a measurement sends: their size and settings, and when the load ends: as soon as one of
    ``records``, ``total_bytes`` (of values) and ``seconds`` is reached. None is no bound."""

    record_bytes: int
    acks: str = "all"
    compression: Literal["none", "zstd", "lz4"] = "none"
    batch_bytes: int = 128 << 10
    seconds: float | None = None
    records: int | None = None
    total_bytes: int | None = None
    rate: float | None = None
    """Records per second, of all producers together; None: as fast as possible."""

    @property
    def most(self) -> float:
        """Number of records after which the load ends; infinite if only its time is bounded."""
        by_bytes = math.inf if self.total_bytes is None else math.ceil(self.total_bytes / self.record_bytes)
        return min(by_bytes, math.inf if self.records is None else self.records)

    def lasting(self, seconds: float) -> Load:
        """Return a copy of this load that ends after ``seconds``, with no bound on records and bytes."""
        return replace(self, seconds=seconds, records=None, total_bytes=None)

    def options(self, partitions: int) -> ProducerOptions:
        """Return options for a producer of this load to a topic with that many partitions. They bound the producer's
        buffer to twice what can be in flight, so that a measured delay is not that of a long queue."""
        buffer = 2 * ProducerOptions().max_in_flight * partitions * self.batch_bytes
        return ProducerOptions(
            acks=self.acks, compression=self.compression, batch_bytes=self.batch_bytes, buffer_bytes=buffer
        )

    def values(self) -> Iterator[bytes]:
        """Return an endless iterator of values of ``record_bytes`` bytes. Every run gets the same values in the same
        order."""
        blob = Random(0).randbytes(max(BLOB_BYTES, self.record_bytes) // 2 + 1).hex().encode()
        size = self.record_bytes
        return cycle([blob[at : at + size] for at in range(0, len(blob) - size + 1, size)])


class SendSchedule:
    """The schedule of one load, shared by all producers of a measurement. It says when each record is due, and when
    the load ends. The load begins when this object is created."""

    def __init__(self, load: Load) -> None:
        self.taken = 0
        self.began = trio.current_time()
        self._most = load.most
        self._rate = load.rate
        self._until = math.inf if load.seconds is None else self.began + load.seconds

    def next_time(self) -> float | None:
        """Take the next record from the load, and return the time at which it is due, in seconds of trio's clock; the
        caller waits until then and sends the record. Without a rate a record is due at once. Returns None if the load
        has ended."""
        at = self.began + self.taken / self._rate if self._rate else trio.current_time()
        if self.taken >= self._most or at >= self._until:
            return None
        self.taken += 1
        return at

    def share(self) -> float:
        """Return the share of the load that is done, from 0 to 1: by time or by records, whichever is greater."""
        by_time = (trio.current_time() - self.began) / (self._until - self.began)
        return min(1.0, max(by_time, self.taken / self._most))


@dataclass(frozen=True)
class BenchTarget:
    """The cluster to measure, and the topic to use or to create there."""

    gateways: tuple[str, ...]
    topic: str = ""
    """Name of an existing topic to use; "": create one."""
    partitions: int = 3
    replication_factor: int | None = None
    """Replication factor of a created topic; None: 3, or the number of live replica servers if that is less."""
    config: dict[str, str] = field(default_factory=dict)

    def connect(self, number: int = 0) -> AbstractAsyncContextManager[Log]:
        """Return a context manager that connects one client to the cluster. ``number`` is the client's number:
        clients begin with different gateways, and try the others if that one does not answer."""
        first = number % len(self.gateways)
        return connect((*self.gateways[first:], *self.gateways[:first]), CONNECT_S)

    @asynccontextmanager
    async def own_topic(self, kind: str, partitions: int | None = None) -> AsyncIterator[str]:
        """Return a context manager that creates a topic with a random name beginning with ``bench-KIND``, yields the
        name, and deletes the topic at the end. A deletion that fails is reported on stderr."""
        name = f"bench-{kind}-{secrets.token_hex(3)}"
        async with connect(self.gateways) as log:
            live = sum(not server.fenced for server in (await log.cluster.status()).servers)
            factor = self.replication_factor or max(1, min(3, live))
            await log.topics.create(
                name, partitions=partitions or self.partitions, replication_factor=factor, config=self.config
            )
        try:
            yield name
        finally:
            with trio.CancelScope(shield=True):
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        """Delete a topic. If that fails or takes longer than ``REMOVE_S``, print on stderr that the topic is left."""
        try:
            with trio.fail_after(REMOVE_S):
                async with self.connect() as log:
                    await log.topics.delete(name)
        except (TidelogError, trio.TooSlowError) as error:
            delete = f"tidelog topics delete {name}{gateway_words(self.gateways[0])}"
            say(f"could not remove {name}: {error or 'no answer'}; '{delete}'", err=True)

    @asynccontextmanager
    async def some_topic(self, kind: str) -> AsyncIterator[str]:
        """Return a context manager that yields the name of the topic to measure: the one that the user has named,
        which is kept, or a new one, which is deleted at the end. Raises ``UNKNOWN_TOPIC`` if the named one does not
        exist."""
        if self.topic:
            async with connect(self.gateways) as log:
                await log.topics.describe(self.topic)
            yield self.topic
            return
        async with self.own_topic(kind) as name:
            yield name


def print_step(text: str) -> None:
    """Print on stderr what the measurement does now, such as its warm-up."""
    say(text, err=True)


@asynccontextmanager
async def progress_bar(what: str, share: Callable[[], float]) -> AsyncIterator[None]:
    """Return a context manager that shows a progress bar with the text ``what`` on stderr while its block runs, if
    stderr is a terminal. ``share`` returns the share of the work that is done, from 0 to 1."""
    bar = Bar(what, 1.0)

    async def look() -> None:
        while True:
            bar.update(done=share())
            await trio.sleep(LOOK_S)

    with shown(bar):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            yield
            nursery.cancel_scope.cancel()
