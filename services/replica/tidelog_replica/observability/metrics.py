"""The metrics of a replica server: a table of what there is, and how it is read when they are scraped.

With ten thousand partitions there are no series for each: there are sums, the largest, and counts by state. Only of
followers that are out of sync the lag has a row each, of the ``LAGGARDS`` that lag most.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from tidelog.runtime.log_events import REPLICA, counted
from tidelog.runtime.metrics import Metric, MetricsPage, Sample, by_label
from tidelog.types import NodeId, TopicPartition

from tidelog_replica.node import ReplicaNode
from tidelog_replica.observability import group_metrics
from tidelog_replica.partition.lag import Lag, lag_of
from tidelog_replica.partition.leader import LeaderReplica
from tidelog_replica.shell import ReplicaShell
from tidelog_replica.storage.open_files import OpenFiles

LAGGARDS = 100
"""Most partitions whose lag has a row of its own."""

LAG = Metric(
    "tidelog_replication_lag_records",
    "gauge",
    "records",
    "Records that the follower lacks of the partitions led here, all together: replication lag. Of one that has not"
    " asked in this leader epoch only those that came since.",
    ("follower",),
)
LARGEST_LAG = Metric(
    "tidelog_replication_largest_lag_records", "gauge", "records", "The same of the worst partition.", ("follower",)
)
LAG_SECONDS = Metric(
    "tidelog_replication_lag_seconds",
    "gauge",
    "seconds",
    "How long ago the follower had everything of the worst partition led here; 0: it has everything of all.",
    ("follower",),
)
LAGGARD = Metric(
    "tidelog_partition_lag_records",
    "gauge",
    "records",
    f"Lag of followers that are not in sync, one by one; at most the {LAGGARDS} largest.",
    ("topic", "partition", "follower"),
)
CATCH_UPS = Metric(
    "tidelog_follower_catch_up_seconds",
    "histogram",
    "seconds",
    "From a replica's learning here that it is not in sync until it learns that it is again: follower catch-up time.",
)
CATCHING_UP = Metric("tidelog_catching_up_replicas", "gauge", "replicas", "Replicas here that are not in sync.")
COMMITS = Metric(
    "tidelog_commit_latency_seconds",
    "histogram",
    "seconds",
    "From the append of a produced batch at its leader here until it is committed: commit latency.",
)

REPLICAS = Metric(
    "tidelog_replica_partitions",
    "gauge",
    "partitions",
    "Partitions here by role. offline: they serve nobody; idle: no leader is known; opening: not open yet.",
    ("role",),
)
ISR_SIZES = Metric(
    "tidelog_replica_isr_size_partitions",
    "gauge",
    "partitions",
    "Partitions led here by how many replicas are in sync.",
    ("size",),
)
UNDER_REPLICATED = Metric(
    "tidelog_replica_under_replicated_partitions",
    "gauge",
    "partitions",
    "Partitions led here with a replica that is not in sync.",
)
UNDER_MINIMUM = Metric(
    "tidelog_replica_under_min_isr_partitions",
    "gauge",
    "partitions",
    "Partitions led here that refuse 'all' produces, since too few replicas are in sync.",
)
BATCHES_IN = Metric("tidelog_replica_produced_batches", "counter", "batches", "Batches taken from producers.")
RECORDS_IN = Metric("tidelog_replica_produced_records", "counter", "records", "Records in them.")
BYTES_IN = Metric("tidelog_replica_produced_bytes", "counter", "bytes", "Their size.")
REFUSALS = Metric(
    "tidelog_replica_produce_errors", "counter", "errors", "Batches answered with an error, by its code.", ("code",)
)
FETCHES = Metric(
    "tidelog_replica_fetches", "counter", "fetches", "Fetches of followers that were served here.", ("follower",)
)
NOTICES = Metric(
    "tidelog_replica_notices",
    "counter",
    "notices",
    "Notices to idle followers, one for each partition that had something new.",
    ("follower",),
)
FETCHED_BYTES = Metric(
    "tidelog_replica_fetched_bytes", "counter", "bytes", "Sent to followers, with answers and notices.", ("follower",)
)
FETCH_TIMES = Metric(
    "tidelog_replica_fetch_latency_seconds",
    "histogram",
    "seconds",
    "From a fetch of this server's until the leader's answer is here; leaders answer at once: fetch latency.",
)
BATCHES_COPIED = Metric("tidelog_replica_replicated_batches", "counter", "batches", "Batches taken from leaders.")
BYTES_COPIED = Metric("tidelog_replica_replicated_bytes", "counter", "bytes", "Their size.")
READS = Metric("tidelog_replica_reads", "counter", "reads", "Reads of clients that were answered without an error.")
BYTES_READ = Metric("tidelog_replica_read_bytes", "counter", "bytes", "Sent with these answers.")
FLUSHES = Metric(
    "tidelog_replica_flush_seconds",
    "histogram",
    "seconds",
    "Syncing a log, with those that were synced together with it: disk flush latency.",
)
WAITING_FLUSHES = Metric("tidelog_replica_waiting_flushes", "gauge", "logs", "Logs that wait to be synced.")
SEGMENTS = Metric("tidelog_replica_segments", "gauge", "segments", "Segments of all logs on the disk.")
LOG_BYTES = Metric("tidelog_replica_log_bytes", "gauge", "bytes", "Their size, without indexes.")
TRANSACTIONS = Metric(
    "tidelog_replica_transactions",
    "gauge",
    "transactions",
    "Transactions coordinated here that are not at their end, by state. prepared: staged, and not committed yet;"
    " committing, aborting: leaders have yet to hear of it.",
    ("state",),
)
OLDEST_TRANSACTION = Metric(
    "tidelog_replica_oldest_transaction_seconds",
    "gauge",
    "seconds",
    "For how long the oldest of them has been in that state: so long readers of what is committed have been held up.",
    ("state",),
)
ENDED_TRANSACTIONS = Metric(
    "tidelog_replica_ended_transactions",
    "counter",
    "transactions",
    "Transactions that came to their end here, committed or aborted.",
    ("outcome",),
)
STABLE_AGE = Metric(
    "tidelog_replica_stable_offset_age_seconds",
    "gauge",
    "seconds",
    "For how long the last stable offset has stood below the high watermark, of the worst partition led here: so long"
    " readers of what is committed have waited for one transaction. 0: nobody waits.",
)
FREE_BYTES = Metric(
    "tidelog_replica_disk_free_bytes", "gauge", "bytes", "Free room on the disk of the data; 0 without a reserve."
)
FULL = Metric("tidelog_replica_disk_full", "gauge", "boolean", "1: the disk is full, and no records are taken.")
OPEN_FILES = Metric("tidelog_replica_open_files", "gauge", "files", "Descriptors that the logs hold.")
REPAIRING = Metric("tidelog_replica_damaged_partitions", "gauge", "partitions", "Damaged logs, yet to be repaired.")
QUARANTINED = Metric(
    "tidelog_replica_quarantined_segments", "counter", "segments", "Damaged segments that were set aside."
)
UNREADABLE = Metric(
    "tidelog_replica_unreadable_batches",
    "gauge",
    "batches",
    "Batches that no reader can decode though they are whole, as of the last scrub of each segment.",
)
DIFFERING = Metric(
    "tidelog_replica_differing_partitions",
    "gauge",
    "partitions",
    "Partitions with a copy here whose copies differed when they were compared last.",
)
LAPSED = Metric(
    "tidelog_replica_session_lapsed_seconds",
    "gauge",
    "seconds",
    "Time since the session of this server ended because no controller answered. Its leaders go on while the replicas"
    " that could be elected confirm them. 0: there is a session.",
)
UNCONFIRMED = Metric(
    "tidelog_replica_unconfirmed_partitions",
    "gauge",
    "partitions",
    "Partitions led here that refused clients at the last request: no controller answers, and not all replicas that"
    " could be elected confirm the leader.",
)
REGISTERED = Metric("tidelog_replica_registered", "gauge", "boolean", "1: registered at the controllers.")
CONNECTIONS = Metric(
    "tidelog_replica_connections",
    "gauge",
    "connections",
    "Accepted connections, by the peer's role and name.",
    ("role", "peer"),
)
PATIENCE = Metric(
    "tidelog_replica_peer_patience_seconds",
    "gauge",
    "seconds",
    "For how long another replica server may be silent before the partitions that it leads are reported: it follows"
    " how fast that server has answered.",
    ("peer",),
)
EVENTS = Metric("tidelog_replica_events", "counter", "events", "Lines of its log, by event.", ("event",))

METRICS = (
    *(LAG, LARGEST_LAG, LAG_SECONDS, LAGGARD, CATCH_UPS, CATCHING_UP, COMMITS, REPLICAS, ISR_SIZES),
    *(UNDER_REPLICATED, UNDER_MINIMUM, BATCHES_IN, RECORDS_IN, BYTES_IN, REFUSALS, FETCHES, NOTICES, FETCHED_BYTES),
    *(
        FETCH_TIMES,
        BATCHES_COPIED,
        BYTES_COPIED,
        READS,
        BYTES_READ,
        FLUSHES,
        WAITING_FLUSHES,
        PATIENCE,
        SEGMENTS,
        LOG_BYTES,
        OPEN_FILES,
    ),
    *(TRANSACTIONS, OLDEST_TRANSACTION, ENDED_TRANSACTIONS, STABLE_AGE),
    *(FREE_BYTES, FULL, REPAIRING, QUARANTINED, UNREADABLE, DIFFERING, REGISTERED, LAPSED, UNCONFIRMED),
    *(CONNECTIONS, EVENTS),
    *group_metrics.METRICS,
)


def metrics_page(shell: ReplicaShell, files: OpenFiles | None) -> MetricsPage:
    """The page of one replica server. ``files``: what bounds its descriptors, if something does."""
    far = group_metrics.FarEnds(shell.peers.start_call)
    return MetricsPage(METRICS, lambda: _collect(shell, files, far))


def _collect(shell: ReplicaShell, files: OpenFiles | None, far: group_metrics.FarEnds) -> Iterator[Sample]:
    node, assignment = shell.node, shell.node.assignment
    counts = assignment.counts
    led = _Led(node, shell.now())
    yield from led.samples()
    yield CATCH_UPS, (), counts.catch_ups
    yield CATCHING_UP, (), len(assignment.catching_up)
    yield COMMITS, (), counts.commits
    yield BATCHES_IN, (), counts.produced_batches
    yield RECORDS_IN, (), counts.produced_records
    yield BYTES_IN, (), counts.produced_bytes
    yield from by_label(REFUSALS, counts.produce_refusals)
    yield from by_label(FETCHES, counts.fetches)
    yield from by_label(NOTICES, counts.notices)
    yield from by_label(FETCHED_BYTES, counts.fetched_bytes)
    yield FETCH_TIMES, (), counts.fetch_times
    yield BATCHES_COPIED, (), counts.replicated_batches
    yield BYTES_COPIED, (), counts.replicated_bytes
    yield READS, (), counts.reads
    yield BYTES_READ, (), counts.read_bytes
    yield FLUSHES, (), shell.flush_times
    yield WAITING_FLUSHES, (), shell.flushes_waiting
    if files is not None:
        yield OPEN_FILES, (), files.opened
    ages = node.transactions.ages()
    yield from by_label(TRANSACTIONS, {state: len(of_state) for state, of_state in ages.items()})
    yield from by_label(OLDEST_TRANSACTION, {state: max(of_state, default=0.0) for state, of_state in ages.items()})
    yield from by_label(ENDED_TRANSACTIONS, node.transactions.ended)
    yield FREE_BYTES, (), node.disk_space.free_bytes
    yield FULL, (), node.disk_space.is_full
    yield REPAIRING, (), len(assignment.log_repairer)
    yield QUARANTINED, (), counts.events.get("segment_quarantined", 0)
    yield UNREADABLE, (), node.scrubber.unreadable()[0]
    yield DIFFERING, (), len(node.copy_checks.differing())
    yield REGISTERED, (), node.broker_epoch >= 0
    yield LAPSED, (), node.leadership.lapsed_s(shell.now())
    yield UNCONFIRMED, (), node.leadership.refused(shell.now())
    yield from by_label(PATIENCE, shell.peers.patience_s())
    for peer, count in Counter((link.peer.role, link.peer.node) for link in shell.links).items():
        yield CONNECTIONS, peer, count
    yield from by_label(EVENTS, counted(REPLICA, Counter(counts.events) + Counter(shell.events)))
    yield from group_metrics.samples(node, far)


class _Led:
    """One look at all partitions."""

    def __init__(self, node: ReplicaNode, now: float) -> None:
        self._node = node
        self._now = now
        assignment = node.assignment
        self._roles = dict.fromkeys(("leader", "follower", "idle"), 0)
        self._roles["offline"] = assignment.offline
        self._roles["opening"] = assignment.unopened
        self._isr_sizes: dict[int, int] = {}
        self._under_replicated = self._under_minimum = self._segments = self._bytes = 0
        self._stable_age_s = 0.0
        self._lags: dict[NodeId, Lag] = {}
        self._out_of_sync: list[tuple[int, TopicPartition, NodeId]] = []
        for key, partition in node.partitions.items():
            role, leading = partition.role, partition.leading
            known = "idle" if role is None else "follower" if leading is None else "leader"
            self._roles["offline" if partition.offline is not None else known] += 1
            count, size = partition.log.segments.count_and_bytes()
            self._segments += count
            self._bytes += size
            if leading is not None:
                self._look_at(key, leading, partition.log.end)

    def _look_at(self, key: TopicPartition, leading: LeaderReplica, end: int) -> None:
        core = leading.core
        self._stable_age_s = max(self._stable_age_s, leading.reading.standing.age_s(self._now))
        size = len(core.isr)
        self._isr_sizes[size] = self._isr_sizes.get(size, 0) + 1
        self._under_replicated += size < len(core.replicas)
        self._under_minimum += not core.has_quorum
        for node, progress in core.followers.items():
            lag, seconds = lag_of(core, progress, end, self._now)
            self._lags.setdefault(node, Lag()).add(lag, seconds)
            if node not in core.isr:
                self._out_of_sync.append((lag, key, node))

    def samples(self) -> Iterator[Sample]:
        """What was seen."""
        for node, all_of_it in self._lags.items():
            yield LAG, (node,), all_of_it.records
            yield LARGEST_LAG, (node,), all_of_it.largest
            yield LAG_SECONDS, (node,), all_of_it.seconds
        for lag, key, follower in heapq.nlargest(LAGGARDS, self._out_of_sync):
            yield LAGGARD, (self._node.assignment.topic_name(key.topic_id), str(key.partition), follower), lag
        yield from by_label(REPLICAS, self._roles)
        for size, partitions in sorted(self._isr_sizes.items()):
            yield ISR_SIZES, (str(size),), partitions
        yield STABLE_AGE, (), self._stable_age_s
        yield UNDER_REPLICATED, (), self._under_replicated
        yield UNDER_MINIMUM, (), self._under_minimum
        yield SEGMENTS, (), self._segments
        yield LOG_BYTES, (), self._bytes
