"""The metrics of a controller: a table of them, and how their values are computed when the page is requested.

``counters.py`` declares the counters. Gauges of the cluster as a whole are shown by the active controller alone, so
that a sum over all controllers is right. Counters of the cluster stay at the controller that counted them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from tidelog.net.tls import TlsFiles
from tidelog.runtime.log_events import CONTROLLER, counted
from tidelog.runtime.metrics import MetricsPage
from tidelog.sansio.counters import Metric, Sample, by_label, metrics_of, samples
from tidelog.types import NodeId

from tidelog_controller.controller import Controller
from tidelog_controller.counters import ControllerCounts, PersistCounts
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.raft.effects import Role
from tidelog_controller.shell import ControllerShell

LEADERS = Metric(
    "tidelog_partition_leaders",
    "gauge",
    "partitions",
    "Partitions led by the replica server: leader distribution.",
    ("server",),
)
REPLICAS = Metric("tidelog_partition_replicas", "gauge", "replicas", "Replicas placed on the server.", ("server",))
NOT_PREFERRED = Metric(
    "tidelog_not_preferred_partitions", "gauge", "partitions", "Partitions led by another than the preferred replica."
)
TOPICS = Metric("tidelog_topics", "gauge", "topics", "Topics.")
PARTITIONS = Metric("tidelog_partitions", "gauge", "partitions", "Partitions of all topics.")
OFFLINE = Metric("tidelog_offline_partitions", "gauge", "partitions", "Partitions without a leader.")
UNDER_REPLICATED = Metric(
    "tidelog_under_replicated_partitions", "gauge", "partitions", "Partitions with a replica that is not in sync."
)
UNDER_MINIMUM = Metric(
    "tidelog_under_min_isr_partitions",
    "gauge",
    "partitions",
    "Partitions with fewer replicas in sync than min_insync_replicas: 'all' produces are refused.",
)
REASSIGNING = Metric(
    "tidelog_reassigning_partitions", "gauge", "partitions", "Partitions with a reassignment in progress."
)
PAUSED = Metric("tidelog_paused_partitions", "gauge", "partitions", "Partitions that are paused.")
READ_ONLY = Metric("tidelog_read_only_partitions", "gauge", "partitions", "Partitions that take no records.")
SERVERS = Metric(
    "tidelog_servers", "gauge", "servers", "Replica servers: live, draining (live too), fenced.", ("state",)
)

ACTIVE = Metric("tidelog_controller_active", "gauge", "boolean", "1: this is the active controller.")
ROLE = Metric("tidelog_raft_role", "gauge", "boolean", "1 for the role that it has among the controllers.", ("role",))
ROLLED_BACK = Metric(
    "tidelog_raft_rolled_back",
    "gauge",
    "boolean",
    "1: its disk is an old copy, and it does not vote until the active controller has refilled it.",
)
TERM = Metric("tidelog_raft_term", "gauge", "number", "Raft's term.")
COMMITTED = Metric("tidelog_raft_commit_index", "gauge", "index", "Last entry that is known to be committed.")
APPLIED = Metric("tidelog_raft_applied_index", "gauge", "index", "Last entry that the metadata contain.")
LOG_ENTRIES = Metric(
    "tidelog_raft_log_entries", "gauge", "entries", "Entries of the log that are not compacted away."
)
LOG_BYTES = Metric("tidelog_raft_log_bytes", "gauge", "bytes", "Size of the commands in these entries.")
SNAPSHOT_BYTES = Metric("tidelog_raft_snapshot_bytes", "gauge", "bytes", "Size of the last snapshot.")
WAITING = Metric(
    "tidelog_controller_waiting_requests",
    "gauge",
    "requests",
    "Requests that wait for a majority of the controllers.",
)
INPUTS = Metric("tidelog_controller_waiting_inputs", "gauge", "inputs", "Messages that it has not handled yet.")
CONNECTIONS = Metric(
    "tidelog_controller_connections", "gauge", "connections", "Accepted connections, by the peer's role.", ("role",)
)
WATCHERS = Metric("tidelog_controller_watchers", "gauge", "connections", "Connections that watch the metadata.")
EVENTS = Metric("tidelog_controller_events", "counter", "events", "Lines of its log, by event.", ("event",))

SERVER_LAG = Metric(
    "tidelog_server_lag_seconds",
    "gauge",
    "seconds",
    "How long ago the replica server had everything of the worst partition, as leaders last reported.",
    ("server",),
)
SLOW = Metric(
    "tidelog_slow_servers",
    "gauge",
    "servers",
    "Replica servers that are chosen last as leaders and for replicas: most replication with their peers lags.",
)

METRICS = (
    *(LEADERS, REPLICAS, NOT_PREFERRED),
    *metrics_of(ControllerCounts, "elections", "fences"),
    *(TOPICS, PARTITIONS, OFFLINE, UNDER_REPLICATED, UNDER_MINIMUM, REASSIGNING, PAUSED, READ_ONLY, SERVERS),
    *(SERVER_LAG, SLOW),
    ACTIVE,
    *metrics_of(ControllerCounts, "activations"),
    *(ROLE, ROLLED_BACK, TERM, COMMITTED, APPLIED, LOG_ENTRIES, LOG_BYTES, SNAPSHOT_BYTES),
    *metrics_of(ControllerCounts, "snapshots", "commits"),
    *metrics_of(PersistCounts),
    *metrics_of(ControllerCounts, "requests", "refused"),
    *(WAITING, INPUTS, CONNECTIONS, WATCHERS, EVENTS),
)


def metrics_page(shell: ControllerShell, tls: TlsFiles | None) -> MetricsPage:
    """Return the page of metrics of one controller. The values are computed anew each time the page is requested.
    ``tls``: its TLS files; None: it uses no TLS."""
    return MetricsPage(METRICS, lambda: _collect(shell), tls)


def _collect(shell: ControllerShell) -> Iterator[Sample]:
    """Yield the present value of each metric of one controller; those of the cluster only if it is active."""
    core = shell.core
    yield from samples(core.counts)
    yield from samples(shell.counts)
    if core.active:
        yield from _cluster(core.state)
        yield from by_label(SERVER_LAG, core.slow_servers.worst(core.state, shell.now()))
        yield SLOW, (), len(core.slow_servers.slow(shell.now()))
    yield ACTIVE, (), core.active
    yield from _raft(shell)
    yield WAITING, (), core.metadata_log.waiting
    yield INPUTS, (), shell.inputs_waiting
    roles = {"controller": 0, "replica": 0, "gateway": 0, "client": 0}
    for link in shell.links:
        roles[link.peer.role] += 1
    yield from by_label(CONNECTIONS, roles)
    yield WATCHERS, (), core.watcher_count
    yield from by_label(EVENTS, counted(CONTROLLER, shell.log.counts))


def _raft(shell: ControllerShell) -> Iterator[Sample]:
    """Yield the values of the metrics of Raft: role, term, indexes, and the sizes of log and snapshot."""
    raft = shell.core.metadata_log.raft
    for role in get_args(Role):
        yield ROLE, (role,), raft.role == role
    yield ROLLED_BACK, (), raft.rolled_back
    yield TERM, (), raft.term
    yield COMMITTED, (), raft.commit_index
    yield APPLIED, (), shell.core.state.index
    yield LOG_ENTRIES, (), raft.log.entry_count
    yield LOG_BYTES, (), raft.log.size_bytes
    newest = raft.snapshots.newest
    yield SNAPSHOT_BYTES, (), 0 if newest is None else len(newest.data)


def _cluster(state: MetadataState) -> Iterator[Sample]:
    """Yield the values of the metrics of the cluster: topics, partitions and their states, leaders and replicas for
    each server, and servers."""
    leaders: dict[NodeId, int] = dict.fromkeys(state.servers, 0)
    replicas = dict(leaders)
    partitions = offline = under_replicated = under_minimum = reassigning = not_preferred = 0
    paused = read_only = 0
    for topic in state.topics.values():
        partitions += len(topic.partitions)
        for one in topic.partitions:
            if one.leader is None:
                offline += 1
            else:
                leaders[one.leader] += 1
                not_preferred += one.leader != one.replicas[0]
            for node in one.replicas:
                replicas[node] += 1
            under_replicated += len(one.isr) < len(one.replicas)
            under_minimum += len(one.isr) < topic.config.min_insync_replicas
            reassigning += bool(one.target)
            paused += one.paused
            read_only += one.read_only
    yield from by_label(LEADERS, leaders)
    yield from by_label(REPLICAS, replicas)
    yield NOT_PREFERRED, (), not_preferred
    yield TOPICS, (), len(state.topics)
    yield PARTITIONS, (), partitions
    yield OFFLINE, (), offline
    yield UNDER_REPLICATED, (), under_replicated
    yield UNDER_MINIMUM, (), under_minimum
    yield REASSIGNING, (), reassigning
    yield PAUSED, (), paused
    yield READ_ONLY, (), read_only
    live = [server for server in state.servers.values() if not server.fenced]
    yield SERVERS, ("live",), len(live)
    yield SERVERS, ("draining",), sum(server.draining for server in live)
    yield SERVERS, ("fenced",), len(state.servers) - len(live)


# --- health ------------------------------------------------------------------------------------------


def reasons_not_ready(core: Controller) -> Sequence[str]:
    """Return the reasons for which ``/readyz`` answers that this controller is not ready, as text for people; an
    empty list if it is ready."""
    node, raft = core.node_id, core.metadata_log.raft
    reasons = []
    if core.metadata_log.stopping:
        reasons.append(f"{node} is ending")
    if core.metadata_log.bootstrap.lost:
        reasons.append(f"{node} lost its store: tidelog controllers add {node} takes it in again")
    elif raft.rolled_back:
        reasons.append(f"{node} runs on an old copy of its disk: no vote until the active controller has refilled it")
    elif not raft.is_voter:
        reasons.append(f"{node} has no vote yet")
    if not core.active and raft.leader_id in (None, node):
        reasons.append("no active controller is known")
    if raft.disks_needed:
        reasons.append(f"nobody can be elected without the disks of {', '.join(raft.disks_needed)}")
    return reasons
