"""How much a connection may have in flight: the batches that its gateway holds until they are acked.

A gateway announces in its welcome how many bytes and batches of one connection may wait for their acks
(``produce_bytes`` and ``produce_batches`` in ``limits``), and refuses a batch beyond. All producers of a connection
share that window. A producer asks before it sends a batch; a batch counts from then on until its ack, also if the
producer has given it up meanwhile, because the gateway still holds it. A gateway of an earlier release announces
nothing: then the window has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.wire.messages import ProduceAck, ProducePart


class ProduceWindow:
    """The batches of one connection that were sent and not acked. It begins empty with each link."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        """Bytes of each batch in flight, by its number."""
        self._bytes = 0
        self._most_bytes: float = math.inf
        self._most_batches: float = math.inf
        self._waiting: list[Callable[[], None]] = []

    def begin(self, limits: Mapping[str, int]) -> None:
        """Begin again with nothing in flight, under the limits that the gateway of a new link has announced."""
        self._most_bytes = limits.get("produce_bytes", math.inf)
        self._most_batches = limits.get("produce_batches", math.inf)
        self._sizes.clear()
        self._bytes = 0
        self._wake()

    def has_room(self, size: int, batches: int = 1) -> bool:
        """Return whether so many batches, of ``size`` bytes together, may be sent now. There is always room if
        nothing is in flight."""
        if not self._sizes:
            return True
        return self._bytes + size <= self._most_bytes and len(self._sizes) + batches <= self._most_batches

    def add(self, parts: Sequence[ProducePart]) -> None:
        """Count batches that are sent now."""
        for part in parts:
            self._sizes[part.id] = part.size
            self._bytes += part.size

    def remove(self, acks: Sequence[ProduceAck]) -> None:
        """Count batches that were acked or refused no more, and wake those that wait for room."""
        for ack in acks:
            self._bytes -= self._sizes.pop(ack.id, 0)
        if self._waiting:
            self._wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called once when there may be more room."""
        self._waiting.append(wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()
