"""How many groups, members or applications each principal has, for the bounds of ``tidelog.principal_bounds``."""

from __future__ import annotations


class Tally:
    """The number of groups, members or transactional ids that each principal has at one coordinator, for the bounds
    per principal. It is kept in memory only. The principal "" (unknown) is never counted."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def of(self, principal: str) -> int:
        """Return how many the principal has; 0 if none, and for the principal ""."""
        return self._held.get(principal, 0)

    def add(self, principal: str) -> None:
        """Add one to the principal's number. Does nothing for the principal "" (unknown)."""
        if principal:
            self._held[principal] = self.of(principal) + 1

    def drop(self, principal: str) -> None:
        """Subtract one from the principal's number. Raises ``KeyError`` if the number is 0. Does nothing for the
        principal "" (unknown)."""
        if principal:
            self._held[principal] -= 1
            if not self._held[principal]:
                del self._held[principal]
