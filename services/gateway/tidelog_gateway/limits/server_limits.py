"""How much a gateway sends to a replica server that is slow, and how principals share it.

Theory. A server is *slow* in an interval of at least a second if the smallest time from a batch to its ack is above a
target. The smallest value distinguishes a standing queue from one that a pause filled and that drains again (CoDel:
Nichols and Jacobson, "Controlling Queue Delay", 2012). A batch that is sent while none is in flight finds no queue,
so an interval in which that happens is never slow. A disk that is slow with a single batch in flight is therefore not
limited: a lower rate would not make it faster. The second counts from the first ack: where a pause begins with an
interval, the acks that it made late do not fill the interval alone.

The limit of a slow server follows AIMD (Chiu and Jain, 1989):

- A slow interval sets the limit to ``DECREASE`` times what the server acked in it. What the server acks is what it
  can do, so several slow intervals in a row, while the queue drains, do not lower the limit again and again.
- If more is in flight at the end of an interval than the server acks within the target, the limit was raised too far.
  It falls back to what the server acked, so that the next interval is not slow.
- Any other interval raises the limit by ``INCREASE`` times its value at the last decrease. After ``PATIENCE`` such
  intervals in a row the cause is probably gone: then the limit doubles, or ends if no tenant had to wait for it.

Principals share the limit by max-min fairness. Each gets a token bucket, all with the same rate: the largest with
which all principals together stay within the limit, given what each of them sent in the last interval. A principal
that sends less than this rate never waits. All connections without an authenticated name together are one principal,
and share its rate in the same way: each has a bucket of its own besides. So more of them, or new ones, take nothing
from a named principal.

Without a limit the cost is three comparisons per ack, and no state is kept per principal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.sansio.token_bucket import TokenBucket

from tidelog_gateway.limits.quotas import BURST_S

INTERVAL_S = 1.0
"""Seconds of a measuring interval: it ends with the first ack that comes so long after its first ack, or by itself
while nothing is in flight."""
DECREASE = 0.5
INCREASE = 0.1
PATIENCE = 10
"""Intervals in a row that are not slow before the limit doubles or ends."""
LEAST_PAUSE_S = 0.1
"""Least seconds for which a tenant that has used up its share is held back, so that checking it again costs
little. Its bucket fills meanwhile."""

Tenant = tuple[str, int]
"""A tenant of a shared bound: a principal's name, and 0. For a connection without an authenticated name:
``anonymous``, and the connection's number. ``anonymous`` and 0 stand for all these connections together."""


@dataclass(slots=True)
class _TenantAccount:
    """The account of one tenant, or of all connections without a name together, at a slow server: its token bucket,
    the bytes that it has sent since the limit was last set, and whether it had to wait."""

    bucket: TokenBucket
    spent: int = 0
    waited: bool = False
    resumes_at: float = 0.0
    """Until then the gateway holds back the tenant's batches."""

    def pause_s(self, now: float) -> float:
        """Return the seconds that the tenant has to wait before it may send; 0 if it may send now."""
        return max(self.resumes_at - now, self.bucket.pause_s(now))

    def hold(self, now: float) -> float:
        """Hold the tenant back for at least ``LEAST_PAUSE_S`` if its bucket is empty and it is not held back already.
        Return the time (seconds) until which it is held back; a time not after ``now`` means that it may send."""
        if self.resumes_at <= now and (pause_s := self.bucket.pause_s(now)):
            self.resumes_at = now + max(pause_s, LEAST_PAUSE_S)
        return self.resumes_at


class ServerLimit:
    """The limit, in bytes a second, of what a gateway sends to one replica server, set by measuring how late the
    server's acks come, and the share of each tenant. ``target_s``: the server is slow if even its quickest ack takes
    longer; 0: there never is a limit. ``least_bytes_s``: the limit is never lower. Times are seconds of the caller's
    clock."""

    def __init__(self, target_s: float, least_bytes_s: int) -> None:
        self.bytes_s: float | None = None
        """Bytes a second that may be sent; None: there is no limit."""
        self.slow_intervals = 0
        """Number of slow intervals since the gateway's start."""
        self._target_s = target_s or math.inf
        self._least_bytes_s = least_bytes_s
        self._accounts: dict[Tenant, _TenantAccount] = {}
        self._share = self._connection_share = 0
        self._step = 0.0
        self._calm = 0
        """Intervals in a row that were not slow."""
        self._since = -math.inf
        self._due_at = math.inf
        self._smallest_s = math.inf
        self._acked = 0
        self._empty = False

    # --- what the server does ---------------------------------------------------------------------------------

    def on_empty(self, now: float) -> None:
        """Record that no batch is in flight to the server, so that the present measuring interval cannot count as
        slow. While there is no limit, a new interval begins."""
        if self.bytes_s is None:
            self._restart(now)
        self._empty = True

    def on_ack(self, size: int, delay_s: float, now: float) -> None:
        """Count the ack of a batch of ``size`` bytes in the present measuring interval, which the first ack makes end
        a second later. ``delay_s``: seconds from sending the batch to its ack; infinite for an ack that does not
        depend on the server's queue (``acks=0``)."""
        if not self._acked:
            self._due_at = now + INTERVAL_S
        self._acked += size
        if delay_s < self._smallest_s:
            self._smallest_s = delay_s

    def is_due(self, now: float) -> bool:
        """Return whether the measuring interval is over, a second after its first ack: then the caller calls
        ``end_interval``. False before the first ack."""
        return now >= self._due_at

    def end_interval(self, in_flight: int, now: float) -> None:
        """End the measuring interval and begin another. Begin or lower the limit if the server was slow; otherwise
        raise the limit or end it, if there is one. ``in_flight``: bytes in flight. Does nothing if no ack came
        although batches were always in flight, since the server may have failed."""
        if not (self._acked or self._empty):
            return
        if not self._empty and self._target_s < self._smallest_s < math.inf:
            self._lower(now)
        elif self.bytes_s is not None:
            self._raise(self.bytes_s, in_flight, now)
        self._restart(now)

    def deadline(self, in_flight: bool) -> float | None:
        """Return when the measuring interval ends although no ack comes (seconds); None if there is no limit, or if
        it ends with an ack since batches were in flight all the time. ``in_flight``: whether batches are in flight
        now."""
        if self.bytes_s is None or (in_flight and not self._empty):
            return None
        return self._since + INTERVAL_S

    def lift(self) -> None:
        """End the limit at once, and forget the accounts of all tenants."""
        self.bytes_s = None
        self._accounts.clear()

    def _lower(self, now: float) -> None:
        """Count a slow interval, and set the limit to ``DECREASE`` times what the server acked in it, but not below
        the least limit."""
        self.slow_intervals += 1
        self._calm = 0
        limit = max(self._least_bytes_s, DECREASE * self._acked / (now - self._since))
        self._step = INCREASE * limit
        self._set(limit, now)

    def _raise(self, limit: float, in_flight: int, now: float) -> None:
        """Raise the limit after an interval that was not slow. Lower it to what the server acked if more is in flight
        than the server acks within the target. After ``PATIENCE`` such intervals double it, or end it if no tenant
        had to wait."""
        acked_bytes_s = self._acked / (now - self._since)
        if not self._empty and in_flight > acked_bytes_s * self._target_s:
            self._calm = 0
            self._set(max(self._least_bytes_s, min(limit, acked_bytes_s)), now)
            return
        self._calm += 1
        if self._calm <= PATIENCE:
            self._set(limit + self._step, now)
        elif any(account.waited for account in self._accounts.values()):
            self._set(2 * limit, now)
        else:
            self.lift()

    def _restart(self, now: float) -> None:
        self._since, self._due_at, self._smallest_s, self._acked, self._empty = now, math.inf, math.inf, 0, False

    # --- the share of each tenant -----------------------------------------------------------------------------

    def pause_s(self, tenant: Tenant, now: float) -> float:
        """Return the seconds until the tenant may send more to the server; 0 if it may send now, or has sent nothing
        under the limit."""
        return max((account.pause_s(now) for account in self._accounts_of(tenant)), default=0.0)

    def hold(self, tenant: Tenant, now: float) -> float:
        """Hold back all batches of a tenant that has used up its share, also those that come meanwhile, so that its
        queues send in the order of arrival. Return the time (seconds) until which the tenant is held back; a time not
        after ``now`` means that it may send."""
        return max((account.hold(now) for account in self._accounts_of(tenant)), default=now)

    def on_wait(self, tenant: Tenant) -> None:
        """Record that the tenant has more to send than its share allows. The limit then does not end, and the tenant
        counts as asking for any rate when shares are set next."""
        for account in self._accounts_of(tenant):
            account.waited = True

    def spend(self, tenant: Tenant, size: int, now: float) -> None:
        """Charge a tenant with ``size`` bytes that were sent: take them out of its bucket, which may go into debt,
        and count them for the next time that shares are set. For a connection without a name, charge the account of
        all such connections, too. An account is created if there is none."""
        for key in _levels(tenant):
            account = self._accounts.get(key)
            if account is None:
                rate = self._rate(key)
                account = self._accounts[key] = _TenantAccount(TokenBucket(rate, BURST_S, now))
            account.bucket.spend(size, now)
            account.spent += size

    def _accounts_of(self, tenant: Tenant) -> list[_TenantAccount]:
        return [account for key in _levels(tenant) if (account := self._accounts.get(key)) is not None]

    def _rate(self, key: Tenant) -> int:
        return self._connection_share if key[1] else self._share

    def _set(self, limit: float, now: float) -> None:
        """Apply a limit in bytes a second from now on, and set each tenant's rate by what the tenants sent in the
        interval that ends. The account of a tenant that sent nothing, does not wait and has no debt is deleted."""
        self.bytes_s = limit
        elapsed_s = now - self._since
        accounts = self._accounts
        wanted = {key: math.inf if each.waited else each.spent / elapsed_s for key, each in accounts.items()}
        of_principals = (rate for (_, connection), rate in wanted.items() if not connection)
        of_connections = (rate for (_, connection), rate in wanted.items() if connection)
        self._share = max(1, int(fair_share(limit, of_principals)))
        self._connection_share = max(1, int(fair_share(self._share, of_connections)))
        for tenant, account in list(accounts.items()):
            if not account.spent and not account.waited and not account.bucket.pause_s(now):
                del accounts[tenant]
                continue
            account.bucket.set_rate(self._rate(tenant), now)
            account.spent, account.waited = 0, False


def _levels(tenant: Tenant) -> tuple[Tenant, ...]:
    """Return the tenants whose accounts are charged for a tenant's batches: the tenant itself and, for a connection
    without a name, also the tenant that stands for all such connections."""
    principal, connection = tenant
    return ((principal, 0), tenant) if connection else (tenant,)


def fair_share(limit: float, wanted: Iterable[float]) -> float:
    """Return the rate up to which each tenant may send, so that all together stay within ``limit`` (max-min
    fairness). ``wanted``: the rate that each tenant asks for, which may be infinite. A tenant that wants less gets
    what it wants, and the others share the rest equally. If there is enough for all, the result is the rate up to
    which the largest could grow; ``limit`` if there are no tenants."""
    demands = sorted(wanted)
    left = share = limit
    for index, demand in enumerate(demands):
        share = left / (len(demands) - index)
        if demand > share:
            break
        left -= demand
    return share
