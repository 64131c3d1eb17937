"""What the clients of all products count with. Only the standard library: each product's client runs in its own
environment."""

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
"""Begins a value: when it was handed to the client; 0 for the record that only wakes the subscribers."""
ARRIVE_S = 60.0
"""How long subscribers may take for what is still on its way."""
GROUP = 200
"""Records between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a client process is to do. Sizes in bytes, times in seconds."""

    client: str
    """The module of this package that drives it."""
    addresses: tuple[str, ...]
    """Where the servers listen for clients."""
    do: str = ""
    topic: str = ""
    partitions: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the topic, when it is created."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the client, where they are not its defaults."""
    size: int = 100
    seconds: float = 0.0
    records: int = 0
    subscribers: int = 0
    rate: float = 0.0

    @classmethod
    def read(cls, order: dict[str, Any]) -> Order:
        """Make an order from its JSON."""
        return cls(**order | {"addresses": tuple(order["addresses"])})


class Acks:
    """Acknowledgements as they come, in any thread."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failed = 0
        self.first_error = ""

    def add(self, error: object = None) -> None:
        """A record's fate is known; ``error``: it failed."""
        if error is None:
            self.times.append(time.monotonic())
        else:
            self.failed += 1
            self.first_error = self.first_error or repr(error)

    @property
    def settled(self) -> int:
        """Records whose fate is known."""
        return len(self.times) + self.failed


class Audience:
    """Subscribers, each of which is to get so many records, and how late those came. In one process, by one clock."""

    def __init__(self, subscribers: int, records: int) -> None:
        self.delays: list[float] = []
        self._lock = threading.Lock()
        self._awake = 0
        self._subscribers = subscribers
        self._records = records

    def add(self, value: bytes) -> None:
        """A subscriber has this value."""
        now = time.monotonic()
        (at,) = STAMP.unpack_from(value)
        with self._lock:
            if at:
                self.delays.append(now - at)
            else:
                self._awake += 1

    def is_awake(self) -> bool:
        """Every subscriber has had the first record."""
        return self._awake >= self._subscribers

    def is_done(self) -> bool:
        """Every subscriber has every record."""
        return len(self.delays) >= self._subscribers * self._records


def stamped(size: int, at: float) -> bytes:
    """A value that holds the time at which it was sent."""
    return STAMP.pack(at) + bytes(size - STAMP.size)


def value_of(size: int) -> bytes:
    """Bytes that do not compress."""
    return os.urandom(size)


def wait(condition: Callable[[], bool], what: str, seconds: float = ARRIVE_S) -> None:
    """Until it holds, in clients that have threads. Raises ``TimeoutError``."""
    for _ in pauses(condition, what, seconds):
        time.sleep(0.01)


def pauses(condition: Callable[[], bool], what: str, seconds: float = ARRIVE_S) -> Iterator[None]:
    """One turn for each look until it holds; the caller sleeps in its own way. Raises ``TimeoutError``."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        yield


def moments(rate: float, records: int | None = None) -> Iterator[float]:
    """When the records of a steady rate are due, from now on; without an end when ``records`` is None."""
    began = time.monotonic()
    for number in itertools.count() if records is None else range(records):
        yield began + number / rate


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile; ``share`` in 0..1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def longest_gap(times: list[float], since: float) -> float:
    """The longest time between two acks that follow each other, the second of them after ``since``."""
    before = [at for at in times if at <= since]
    points = sorted([*before[-1:], *(at for at in times if at > since)])
    return max((later - earlier for earlier, later in itertools.pairwise(points)), default=math.inf)
