"""So many a second of something for each of those that cause it: one who causes many leaves room for the others."""

from __future__ import annotations

from tidelog.sansio.token_bucket import TokenBucket

KNOWN = 1000
"""Most that are told apart; beyond, the one that was known longest begins anew."""


class Shares:
    """``each_s``: how many a second each may cause. Times are seconds of the caller's monotonic clock."""

    def __init__(self, each_s: int) -> None:
        self._each_s = each_s
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, who: str, now: float) -> bool:
        """Whether one more is within the share of ``who``; it counts then."""
        bucket = self._buckets.get(who)
        if bucket is None:
            while len(self._buckets) >= KNOWN:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[who] = TokenBucket(self._each_s, 1.0, now)
        if bucket.pause_s(now):
            return False
        bucket.spend(1, now)
        return True
