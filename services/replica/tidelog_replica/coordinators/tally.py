"""How many of something each principal has."""

from __future__ import annotations


class Tally:
    """What has no owner ("") is not counted."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def of(self, principal: str) -> int:
        """How many it has."""
        return self._held.get(principal, 0)

    def add(self, principal: str) -> None:
        """It has one more."""
        if principal:
            self._held[principal] = self.of(principal) + 1

    def drop(self, principal: str) -> None:
        """It has one less."""
        if principal:
            self._held[principal] -= 1
            if not self._held[principal]:
                del self._held[principal]
