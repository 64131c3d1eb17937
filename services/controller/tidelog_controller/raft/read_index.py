"""ReadIndex (dissertation §6.4): linearizable reads that write nothing to the log.

A leader answers a read from its state machine on two conditions. It has committed an entry of its own term. And a
majority has answered a heartbeat of its term that was sent after the read came: then no later leader had committed
anything before. Each heartbeat has a number, its *round*. Reads that come while a round is unanswered wait together
for the next one."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_controller.raft.effects import ReadReady


@dataclass(frozen=True, slots=True)
class _Read:
    token: int
    round: int
    """The number of the heartbeat whose answers prove that the read may be answered."""


class ReadIndex:
    """The reads that wait at one leader for the proof that it still leads, in the order in which they came. Lives as
    long as the ``Raft`` object, and is cleared when leadership changes."""

    def __init__(self) -> None:
        self._last_token = 0
        self._waiting: list[_Read] = []

    @property
    def waiting(self) -> int:
        """Return the number of reads that wait for the proof."""
        return len(self._waiting)

    def new_token(self) -> int:
        """Return a new number that identifies a read until it is answered."""
        self._last_token += 1
        return self._last_token

    def wait_for(self, round: int, token: int) -> None:
        """Let the read ``token`` wait until a majority has answered the heartbeat ``round``."""
        self._waiting.append(_Read(token, round))

    def confirm(self, round: int) -> list[ReadReady]:
        """Remove the reads that may be answered now that a majority has answered the heartbeat ``round``, and return
        a ``ReadReady`` effect for each; an empty list if there are none."""
        ready = []
        while self._waiting and self._waiting[0].round <= round:
            ready.append(ReadReady(self._waiting.pop(0).token))
        return ready

    def clear(self) -> None:
        """Drop all reads that wait, since this server stopped leading or leads in a new term. They get no effect."""
        self._waiting.clear()
