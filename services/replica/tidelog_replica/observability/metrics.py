"""The metrics of a replica server: a table of them, and how their values are computed when the page is requested.

``counters.py`` declares the counters. With ten thousand partitions there are no series for each partition: there are
sums, the largest value, and counts by state. Only followers that are out of sync have series of their own: those of
the ``LAGGARDS`` largest lags.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence

from tidelog.net.tls import TlsFiles
from tidelog.runtime.log_events import REPLICA, counted
from tidelog.runtime.metrics import MetricsPage, RecentMetrics
from tidelog.sansio.counters import Metric, Sample, by_label, metrics_of, samples
from tidelog.sansio.recent_sums import WINDOW_S
from tidelog.types import NodeId, TopicPartition

from tidelog_replica.counters import FlushCounts, ReplicaCounts
from tidelog_replica.node import ReplicaNode
from tidelog_replica.observability import group_metrics
from tidelog_replica.partition.lag import Lag, lag_of
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.shell import ReplicaShell
from tidelog_replica.storage.open_files import OpenFiles

LAGGARDS = 100
"""Most followers out of sync that have a series of their own."""

LAG = Metric(
    "tidelog_replication_lag_records",
    "gauge",
    "records",
    "Replication lag: records that the follower lacks, in all partitions led here together. Where it has not fetched"
    " in the present leader epoch, only the records appended in that epoch count.",
    ("follower",),
)
LARGEST_LAG = Metric(
    "tidelog_replication_largest_lag_records",
    "gauge",
    "records",
    "Largest lag of the follower in one partition.",
    ("follower",),
)
LAG_SECONDS = Metric(
    "tidelog_replication_lag_seconds",
    "gauge",
    "seconds",
    "For how long the follower has lacked records, in the worst partition led here; 0: it lacks none anywhere.",
    ("follower",),
)
LAGGARD = Metric(
    "tidelog_partition_lag_records",
    "gauge",
    "records",
    f"Lag of each follower that is not in sync, by partition; at most the {LAGGARDS} largest.",
    ("topic", "partition", "follower"),
)
CATCHING_UP = Metric("tidelog_catching_up_replicas", "gauge", "replicas", "Replicas here that are not in sync.")

REPLICAS = Metric(
    "tidelog_replica_partitions",
    "gauge",
    "partitions",
    "Partitions here by role. offline: they serve no requests; idle: no leader is known; opening: not open yet.",
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
    "Partitions led here that refuse batches with acks 'all', since too few replicas are in sync.",
)
WAITING_FLUSHES = Metric("tidelog_replica_waiting_flushes", "gauge", "logs", "Logs that wait to be synced.")
RECENT_FLUSH = Metric(
    "tidelog_replica_recent_flush_seconds",
    "gauge",
    "seconds",
    f"How long the syncs of the last {WINDOW_S:.0f} seconds took on average; one under way counts if it has taken"
    " longer. 0: there was none.",
)
LATE = Metric(
    "tidelog_replica_late_ratio",
    "gauge",
    "ratio",
    f"Share of the last {WINDOW_S:.0f} seconds in which work of the server was due and had to wait, because the"
    " process did not run or was busy.",
)
SEGMENTS = Metric("tidelog_replica_segments", "gauge", "segments", "Segments of all logs on the disk.")
LOG_BYTES = Metric("tidelog_replica_log_bytes", "gauge", "bytes", "Size of all segments, without indexes.")
TRANSACTIONS = Metric(
    "tidelog_replica_transactions",
    "gauge",
    "transactions",
    "Transactions coordinated here that have not ended, by state. prepared: staged, and not committed yet;"
    " committing, aborting: decided, but some leaders do not have the marker yet.",
    ("state",),
)
STREAMS = Metric("tidelog_replica_streams", "gauge", "streams", "Streams coordinated here.")
OLDEST_TRANSACTION = Metric(
    "tidelog_replica_oldest_transaction_seconds",
    "gauge",
    "seconds",
    "For how long the oldest transaction has been in that state, and readers of committed records have waited.",
    ("state",),
)
STABLE_AGE = Metric(
    "tidelog_replica_stable_offset_age_seconds",
    "gauge",
    "seconds",
    "For how long the last stable offset has stood below the high watermark, in the worst partition led here: for so"
    " long readers of committed records have waited for one transaction. 0: no reader waits.",
)
WAIT_BYTES = Metric(
    "tidelog_partition_retention_wait_bytes",
    "gauge",
    "bytes",
    "Bytes that retention would delete and keeps for the group, the slowest one that it waits for, as of the last"
    f" check; of partitions led here, the {LAGGARDS} largest.",
    ("topic", "partition", "group"),
)
WAIT_SHARE = Metric(
    "tidelog_partition_retention_wait_ratio",
    "gauge",
    "ratio",
    "Share of its bound (retention_waits_max_ms or retention_waits_max_bytes) that such a wait has used; at 1"
    " retention deletes what the group has not read.",
    ("topic", "partition", "group"),
)
FREE_BYTES = Metric(
    "tidelog_replica_disk_free_bytes", "gauge", "bytes", "Free space on the disk of the data; 0 without a reserve."
)
DISK_BYTES = Metric(
    "tidelog_replica_disk_size_bytes", "gauge", "bytes", "Size of the disk of the data; 0 without a reserve."
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
    "Whole batches that no reader can decode, as of the last scrub of each segment.",
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
UNREACHABLE = Metric(
    "tidelog_replica_peer_unreachable_seconds",
    "gauge",
    "seconds",
    "For how long this server has tried to connect to another replica server without success; absent: it does not"
    " try, or is connected. tidelog_replica_connections of the role replica shows who reaches this server.",
    ("peer",),
)
EVENTS = Metric("tidelog_replica_events", "counter", "events", "Lines of its log, by event.", ("event",))

METRICS = (
    *(LAG, LARGEST_LAG, LAG_SECONDS, LAGGARD),
    *metrics_of(ReplicaCounts, "catch_ups"),
    CATCHING_UP,
    *metrics_of(ReplicaCounts, "commits"),
    *(REPLICAS, ISR_SIZES, UNDER_REPLICATED, UNDER_MINIMUM),
    *metrics_of(ReplicaCounts, "produced_batches", "read_bytes"),
    *metrics_of(FlushCounts),
    *(RECENT_FLUSH, WAITING_FLUSHES, LATE, PATIENCE, UNREACHABLE, SEGMENTS, LOG_BYTES, OPEN_FILES),
    *(TRANSACTIONS, OLDEST_TRANSACTION, STREAMS),
    *metrics_of(ReplicaCounts, "ended_transactions"),
    STABLE_AGE,
    *(WAIT_BYTES, WAIT_SHARE),
    *metrics_of(ReplicaCounts, "retention_unread_records"),
    *(FREE_BYTES, DISK_BYTES, FULL, REPAIRING, QUARANTINED, UNREADABLE, DIFFERING),
    *(REGISTERED, LAPSED, UNCONFIRMED),
    *(CONNECTIONS, EVENTS),
    *group_metrics.METRICS,
)
"""All metrics of the page, in its order."""


def metrics_page(shell: ReplicaShell, files: OpenFiles | None, tls: TlsFiles | None) -> MetricsPage:
    """Return the metrics page of one replica server, which collects its values anew for every request. ``files`` is
    the pool that bounds the open files; with None the number of open files is not shown. ``tls``: its TLS
    files; None: it uses no TLS."""
    far = group_metrics.FarEnds(shell.peers.start_call)
    return MetricsPage(METRICS, lambda: _collect(shell, files, far), tls)


def recent_metrics(shell: ReplicaShell) -> RecentMetrics:
    """Return the times of commits, fetches and flushes of the last seconds, for ``tidelog why slow``."""

    def collect() -> Iterator[Sample]:
        yield from samples(shell.node.assignment.counts, "commits", "fetch_times")
        yield from samples(shell.counts, "flushes")

    return RecentMetrics(collect, shell.now)


def _collect(shell: ReplicaShell, files: OpenFiles | None, far: group_metrics.FarEnds) -> Iterator[Sample]:
    """Yield the samples of all metrics of the page, from the present state of the server. Also sends requests to
    other servers for high watermarks, which the next page shows."""
    node, assignment = shell.node, shell.node.assignment
    counts = assignment.counts
    led = _Led(node, shell.now())
    yield from led.samples()
    yield from samples(counts)
    yield from samples(shell.counts)
    yield CATCHING_UP, (), len(assignment.catching_up)
    yield RECENT_FLUSH, (), shell.recent_flush_s()
    yield WAITING_FLUSHES, (), shell.flushes_waiting
    yield LATE, (), shell.late_ratio()
    if files is not None:
        yield OPEN_FILES, (), files.opened
    ages = node.transactions.ages()
    yield from by_label(TRANSACTIONS, {state: len(of_state) for state, of_state in ages.items()})
    yield from by_label(OLDEST_TRANSACTION, {state: max(of_state, default=0.0) for state, of_state in ages.items()})
    yield STREAMS, (), sum(len(core.streams) for core in node.streams.cores)
    yield from _wait_samples(node)
    yield FREE_BYTES, (), node.disk_space.free_bytes
    yield DISK_BYTES, (), node.disk_space.size_bytes
    yield FULL, (), node.disk_space.is_full
    yield REPAIRING, (), len(assignment.log_repairer)
    yield QUARANTINED, (), shell.log.counts.get("segment_quarantined", 0)
    yield UNREADABLE, (), node.scrubber.unreadable()[0]
    yield DIFFERING, (), len(node.copy_checks.differing())
    yield REGISTERED, (), node.broker_epoch >= 0
    yield LAPSED, (), node.leadership.lapsed_s(shell.now())
    yield UNCONFIRMED, (), node.leadership.refused(shell.now())
    yield from by_label(PATIENCE, shell.peers.patience_s())
    yield from by_label(UNREACHABLE, shell.peers.unreachable_s())
    for peer, count in Counter((link.peer.role, link.peer.node) for link in shell.links).items():
        yield CONNECTIONS, peer, count
    yield from by_label(EVENTS, counted(REPLICA, shell.log.counts))
    yield from group_metrics.group_samples(node, far, node.wall_ms())


def _wait_samples(node: ReplicaNode) -> Iterator[Sample]:
    """Yield what retention that waits for consumer groups keeps of the partitions led here: the ``LAGGARDS`` waits
    that keep most."""
    waits = node.retention_waits.waits.items()
    for key, wait in heapq.nlargest(LAGGARDS, waits, key=lambda one: one[1].result.held_bytes):
        labels = (node.assignment.topic_name(key.topic_id), str(key.partition), wait.slowest.group)
        yield WAIT_BYTES, labels, wait.result.held_bytes
        yield WAIT_SHARE, labels, wait.result.share


class _Led:
    """Sums and counts over all open partitions of the server, made for one request of the metrics page from the state
    of ``node`` at ``now``."""

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
                self._add_led(key, leading, partition.log.end)

    def _add_led(self, key: TopicPartition, leading: LeaderReplica, end: int) -> None:
        """Add a partition that this server leads to the sums: its ISR size, the lags of its followers, and the age of
        its last stable offset. ``end`` is its log end offset."""
        core = leading.core
        self._stable_age_s = max(self._stable_age_s, leading.reading.last_stable_offset_age.age_s(self._now))
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
        """Yield the samples of the metrics about partitions, lags and logs, from the sums that were made."""
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


# --- health ------------------------------------------------------------------------------------------


def reasons_not_ready(shell: ReplicaShell) -> Sequence[str]:
    """Return why this replica server is not ready, for ``/health`` (``tidelog.runtime.health``): one text for each
    reason. An empty list if the server is registered at the active controller, all its logs are open, and it may be
    given leadership."""
    node, node_id = shell.node, shell.node_id
    reasons = []
    if shell.is_draining:
        reasons.append(f"{node_id} is ending")
    if shell.controllers.link is None:
        reasons.append("there is no link to the active controller")
    if node.broker_epoch < 0:
        reasons.append(f"{node_id} is not registered at the controllers")
    if node.assignment.unopened:
        reasons.append(f"{node.assignment.unopened} logs are being opened")
    if shell.drained:
        reasons.append(f"{node_id} is drained: tidelog servers resume {node_id} ends that")
    return reasons
