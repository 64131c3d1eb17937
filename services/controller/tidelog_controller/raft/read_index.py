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
    """The heartbeat whose answers prove the read."""


class ReadIndex:
    """The reads of one leader that wait for the proof that it still leads."""

    def __init__(self) -> None:
        self._last_token = 0
        self._waiting: list[_Read] = []

    @property
    def waiting(self) -> int:
        """How many reads wait."""
        return len(self._waiting)

    def new_token(self) -> int:
        """Return the token of a new read."""
        self._last_token += 1
        return self._last_token

    def wait_for(self, round: int, token: int) -> None:
        """Let a read wait until a majority has answered the heartbeat ``round``."""
        self._waiting.append(_Read(token, round))

    def confirm(self, round: int) -> list[ReadReady]:
        """Return the reads that are proved now that a majority has answered the heartbeat ``round``."""
        ready = []
        while self._waiting and self._waiting[0].round <= round:
            ready.append(ReadReady(self._waiting.pop(0).token))
        return ready

    def clear(self) -> None:
        """Drop all reads: this server leads no longer, or in a new term."""
        self._waiting.clear()
