"""Counters of one controller since its start. They are for the metrics; no decision depends on them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.sansio.counters import Histogram, count, counter, histogram

from tidelog_controller.metadata.state import Applied


@dataclass(slots=True)
class ControllerCounts:
    """The counters of one controller since its process began. The counters of elections, lost leaders, changes of
    ISRs and fences count only what happened while this controller was active."""

    elections: dict[str, int] = counter(
        "tidelog_elections", "elections", "Leaders of partitions elected, by cause: election frequency.", "cause"
    )
    offline: int = counter("tidelog_lost_leaders", "partitions", "Times that a partition was left leaderless.")
    isr_changes: dict[str, int] = counter(
        "tidelog_isr_changes",
        "changes",
        "In-sync sets that shrank or grew under their leader. What an election takes out is not counted.",
        "event",
    )
    fences: int = counter("tidelog_fences", "sessions", "Sessions of replica servers that ended: servers fenced.")
    activations: int = counter("tidelog_controller_activations", "times", "How often it became the active one.")
    snapshots: int = counter("tidelog_raft_snapshots", "snapshots", "Snapshots taken here.")
    snapshots_installed: int = counter(
        "tidelog_raft_installed_snapshots", "snapshots", "Snapshots taken over from another controller."
    )
    raft_elections: int = counter(
        "tidelog_raft_elections", "elections", "How often it stood for leader of the controllers."
    )
    proposals: int = counter("tidelog_raft_proposals", "commands", "Commands that it proposed as leader.")
    commits: Histogram = histogram(
        "tidelog_raft_commit_latency_seconds", "Time from proposing a command until it was applied here."
    )
    requests: dict[str, int] = counter("tidelog_controller_requests", "requests", "Requests that came, by op.", "op")
    refused: dict[str, int] = counter(
        "tidelog_controller_refused_requests",
        "requests",
        "Requests that it refused as the active controller, by error code.",
        "code",
    )

    def on_applied(self, applied: Applied) -> None:
        """Count the elections of leaders, the losses of leaders and the changes of ISRs that an applied command has
        made. Called only on the active controller."""
        for _, entry in applied.changes:
            if entry.event == "leader_elected":
                count(self.elections, entry.cause)
            elif entry.event == "offline":
                self.offline += 1
            elif entry.event in ("isr_shrunk", "isr_expanded"):
                count(self.isr_changes, entry.event)


@dataclass(slots=True)
class PersistCounts:
    """The durations of the transactions that make Raft's changes durable, since the process began."""

    persists: Histogram = histogram("tidelog_raft_persist_seconds", "One transaction of the store, with its sync.")
