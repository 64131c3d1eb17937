"""Counters of one replica server since its start. They are for the metrics; no rule of replication depends on
them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.sansio.counters import DURATIONS_S, Histogram, counter, histogram


@dataclass(slots=True)
class ReplicaCounts:
    """The counters that the node of one replica server increments; those of the shell are in ``FlushCounts``. The
    metrics page shows both, and they live as long as the process."""

    catch_ups: Histogram = histogram(
        "tidelog_follower_catch_up_seconds",
        "Follower catch-up time: from when a replica here left the ISR until it is in the ISR again, as the metadata"
        " that reach this server say.",
        DURATIONS_S,
    )
    commits: Histogram = histogram(
        "tidelog_commit_latency_seconds",
        "Commit latency: from the append of a produced batch at its leader here until it is committed.",
    )
    produced_batches: int = counter("tidelog_replica_produced_batches", "batches", "Batches taken from producers.")
    """A repeated batch is counted one time."""
    produced_records: int = counter(
        "tidelog_replica_produced_records", "records", "Records in the batches taken from producers."
    )
    produced_bytes: int = counter(
        "tidelog_replica_produced_bytes", "bytes", "Size of the batches taken from producers."
    )
    produce_refusals: dict[str, int] = counter(
        "tidelog_replica_produce_errors", "errors", "Batches answered with an error, by its code.", "code"
    )
    fetches: dict[str, int] = counter(
        "tidelog_replica_fetches", "fetches", "Fetches of followers that were served here.", "follower"
    )
    notices: dict[str, int] = counter(
        "tidelog_replica_notices",
        "notices",
        "Notices to idle followers, one for each partition that had something new.",
        "follower",
    )
    fetched_bytes: dict[str, int] = counter(
        "tidelog_replica_fetched_bytes",
        "bytes",
        "Bytes of batches sent to followers, with answers and notices.",
        "follower",
    )
    fetch_times: Histogram = histogram(
        "tidelog_replica_fetch_latency_seconds",
        "Fetch latency: from a fetch of this server until the leader's answer is here; leaders answer at once.",
    )
    replicated_batches: int = counter("tidelog_replica_replicated_batches", "batches", "Batches taken from leaders.")
    replicated_bytes: int = counter(
        "tidelog_replica_replicated_bytes", "bytes", "Size of the batches taken from leaders."
    )
    reads: int = counter("tidelog_replica_reads", "reads", "Reads of clients that were answered without an error.")
    read_bytes: int = counter("tidelog_replica_read_bytes", "bytes", "Bytes of batches sent with answers to reads.")
    retention_unread_records: int = counter(
        "tidelog_replica_retention_unread_records",
        "records",
        "Records that retention deleted although a group that it waits for had not read them: the wait was over.",
    )
    ended_transactions: dict[str, int] = counter(
        "tidelog_replica_ended_transactions",
        "transactions",
        "Transactions that ended here, committed or aborted.",
        "outcome",
        ("committed", "aborted"),
    )
    group_generations: int = counter(
        "tidelog_group_generations",
        "generations",
        "Generations begun: one whenever the assignment of some member changes. A rebalance takes one to a few.",
    )
    group_expelled: int = counter(
        "tidelog_group_expelled_members",
        "members",
        "Members removed: silent for their session timeout, or too slow to give partitions up.",
    )
    group_short_lived: int = counter(
        "tidelog_group_short_lived_members",
        "members",
        "Members that left or were removed within a minute after they joined, and had not moved a position forward.",
    )
    group_commits: int = counter(
        "tidelog_group_commits", "commits", "Commits taken, each of one or several positions."
    )
    group_commit_refusals: dict[str, int] = counter(
        "tidelog_group_commit_errors", "commits", "Commits refused by the coordinator, by the code.", "code"
    )


@dataclass(slots=True)
class FlushCounts:
    """The counters of the shell's threads that sync logs. The metrics page shows them."""

    flushes: Histogram = histogram(
        "tidelog_replica_flush_seconds",
        "Disk flush latency: the time to sync a log, together with the logs that were synced with it.",
    )
