"""The newest batches of a log in memory, so that followers and readers at its end cost no disk read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tidelog.types import Buffer

TAIL_BYTES = 4 << 20
"""Most bytes kept per log."""


class Tail:
    """Consecutive batches up to the log end; the oldest go first."""

    def __init__(self, end: int, limit: int = TAIL_BYTES) -> None:
        self._limit = limit
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._bytes = 0
        self._end = end

    def append(self, base: int, end: int, batch: bytes) -> None:
        """Keep a batch that was appended to the log."""
        assert base == self._end, (base, self._end)
        self._end = end
        self._bases.append(base)
        self._batches.append(batch)
        self._bytes += len(batch)
        if self._bytes > self._limit:
            self._evict()

    def _evict(self) -> None:
        """Room for a quarter of the limit at once: deleting from the front of a list is not free."""
        count = 0
        while self._bytes > self._limit * 3 // 4 and count < len(self._batches):
            self._bytes -= len(self._batches[count])
            count += 1
        del self._bases[:count], self._batches[:count]

    def read(self, offset: int, max_bytes: int, end: int) -> list[Buffer] | None:
        """As ``Log.read``; None where ``offset`` is not in memory."""
        if not self._bases or not self._bases[0] <= offset < self._end:
            return None
        place = bisect_right(self._bases, offset) - 1
        stop = len(self._bases) if end >= self._end else bisect_right(self._bases, end) - 1
        found: list[Buffer] = []
        used = 0
        for number in range(place, stop):
            batch = self._batches[number]
            used += len(batch)
            if found and used > max_bytes:
                break
            found.append(batch)
        return found

    def truncate_to(self, end: int) -> None:
        """The log ends at ``end`` now, the beginning of a batch."""
        place = bisect_left(self._bases, end)
        self._bytes -= sum(map(len, self._batches[place:]))
        del self._bases[place:], self._batches[place:]
        self._end = end
