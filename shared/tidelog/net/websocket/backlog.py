"""Bounds the bytes of incomplete messages that all connections hold together.

Each message is bounded in size and must make progress (``frame_stream.py``), but thousands of connections may each
have begun a long one. So the bytes that each receives after the first read are counted. When there are too many, the
connection whose message began first has to give up: clients that do not mean to finish soon are the oldest.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """A connection that holds the bytes of an incomplete message, as ``Backlog`` sees it."""

    def give_up(self) -> None:
        """Fail the receiving of the message that has begun, which closes the connection."""


class Backlog:
    """The bytes of incomplete messages that all accepted connections of a process hold together, bounded
    by ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes that are held."""

    def add(self, holder: Holder, size: int) -> None:
        """Count ``size`` more received bytes of the holder's incomplete message. While there are more than ``most``
        bytes, the connection whose message began first has to give up."""
        self.total += size
        self._held[holder] = self._held.get(holder, 0) + size
        while self.total > self._most:
            oldest = next(iter(self._held))
            self.remove(oldest)
            oldest.give_up()

    def remove(self, holder: Holder) -> None:
        """Forget a connection whose message is complete, or which has closed. Does nothing if it holds no bytes."""
        self.total -= self._held.pop(holder, 0)
