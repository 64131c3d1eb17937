"""What connections hold of messages whose end is not there yet, all together.

Each message is bounded in size, and must get on (``frames.py``); but thousands of connections may each have begun a
long one. So what came of them after the first read of each is counted, and when it is more than there may be, who has
begun first has to give up: those who do not mean to finish are the oldest before long.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection whose received bytes are counted."""

    def give_up(self) -> None:
        """Wait no longer for the rest of the message that has begun."""


class Backlog:
    """At most ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes that are held."""

    def add(self, holder: Holder, size: int) -> None:
        """It has received so much more of its message; maybe it is told at once to give up."""
        self.total += size
        self._held[holder] = self._held.get(holder, 0) + size
        while self.total > self._most:
            oldest = next(iter(self._held))
            self.remove(oldest)
            oldest.give_up()

    def remove(self, holder: Holder) -> None:
        """It holds nothing any more."""
        self.total -= self._held.pop(holder, 0)
