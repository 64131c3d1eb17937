"""What one controller has done since it started, for its metrics; no rule goes by any of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.sansio.counters import LATENCIES_S, Histogram, count

from tidelog_controller.metadata.state import Applied


def _latencies() -> Histogram:
    return Histogram(LATENCIES_S)


@dataclass(slots=True)
class Counts:
    """Counters of one controller since it started, for its metrics."""

    elections: dict[str, int] = field(default_factory=dict)
    """Leaders of partitions that were elected while this controller was active, by cause."""
    offline: int = 0
    """How often a partition was left without a leader meanwhile."""
    isr_changes: dict[str, int] = field(default_factory=dict)
    """``isr_shrunk``, ``isr_expanded``, meanwhile."""
    fences: int = 0
    """Sessions of replica servers that ended, meanwhile."""
    activations: int = 0
    """How often this controller became the active one."""
    proposals: int = 0
    commits: Histogram = field(default_factory=_latencies)
    """Seconds from a proposal of this controller until it was applied here."""
    requests: dict[str, int] = field(default_factory=dict)
    """By op."""
    refused: dict[str, int] = field(default_factory=dict)
    """By error code, while this controller was active."""
    raft_elections: int = 0
    """How often this controller stood for leader of the controllers."""
    snapshots: int = 0
    """Taken by this controller."""
    snapshots_installed: int = 0
    """Taken over from another one."""

    def on_applied(self, applied: Applied) -> None:
        """The active controller has applied a command."""
        for _, entry in applied.changes:
            if entry.event == "leader_elected":
                count(self.elections, entry.cause)
            elif entry.event == "offline":
                self.offline += 1
            elif entry.event in ("isr_shrunk", "isr_expanded"):
                count(self.isr_changes, entry.event)
