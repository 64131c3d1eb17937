"""What one replica server has done since it started, for its metrics; no rule goes by any of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.sansio.counters import DURATIONS_S, LATENCIES_S, Histogram


def _latencies() -> Histogram:
    return Histogram(LATENCIES_S)


def _durations() -> Histogram:
    return Histogram(DURATIONS_S)


@dataclass(slots=True)
class Counts:
    """Times are seconds. "Led", "followed": of partitions led, followed here."""

    produced_batches: int = 0
    """Taken by leaders here; a repeated batch is not taken again."""
    produced_records: int = 0
    produced_bytes: int = 0
    produce_refusals: dict[str, int] = field(default_factory=dict)
    """Batches that were answered with an error, by its code."""
    commits: Histogram = field(default_factory=_latencies)
    """From a batch's being taken until it is committed, led."""
    fetches: dict[str, int] = field(default_factory=dict)
    """Of followers, served; by follower."""
    notices: dict[str, int] = field(default_factory=dict)
    """To idle followers, one for each partition that had something new; by follower."""
    fetched_bytes: dict[str, int] = field(default_factory=dict)
    """Sent with the answers to fetches, and with notices; by follower."""
    fetch_times: Histogram = field(default_factory=_latencies)
    """From a fetch of this server's until its answer has come."""
    replicated_batches: int = 0
    """Taken from leaders, followed."""
    replicated_bytes: int = 0
    catch_ups: Histogram = field(default_factory=_durations)
    """From a replica's learning that it is not in sync until it learns that it is, followed."""
    reads: int = 0
    """Of clients, answered without an error."""
    read_bytes: int = 0
    events: dict[str, int] = field(default_factory=dict)
    """Lines of the log, by name."""
    group_generations: int = 0
    """Begun, of consumer groups coordinated here."""
    group_expelled: int = 0
    """Their members that were put out."""
    group_commits: int = 0
    """Taken."""
    group_commit_refusals: dict[str, int] = field(default_factory=dict)
    """Commits answered with an error, by its code."""
