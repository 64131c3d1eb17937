"""The orders and the counters that the clients of all products share. It uses only the standard library: each
product's client runs in its own environment."""

from __future__ import annotations

import itertools
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

STAMP = struct.Struct(">d")
"""The beginning of a value: the time at which it was handed to the client; 0 for the record that only wakes the
subscribers."""
ARRIVE_S = 60.0
"""Seconds that subscribers may take for the records that are on their way."""
GROUP = 200
"""Records between two checks of the clock."""
OPENING = 50
"""Most subscribers of a process that have not had the first record yet while it opens many of them."""


@dataclass(frozen=True, slots=True)
class Order:
    """The task of a client process. Sizes in bytes, times in seconds."""

    client: str
    """The module of this package that drives the client."""
    addresses: tuple[str, ...]
    """Addresses at which the servers listen for clients."""
    do: str = ""
    topic: str = ""
    partitions: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the topic when it is created."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the client that are not its defaults."""
    size: int = 100
    seconds: float = 0.0
    records: int = 0
    subscribers: int = 0
    rate: float = 0.0

    @classmethod
    def read(cls, order: dict[str, Any]) -> Order:
        """Return an order from its JSON object."""
        return cls(**order | {"addresses": tuple(order["addresses"])})


class Acks:
    """The acknowledgements of a client's records, added from any thread."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failed = 0
        self.first_error = ""

    def add(self, error: object = None) -> None:
        """Count a record as acknowledged now, or, with ``error``, as failed."""
        if error is None:
            self.times.append(time.monotonic())
        else:
            self.failed += 1
            self.first_error = self.first_error or repr(error)

    @property
    def settled(self) -> int:
        """Number of records that are acknowledged or have failed."""
        return len(self.times) + self.failed


class Audience:
    """The subscribers of one process, each of which is to get a number of records, and the delays of the records
    that came. All processes of this machine have one clock."""

    def __init__(self, subscribers: int, records: int) -> None:
        self.delays: list[float] = []
        self.awake = 0
        """Number of subscribers that have received the first record."""
        self._lock = threading.Lock()
        self._subscribers = subscribers
        self._records = records

    def add(self, value: bytes) -> None:
        """Count a value that a subscriber has just received: its delay, or, for the first record, that the subscriber
        is awake."""
        now = time.monotonic()
        (at,) = STAMP.unpack_from(value)
        with self._lock:
            if at:
                self.delays.append(now - at)
            else:
                self.awake += 1

    def is_awake(self) -> bool:
        """Return whether every subscriber has received the first record."""
        return self.awake >= self._subscribers

    def may_open(self, opened: int) -> bool:
        """Return whether one more subscriber may open after ``opened`` of them: few enough still wait for their
        first record."""
        return opened - self.awake < OPENING

    def has(self, records: int) -> bool:
        """Return whether every subscriber has received this many records after the first."""
        return len(self.delays) >= self._subscribers * records

    def is_done(self) -> bool:
        """Return whether every subscriber has received every record."""
        return self.has(self._records)


def stamped(size: int, at: float) -> bytes:
    """Return a value of this size that begins with the time ``at`` at which it is sent."""
    return STAMP.pack(at) + bytes(size - STAMP.size)


def stamped_values(size: int) -> Iterator[bytes]:
    """Yield values of this size, without end: the one that only wakes the subscribers, then one with the time at
    which it is taken from here."""
    yield stamped(size, 0.0)
    while True:
        yield stamped(size, time.monotonic())


def value_of(size: int) -> bytes:
    """Return random bytes, which do not compress."""
    return os.urandom(size)


def wait(condition: Callable[[], bool], what: str, seconds: float = ARRIVE_S) -> None:
    """Wait until the condition is true, by sleeping in this thread. Raises ``TimeoutError``."""
    for _ in pauses(condition, what, seconds):
        time.sleep(0.01)


def pauses(condition: Callable[[], bool], what: str, seconds: float = ARRIVE_S) -> Iterator[None]:
    """Yield until the condition is true; the caller sleeps in its own way at each turn. Raises ``TimeoutError`` after
    ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        yield


def moments(rate: float, records: int | None = None) -> Iterator[float]:
    """Yield the times at which the records of a steady rate are due, from now on; without end if ``records`` is
    None."""
    began = time.monotonic()
    for number in itertools.count() if records is None else range(records):
        yield began + number / rate


def percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile of the values; ``share`` is 0 to 1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def longest_gap(times: list[float], since: float) -> float:
    """Return the longest time between two successive acks the second of which came after ``since``; infinity if there
    are none."""
    before = [at for at in times if at <= since]
    points = sorted([*before[-1:], *(at for at in times if at > since)])
    return max((later - earlier for earlier, later in itertools.pairwise(points)), default=math.inf)
