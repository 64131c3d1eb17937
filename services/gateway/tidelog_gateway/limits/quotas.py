"""Quotas of principals at this gateway: token buckets (``sansio.token_bucket``), one for each rate.

A bucket holds what may be spent in ``BURST_S``; it fills at its rate. A request that finds a bucket not empty gets
all that it asks for, and the bucket may go into debt: so a message larger than a second's worth is not refused for
ever. While a bucket is in debt, requests of its principal are refused with the time to wait (``QUOTA_EXCEEDED``,
``pause_ms``). Kafka calls such a pause throttle time. In the long run no principal gets more than its rate.

The bytes that a client is sent are known only when they have been sent: they are spent afterwards, and the next
request of the client waits.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidelog.errors import TidelogError, refuse
from tidelog.principal_bounds import refuse_excess
from tidelog.sansio.counters import count
from tidelog.sansio.token_bucket import TokenBucket
from tidelog.types import Quota

BURST_S = 1.0
"""A full bucket holds what its rate fills in this time."""
CONNECTION_PAUSE_MS = 1000
"""Milliseconds after which a client whose connection was refused may try again, since other connections end."""
RATES = ("bytes_in_s", "bytes_out_s", "requests_s")


@dataclass(slots=True)
class _QuotaAccount:
    quota: Quota
    buckets: dict[str, TokenBucket] = field(default_factory=dict)


class Quotas:
    """The quotas of all principals that have one, with their token buckets, and the number of connections of each
    principal at this gateway. Times are in seconds of the caller's clock."""

    def __init__(self, most_connections: int = sys.maxsize) -> None:
        """``most_connections``: bound on the connections of a principal whose quota sets none."""
        self._most_connections = most_connections
        self._accounts: dict[str, _QuotaAccount] = {}
        self._connections: dict[str, int] = {}
        self.refusals: dict[tuple[str, str], int] = {}
        """How often a request, credit or connection had to wait, by principal and rate ("connections" is one). For
        the metrics; a principal that has lost its quota is dropped."""

    def update(self, quotas: Iterable[Quota], now: float) -> None:
        """Replace the quotas of all principals; a principal that ``quotas`` does not name has none from now on. A
        principal with an unchanged quota keeps the levels of its token buckets, any other begins with full ones."""
        before, self._accounts = self._accounts, {}
        for quota in quotas:
            account = before.get(quota.principal)
            if account is None or account.quota != quota:
                account = _QuotaAccount(quota)
                for name in RATES:
                    if (rate := getattr(quota, name)) >= 0:
                        account.buckets[name] = TokenBucket(rate, BURST_S, now)
            self._accounts[quota.principal] = account
        for key in [key for key in self.refusals if key[0] not in self._accounts]:
            del self.refusals[key]

    def has_quota(self, principal: str) -> bool:
        """Return whether the principal has a quota of any kind."""
        return principal in self._accounts

    def count_refusal(self, principal: str, rate: str) -> None:
        """Count that something of the principal had to wait for its quota of ``rate``. Does nothing for a principal
        without a quota, so that no client can fill the table."""
        if principal in self._accounts:
            count(self.refusals, (principal, rate))

    def pauses(self, now: float) -> Iterator[tuple[str, str, float]]:
        """Yield (principal, rate, seconds until it may go on) for each quota that is used up now."""
        for principal, account in self._accounts.items():
            for rate, bucket in account.buckets.items():
                if pause_s := bucket.pause_s(now):
                    yield principal, rate, pause_s

    def largest(self, most: int) -> list[tuple[str, int]]:
        """Return the principals with the most connections to this gateway, at most ``most``, each with its number."""
        return heapq.nlargest(most, self._connections.items(), key=lambda one: (one[1], one[0]))

    def on_open(self, principal: str) -> None:
        """Count one more connection of the principal."""
        self._connections[principal] = self._connections.get(principal, 0) + 1

    def on_close(self, principal: str) -> None:
        """Count one connection of the principal less. Raises ``KeyError`` if it has none."""
        self._connections[principal] -= 1
        if not self._connections[principal]:
            del self._connections[principal]

    def refuse_connection(self, principal: str) -> TidelogError | None:
        """Return ``QUOTA_EXCEEDED``, with the time after which to try again, if the principal has as many connections
        as its quota or the common bound allows; None if it may open another. The refusal is counted."""
        account, open = self._accounts.get(principal), self._connections.get(principal, 0)
        if account is None or account.quota.connections < 0:
            over = refuse_excess(principal, "connections", open, "principal_max_connections", self._most_connections)
            if over is None:
                return None
            over.code = "QUOTA_EXCEEDED"
            over.detail["pause_ms"] = CONNECTION_PAUSE_MS
            return over
        if open < account.quota.connections:
            return None
        self.count_refusal(principal, "connections")
        text = f"{principal} has {open} connections to this gateway; its quota is {account.quota.connections}"
        return refuse("QUOTA_EXCEEDED", text, pause_ms=CONNECTION_PAUSE_MS)

    def is_over(self, principal: str) -> bool:
        """Return whether the principal has more connections than its quota, or the common bound, allows."""
        account, open = self._accounts.get(principal), self._connections.get(principal, 0)
        if account is None or account.quota.connections < 0:
            return open > self._most_connections
        return open > account.quota.connections

    def pause_s(self, principal: str, rate: str, now: float) -> float:
        """Return the seconds until the principal may spend more of ``rate``; 0 if it may now, or has no quota of that
        rate. ``rate`` is one of ``RATES``."""
        account = self._accounts.get(principal)
        bucket = None if account is None else account.buckets.get(rate)
        return 0.0 if bucket is None else bucket.pause_s(now)

    def spend(self, principal: str, rate: str, amount: int, now: float) -> None:
        """Take ``amount`` (bytes, or the cost of requests) out of the principal's token bucket for ``rate``. The
        bucket may go into debt. Does nothing if the principal has no quota of that rate."""
        account = self._accounts.get(principal)
        if account is not None and (bucket := account.buckets.get(rate)) is not None:
            bucket.spend(amount, now)

    def refuse_over_quota(self, principal: str, rates: Iterable[str], now: float) -> TidelogError | None:
        """Return ``QUOTA_EXCEEDED`` with the longest pause if the principal has used up its quota of any of
        ``rates``; None if it has used up none. Spends nothing, and counts the refusal."""
        pause_s, rate = max(((self.pause_s(principal, rate, now), rate) for rate in rates), default=(0.0, ""))
        if not pause_s:
            return None
        self.count_refusal(principal, rate)
        text = f"{principal} has used up its quota of {rate} at this gateway"
        return refuse("QUOTA_EXCEEDED", text, pause_ms=math.ceil(1000 * pause_s), rate=rate)
