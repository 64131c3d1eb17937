"""Bounds the bytes of incomplete messages that all connections hold together.

Each message is bounded in size and must make progress (``frame_stream.py``), but thousands of connections may each
have begun a long one. So the bytes that each receives after its first read are counted. If there are too many, the
connection whose message began first has to give up: clients that do not mean to finish soon are the oldest. Long
answers over HTTP that their clients do not take are counted, too.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection that may hold the bytes of an incomplete message, and can give up receiving it."""

    def give_up(self) -> None:
        """Stop receiving the message that has begun, and fail; the connection is then closed."""


class Backlog:
    """A count of the bytes that all accepted connections of a process hold of incomplete messages, bounded by
    ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes that all connections hold now."""

    def add(self, holder: Holder, size: int) -> None:
        """Count ``size`` more received bytes of the holder's incomplete message. As long as all connections together
        hold more than ``most`` bytes, call ``give_up`` of the connection whose message began first, which may be the
        holder itself."""
        self.total += size
        self._held[holder] = self._held.get(holder, 0) + size
        while self.total > self._most:
            oldest = next(iter(self._held))
            self.remove(oldest)
            oldest.give_up()

    def remove(self, holder: Holder) -> None:
        """Stop counting the bytes of this connection, because its message is complete or the connection has closed.
        Does nothing if none are counted."""
        self.total -= self._held.pop(holder, 0)
