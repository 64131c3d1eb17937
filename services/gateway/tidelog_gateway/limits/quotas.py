"""What each principal may have of this gateway: token buckets (``sansio.token_bucket``), one for each rate.

A principal that asks while there is anything in its bucket gets all that it asked for, however much. While the bucket
is in debt the principal is told how long to wait (``QUOTA_EXCEEDED``, ``pause_ms``).

Bytes that a client is sent are known when they have been sent: they are spent afterwards, and what the client asks
for next waits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.bounds import why_over
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.token_bucket import TokenBucket
from tidelog.types import Quota

BURST_S = 1.0
"""So much of the rate may be spent at once after a time of rest."""
CONNECTION_PAUSE_MS = 1000
"""Whoever has too many connections is told to come again after so long: connections end."""
RATES = ("bytes_in_s", "bytes_out_s", "requests_s")


@dataclass(slots=True)
class _Account:
    quota: Quota
    buckets: dict[str, TokenBucket] = field(default_factory=dict)


class Quotas:
    """Of all principals that have one, and how many connections each principal has."""

    def __init__(self, most_connections: int = sys.maxsize) -> None:
        """``most_connections``: of a principal whose quota does not say how many."""
        self._most_connections = most_connections
        self._accounts: dict[str, _Account] = {}
        self._connections: dict[str, int] = {}

    def update(self, quotas: Iterable[Quota], now: float) -> None:
        """The metadata says this now. What a principal owes it goes on owing, unless its rate is another."""
        before, self._accounts = self._accounts, {}
        for quota in quotas:
            account = before.get(quota.principal)
            if account is None or account.quota != quota:
                account = _Account(quota)
                for name in RATES:
                    if (rate := getattr(quota, name)) >= 0:
                        account.buckets[name] = TokenBucket(rate, BURST_S, now)
            self._accounts[quota.principal] = account

    def bounds(self, principal: str) -> bool:
        """It has a quota."""
        return principal in self._accounts

    def on_open(self, principal: str) -> None:
        """It has one connection more."""
        self._connections[principal] = self._connections.get(principal, 0) + 1

    def on_close(self, principal: str) -> None:
        """It has one connection less."""
        self._connections[principal] -= 1
        if not self._connections[principal]:
            del self._connections[principal]

    def why_no_connection(self, principal: str) -> TidelogError | None:
        """Why it may not have another connection."""
        account, open = self._accounts.get(principal), self._connections.get(principal, 0)
        if account is None or account.quota.connections < 0:
            over = why_over(principal, "connections", open, "principal_max_connections", self._most_connections)
            if over is None:
                return None
            over.code = "QUOTA_EXCEEDED"
            over.detail["pause_ms"] = CONNECTION_PAUSE_MS
            return over
        if open < account.quota.connections:
            return None
        text = f"{principal} has {open} connections to this gateway; its quota is {account.quota.connections}"
        return refuse("QUOTA_EXCEEDED", text, pause_ms=CONNECTION_PAUSE_MS)

    def pause_s(self, principal: str, rate: str, now: float) -> float:
        """How long it has to wait before it may have more of this; 0: not at all."""
        account = self._accounts.get(principal)
        bucket = None if account is None else account.buckets.get(rate)
        return 0.0 if bucket is None else bucket.pause_s(now)

    def spend(self, principal: str, rate: str, amount: int, now: float) -> None:
        """It had so much."""
        account = self._accounts.get(principal)
        if account is not None and (bucket := account.buckets.get(rate)) is not None:
            bucket.spend(amount, now)

    def why_not(self, principal: str, rates: Iterable[str], now: float) -> TidelogError | None:
        """Why it has to wait before it may have more of these: for the one that takes the longest."""
        pause_s, rate = max(((self.pause_s(principal, rate, now), rate) for rate in rates), default=(0.0, ""))
        if not pause_s:
            return None
        text = f"{principal} has used up its quota of {rate} at this gateway"
        return refuse("QUOTA_EXCEEDED", text, pause_ms=math.ceil(1000 * pause_s))
