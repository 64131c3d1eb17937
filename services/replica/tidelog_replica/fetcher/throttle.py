"""How fast the partitions that catch up may fetch: a token bucket (``sansio.token_bucket``).

A replica that is not in sync is of no use yet; the disks, processors and links that it copies with are the
same that carry the live traffic. So what it fetches is paid for in tokens, one a byte, which come in at a fixed rate
and pile up for ``BURST_S`` at most. The bucket may go into debt by a batch or so: the size of an answer is
not known when it is asked for.
"""

from __future__ import annotations

from tidelog.sansio.token_bucket import TokenBucket

BURST_S = 0.05
PAUSE_MIN_S = 0.001
FETCH_MIN_BYTES = 64 << 10
CATCH_UP_FETCH_BYTES = 512 << 10
"""Size of a fetch of partitions that catch up, so that those in sync do not wait behind a large answer: some ms of a
link."""


class Throttle:
    """``rate`` in bytes per second; 0: no limit."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._bucket = TokenBucket(rate, BURST_S, now)

    def open_at(self, now: float) -> float:
        """When more may be asked for; ``now`` or earlier: at once."""
        self._bucket.fill(now)
        if not self._rate or self._bucket.tokens > 0:
            return now
        return now + max(PAUSE_MIN_S, -self._bucket.tokens / self._rate)

    def limit(self, size: int) -> int:
        """How much of ``size`` bytes may be asked for, where it is open at all."""
        return min(size, max(FETCH_MIN_BYTES, int(self._bucket.tokens))) if self._rate else size

    def spend(self, size: int, now: float) -> None:
        """Pay for ``size`` bytes that have come."""
        if self._rate:
            self._bucket.spend(size, now)
