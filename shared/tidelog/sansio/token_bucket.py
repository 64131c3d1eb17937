"""A token bucket: at most so much a second in the long run, and a bounded burst after a time of rest.

Theory. Tokens come in at ``rate`` a second, up to what comes in ``burst_s``. What is done costs tokens. A bucket may
go into debt: the cost need not be known before, and something larger than the bucket is not refused for ever. While
there is a debt nothing more is begun. So in the long run no more is done than the rate allows.
"""

from __future__ import annotations


class TokenBucket:
    """Times are seconds of the caller's monotonic clock. A new bucket is full."""

    __slots__ = ("_burst_s", "_filled_at", "rate", "tokens")

    def __init__(self, rate: float, burst_s: float, now: float) -> None:
        self.rate = rate
        """Tokens a second."""
        self.tokens = rate * burst_s
        """What there was when the bucket was last filled; below 0: a debt."""
        self._burst_s = burst_s
        self._filled_at = now

    def fill(self, now: float) -> None:
        """Add what has come in until now."""
        self.tokens = min(self.rate * self._burst_s, self.tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now

    def spend(self, amount: float, now: float) -> None:
        """Take out so much, whatever there is."""
        self.fill(now)
        self.tokens -= amount

    def pause_s(self, now: float) -> float:
        """0 if there is anything in it; else how long it takes until there is a token."""
        self.fill(now)
        return 0.0 if self.tokens > 0 else (1.0 - self.tokens) / self.rate

    @property
    def token_at(self) -> float:
        """When there is a whole token, if nothing is spent before."""
        return self._filled_at + max(0.0, (1.0 - self.tokens) / self.rate)

    def set_rate(self, rate: float, now: float) -> None:
        """From now on tokens come in at another rate."""
        self.fill(now)
        self.rate = rate
