"""How fast the partitions that catch up may fetch: a token bucket (``sansio.token_bucket``).

A replica that is not in sync does not protect any record yet, but its fetches use the disks, processors and links
that carry the live traffic. So each byte that it fetches costs one token. Tokens are added at a fixed rate, and at
most those of ``BURST_S`` are kept. The number of tokens may become negative, by about one batch, since the size of an
answer is not known when it is requested.
"""

from __future__ import annotations

from tidelog.sansio.token_bucket import TokenBucket

BURST_S = 0.05
"""The number of unused tokens is limited to those of so many seconds."""
PAUSE_MIN_S = 0.001
"""The shortest pause, in seconds, when no token is left."""
FETCH_MIN_BYTES = 64 << 10
"""The smallest size of a fetch, in bytes, even if fewer tokens are left."""
CATCH_UP_FETCH_BYTES = 512 << 10
"""Size of a fetch of partitions that catch up, so that those in sync do not wait behind a large answer: a few ms of a
link."""


class Throttle:
    """The limit on the bytes that this server fetches for partitions in whose ISR it is not, as a token bucket. All
    fetchers share it, as long as the node lives. ``rate`` is bytes per second; 0 means no limit."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._bucket = TokenBucket(rate, BURST_S, now)

    def open_at(self, now: float) -> float:
        """Return the time, in seconds, at which more may be fetched: ``now`` if tokens are left or there is no limit,
        otherwise when the debt is paid."""
        self._bucket.fill(now)
        if not self._rate or self._bucket.tokens > 0:
            return now
        return now + max(PAUSE_MIN_S, -self._bucket.tokens / self._rate)

    def limit(self, size: int) -> int:
        """Return how many bytes the next fetch may ask for, at most ``size``: the tokens that are left, but at least
        ``FETCH_MIN_BYTES``; without a limit ``size`` itself."""
        return min(size, max(FETCH_MIN_BYTES, int(self._bucket.tokens))) if self._rate else size

    def spend(self, size: int, now: float) -> None:
        """Take the tokens for ``size`` bytes that were fetched. Their number may become negative, a debt. Does
        nothing without a limit."""
        if self._rate:
            self._bucket.spend(size, now)
