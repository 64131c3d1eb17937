"""How many groups, members or applications each principal has, for the bounds of ``tidelog.principal_bounds``."""

from __future__ import annotations


class Tally:
    """A count per principal, in the memory of a coordinator. The principal "" (not known) is never counted."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def of(self, principal: str) -> int:
        """Return the principal's count; 0 if it has none."""
        return self._held.get(principal, 0)

    def add(self, principal: str) -> None:
        """Add one to the principal's count. Does nothing for ""."""
        if principal:
            self._held[principal] = self.of(principal) + 1

    def drop(self, principal: str) -> None:
        """Subtract one from the principal's count, which must not be 0. Does nothing for ""."""
        if principal:
            self._held[principal] -= 1
            if not self._held[principal]:
                del self._held[principal]
