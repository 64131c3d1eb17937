"""ReadIndex (dissertation §6.4): what was committed when a read was asked for, without writing to the log.

A leader answers a read from its state machine if it has committed an entry of its own term, and if after the read
came a majority has still answered a heartbeat of its term: then no later leader had committed anything before. Reads
that come while a heartbeat is unanswered wait together for the next one."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_controller.raft.base import RaftEffect, ReadReady
from tidelog_controller.raft.replication import RaftReplication


@dataclass(frozen=True, slots=True)
class _Read:
    token: int
    round: int
    """The heartbeat whose answers prove it."""


class RaftReads(RaftReplication):
    """Raft with linearizable reads (ReadIndex)."""

    _reads: list[_Read]
    _last_token = 0

    def read(self, now: float) -> tuple[int | None, list[RaftEffect]]:
        """A read begins. Its token: a ``ReadReady`` follows, or a ``RoleChanged`` that ends it; None when this server
        does not lead, or cannot know yet what is committed."""
        if self.role != "leader" or self.log.term_at(self.commit_index) != self.term:
            return None, []
        self._last_token += 1
        if self._others_needed() == 0:
            return self._last_token, [ReadReady(self._last_token)]
        idle = self._confirmed_round() >= self._round
        self._reads.append(_Read(self._last_token, self._round + 1))
        if idle:
            self._beat()
        return self._last_token, self._take_effects()

    def _confirm_reads(self) -> None:
        confirmed = self._confirmed_round()
        while self._reads and self._reads[0].round <= confirmed:
            self._effects.append(ReadReady(self._reads.pop(0).token))
        if self._reads and confirmed >= self._round:
            self._beat()
