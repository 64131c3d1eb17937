"""A token bucket: limits a rate in the long run, and allows a bounded burst after a time without use.

Theory. Tokens are added at ``rate`` a second, up to those of ``burst_s``. Each action costs tokens. A bucket may go
into debt: the cost need not be known in advance, and an action larger than the bucket is not refused for ever. While
there is a debt no further action is begun. So in the long run no more is done than the rate allows.
"""

from __future__ import annotations

KNOWN = 1000
"""Most names for which ``RateShares`` has a bucket. One more replaces the oldest."""


class TokenBucket:
    """A bucket of tokens that fills at ``rate`` tokens a second, up to the tokens of ``burst_s`` seconds. An action
    spends tokens, and may leave the bucket in debt. A new bucket is full. Times are seconds of the caller's monotonic
    clock."""

    __slots__ = ("_burst_s", "_filled_at", "rate", "tokens")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self.rate = rate
        """Tokens a second."""
        self.tokens = rate * burst_s
        """Tokens in the bucket when it was last filled; a negative number is a debt."""
        self._burst_s = burst_s
        self._filled_at = now

    def fill(self, now: float) -> None:
        """Add the tokens for the time since the bucket was last filled, up to its capacity."""
        self.tokens = min(self.rate * self._burst_s, self.tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now

    def spend(self, amount: float, now: float) -> None:
        """Fill the bucket, then remove ``amount`` tokens. The bucket may go into debt."""
        self.fill(now)
        self.tokens -= amount

    def pause_s(self, now: float) -> float:
        """Fill the bucket, and return how many seconds the next action must wait: 0 if the bucket has any tokens,
        otherwise until it has a whole one."""
        self.fill(now)
        return 0.0 if self.tokens > 0 else (1.0 - self.tokens) / self.rate

    @property
    def token_at(self) -> float:
        """Return the time (seconds) at which the bucket has a whole token, if nothing is spent before; a time that
        has passed if it has one already."""
        return self._filled_at + max(0.0, (1.0 - self.tokens) / self.rate)

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate at which the bucket fills from ``now`` on. Its tokens stay."""
        self.fill(now)
        self.rate = rate


class RateShares:
    """The token buckets of all names that cause some kind of event: each name may cause at most ``each_s`` events a
    second. Times are seconds of the caller's monotonic clock."""

    def __init__(self, each_s: int) -> None:
        self._each_s = each_s
        self._buckets: dict[str, TokenBucket] = {}

    def try_spend(self, who: str, now: float) -> bool:
        """Count an event that ``who`` causes and return True, if it is within the share of ``who``. Otherwise return
        False, and count nothing."""
        bucket = self._buckets.get(who)
        if bucket is None:
            while len(self._buckets) >= KNOWN:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[who] = TokenBucket(self._each_s, 1.0, now)
        if bucket.pause_s(now):
            return False
        bucket.spend(1, now)
        return True
