"""A rate for each of those who cause some event, so that one who causes many leaves room for the others."""

from __future__ import annotations

from tidelog.sansio.token_bucket import TokenBucket

KNOWN = 1000
"""Most causers with a bucket; beyond this the oldest bucket is dropped."""


class RateShares:
    """The token buckets of all names that cause some event, by which each may cause at most ``each_s`` events a
    second. Times are seconds of the caller's monotonic clock."""

    def __init__(self, each_s: int) -> None:
        self._each_s = each_s
        self._buckets: dict[str, TokenBucket] = {}

    def try_spend(self, who: str, now: float) -> bool:
        """Return whether an event that ``who`` causes is within the share of ``who``, and count the event
        if it is."""
        bucket = self._buckets.get(who)
        if bucket is None:
            while len(self._buckets) >= KNOWN:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[who] = TokenBucket(self._each_s, 1.0, now)
        if bucket.pause_s(now):
            return False
        bucket.spend(1, now)
        return True
