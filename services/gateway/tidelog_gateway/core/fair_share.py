"""A bound that tenants share: each may have as much as it leaves free.

Theory (dynamic thresholds, Choudhury and Hahne 1998). A tenant gets more only while what it would hold is no more
than what is free now. One that is alone gets half, two get a third each, and so on. So there is always something left
for one who comes later, however much the others ask for and however long they keep it.
"""

from __future__ import annotations

Tenant = tuple[str, int]
"""Who shares a bound: a principal, and 0; or a connection without an authenticated name, ``anonymous`` and its
number."""


class FairShare:
    """How much of ``most`` each tenant holds."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        """What all of them hold."""
        self._held: dict[Tenant, int] = {}

    def held(self, tenant: Tenant) -> int:
        """What the tenant holds."""
        return self._held.get(tenant, 0)

    def take(self, tenant: Tenant, amount: int = 1) -> bool:
        """Give the tenant so much more, if its share allows it. Who comes first gets whatever he asks for."""
        held = self._held.get(tenant, 0)
        if self.total and held + amount > self.most - self.total:
            return False
        self._held[tenant] = held + amount
        self.total += amount
        return True

    def give(self, tenant: Tenant, amount: int = 1) -> None:
        """The tenant gives back so much."""
        self.total -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]
