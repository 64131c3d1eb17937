"""A bound that tenants share: each may hold at most as much as it leaves free.

Theory (dynamic thresholds, Choudhury and Hahne 1998). A tenant gets more only if it would then hold no more than what
is free now. A tenant without competitors gets half, and leaves the other half to those who come later. Tenants that
come one after the other and keep what they hold would leave less and less. So a part may be *reserved*: the rule does
not apply to that part, of which tenants get only as much as makes them hold a little.
"""

from __future__ import annotations

from tidelog_gateway.limits.server_limits import Tenant

LITTLE = 128
"""A tenant holds *a little* if it holds at most this part (a 128th) of everything."""


class FairShare:
    """A bound that tenants (principals, or connections without a name) share: the amount, in bytes or requests, that
    each of them holds of the common ``most``. A tenant gets more only if it then holds no more than what is free now.
    ``reserved``: a quarter of the bound is kept for tenants that then hold no more than ``most / LITTLE``."""

    def __init__(self, most: int, *, reserved: bool = False) -> None:
        self.most = most
        self._shared = most - most // 4 if reserved else most
        self._little = most // LITTLE if reserved else 0
        self.plenty = self._shared // 2
        """While all tenants together hold no more than this, the share of each allows it."""
        self.total = 0
        """Amount that all tenants hold."""
        self._held: dict[Tenant, int] = {}

    def held(self, tenant: Tenant) -> int:
        """Return the amount that the tenant holds; 0 for an unknown tenant."""
        return self._held.get(tenant, 0)

    def fits(self, tenant: Tenant, amount: int = 1) -> bool:
        """Return whether the tenant may hold ``amount`` more: it then holds no more than what is free now, and all
        tenants together no more than ``most``. Always true while no tenant holds anything. Changes nothing."""
        after = self._held.get(tenant, 0) + amount
        fits = self.total + amount <= self.most and after <= max(self._shared - self.total, self._little)
        return fits or not self.total

    def try_hold(self, tenant: Tenant, amount: int = 1) -> bool:
        """Add ``amount`` to what the tenant holds and return True, if its share allows that. Otherwise change nothing
        and return False."""
        if not self.fits(tenant, amount):
            return False
        self.hold(tenant, amount)
        return True

    def hold(self, tenant: Tenant, amount: int = 1) -> None:
        """Add ``amount`` to what the tenant holds, even if that exceeds its share or the bound."""
        self._held[tenant] = self._held.get(tenant, 0) + amount
        self.total += amount

    def release(self, tenant: Tenant, amount: int = 1) -> None:
        """Subtract ``amount`` from what the tenant holds, which must be at least so much. Raises ``KeyError`` if the
        tenant holds nothing."""
        self.total -= amount
        left = self._held[tenant] - amount
        if left:
            self._held[tenant] = left
        else:
            del self._held[tenant]
