"""The newest batches of a log in memory, so that reads at its end need no disk read.

The tail holds batches as they were appended. Retention, truncation and compaction change what the log holds, so each
of them removes from the tail what it removed from the log: ``forget_below`` and ``truncate_to``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tidelog.types import Buffer

TAIL_BYTES = 4 << 20
"""Most bytes that the tail of a log takes that shares a cache with no other."""


class LogTailCache:
    """A bound on the memory of all logs' tails, the newest batches of each log: ``limit`` bytes together for a
    server. If it is exceeded, the tails that were not appended to for the longest time are emptied."""

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self._limit = limit
        self._tails: dict[PartitionTail, None] = {}
        """The tails that hold something; the one that was appended to last stands at the end."""

    def grew(self, tail: PartitionTail, size: int) -> None:
        """Count ``size`` bytes more, which were appended to ``tail``. While the limit is exceeded, the tails that
        were not appended to for the longest time are emptied; if only ``tail`` is left, it is cut to three quarters
        of the limit."""
        self._tails.pop(tail, None)
        self._tails[tail] = None
        self.bytes += size
        while self.bytes > self._limit:
            oldest = next(iter(self._tails))
            if oldest is tail:  # alone: free a quarter at a time, since deleting from the front costs time
                oldest.shrink_to(self._limit * 3 // 4)
                return
            oldest.shrink_to(0)

    def shrank(self, tail: PartitionTail, size: int) -> None:
        """Count ``size`` bytes less, which were removed from ``tail``."""
        self.bytes -= size
        if not tail._bytes:
            self._tails.pop(tail, None)


class PartitionTail:
    """The newest batches of one log in memory, consecutive up to the log end; the oldest are removed first. It lives
    as long as the log's list of segments. ``end`` is the log end when it is made."""

    __slots__ = ("_bases", "_batches", "_bytes", "_cache", "_end")

    def __init__(self, end: int, limit: int = TAIL_BYTES, cache: LogTailCache | None = None) -> None:
        self._bytes = 0
        self._cache = LogTailCache(limit) if cache is None else cache
        self._bases: list[int] = []
        self._batches: list[bytes] = []
        self._end = end

    def append(self, base: int, end: int, batch: bytes) -> None:
        """Add a batch with the offsets ``base`` to ``end`` (exclusive), which was just appended to the log and must
        continue the tail. If the shared limit is exceeded, older batches of this log or others are removed from
        memory."""
        assert base == self._end, (base, self._end)
        self._end = end
        self._bases.append(base)
        self._batches.append(batch)
        self._bytes += len(batch)
        self._cache.grew(self, len(batch))

    def shrink_to(self, size: int) -> None:
        """Remove the oldest batches from memory until at most ``size`` bytes are left."""
        count, gone = 0, 0
        while self._bytes - gone > size:
            gone += len(self._batches[count])
            count += 1
        del self._bases[:count], self._batches[:count]
        self._bytes -= gone
        self._cache.shrank(self, gone)

    def read(self, offset: int, max_bytes: int, end: int) -> list[Buffer] | None:
        """Return whole batches from the one that holds ``offset`` on. They end at or below offset ``end`` and have
        about ``max_bytes`` together, but at least one is returned if one ends there. Return None if ``offset`` is not
        in memory, so that the caller must read from the disk."""
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

    def forget_below(self, offset: int) -> None:
        """Remove the batches below ``offset`` from memory, because retention has deleted them or compaction has
        rewritten their segment. ``offset`` must be the beginning of a batch or the log end. Later reads below it go
        to the disk."""
        place = bisect_left(self._bases, offset)
        gone = sum(map(len, self._batches[:place]))
        del self._bases[:place], self._batches[:place]
        self._bytes -= gone
        self._cache.shrank(self, gone)

    def truncate_to(self, end: int) -> None:
        """Remove the batches at or above ``end`` from memory, because the log was cut there. ``end`` must be the
        beginning of a batch or the former log end."""
        place = bisect_left(self._bases, end)
        gone = sum(map(len, self._batches[place:]))
        del self._bases[place:], self._batches[place:]
        self._bytes -= gone
        self._cache.shrank(self, gone)
        self._end = end
