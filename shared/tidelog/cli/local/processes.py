"""A process of a cluster on this machine: its entry in ``cluster.json``, and its state."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.prefork import stat


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the cluster, as stored in ``cluster.json``."""

    role: str
    id: str
    pid: int
    url: str
    log: str
    started: int = 0

    def is_alive(self) -> bool:
        """Whether it runs and is the process that this cluster started."""
        state, started = stat(self.pid)
        return started == self.started and state not in ("Z", "X")

    def is_going(self) -> bool:
        """Whether it runs and is not paused."""
        return self.is_alive() and stat(self.pid)[0] != "T"

    def is_there(self) -> bool:
        """Whether it runs or is ending: while threads of it are left it holds its ports and locks."""
        return stat(self.pid)[1] == self.started
