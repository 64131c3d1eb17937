"""Bounds the bytes of incomplete messages that all connections hold together.

Each message is bounded in size and must make progress (``frame_stream.py``), but thousands of connections may each
have begun a long one. So the bytes that each receives after the first read are counted. When there are too many, the
connection whose message began first has to give up: clients that do not mean to finish soon are the oldest.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection whose received bytes are counted."""

    def give_up(self) -> None:
        """Stop waiting for the rest of the message that has begun."""


class Backlog:
    """Lets connections hold at most ``most`` bytes together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes that are held."""

    def add(self, holder: Holder, size: int) -> None:
        """Count received bytes of a message. The oldest holders have to give up while there are too many bytes."""
        self.total += size
        self._held[holder] = self._held.get(holder, 0) + size
        while self.total > self._most:
            oldest = next(iter(self._held))
            self.remove(oldest)
            oldest.give_up()

    def remove(self, holder: Holder) -> None:
        """Forget a connection whose message is complete, or which has closed."""
        self.total -= self._held.pop(holder, 0)
