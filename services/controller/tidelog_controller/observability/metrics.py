"""The metrics of a controller: a table of what there is, and how it is read when somebody looks.

What is said of the cluster as a whole only the active controller says, so that a sum over all controllers is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from tidelog.runtime.log_events import CONTROLLER, counted
from tidelog.runtime.metrics import Metric, MetricsPage, Sample, by_label
from tidelog.types import NodeId

from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.raft.base import Role
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
ELECTIONS = Metric(
    "tidelog_elections",
    "counter",
    "elections",
    "Leaders of partitions elected, by cause: election frequency.",
    ("cause",),
)
LOST_LEADERS = Metric("tidelog_lost_leaders", "counter", "partitions", "Times that a partition was left leaderless.")
ISR_CHANGES = Metric(
    "tidelog_isr_changes",
    "counter",
    "changes",
    "In-sync sets that shrank or grew under their leader. What an election takes out is not counted.",
    ("event",),
)
FENCES = Metric("tidelog_fences", "counter", "sessions", "Sessions of replica servers that ended: servers fenced.")
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
ACTIVATIONS = Metric("tidelog_controller_activations", "counter", "times", "How often it became the active one.")
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
LOG_BYTES = Metric("tidelog_raft_log_bytes", "gauge", "bytes", "Size of the commands in them.")
SNAPSHOT_BYTES = Metric("tidelog_raft_snapshot_bytes", "gauge", "bytes", "Size of the last snapshot.")
SNAPSHOTS = Metric("tidelog_raft_snapshots", "counter", "snapshots", "Snapshots taken here.")
INSTALLED = Metric(
    "tidelog_raft_installed_snapshots", "counter", "snapshots", "Snapshots taken over from another controller."
)
RAFT_ELECTIONS = Metric(
    "tidelog_raft_elections", "counter", "elections", "How often it stood for leader of the controllers."
)
PROPOSALS = Metric("tidelog_raft_proposals", "counter", "commands", "Commands that it proposed as leader.")
COMMITS = Metric(
    "tidelog_raft_commit_latency_seconds", "histogram", "seconds", "From such a proposal until it was applied here."
)
PERSISTS = Metric(
    "tidelog_raft_persist_seconds", "histogram", "seconds", "One transaction of the store, with its sync."
)
REQUESTS = Metric("tidelog_controller_requests", "counter", "requests", "Requests that came, by op.", ("op",))
REFUSED = Metric(
    "tidelog_controller_refused_requests",
    "counter",
    "requests",
    "Requests that it refused as the active controller, by error code.",
    ("code",),
)
WAITING = Metric(
    "tidelog_controller_waiting_requests",
    "gauge",
    "requests",
    "Requests that wait for a majority of the controllers.",
)
INPUTS = Metric("tidelog_controller_waiting_inputs", "gauge", "inputs", "Messages that it has not come to.")
CONNECTIONS = Metric(
    "tidelog_controller_connections", "gauge", "connections", "Accepted connections, by the peer's role.", ("role",)
)
WATCHERS = Metric("tidelog_controller_watchers", "gauge", "connections", "Connections that watch the metadata.")
EVENTS = Metric("tidelog_controller_events", "counter", "events", "Lines of its log, by event.", ("event",))

SERVER_LAG = Metric(
    "tidelog_server_lag_seconds",
    "gauge",
    "seconds",
    "How long ago the replica server had everything of the worst partition, as the leaders told last.",
    ("server",),
)
SLOW = Metric(
    "tidelog_slow_servers",
    "gauge",
    "servers",
    "Replica servers that are chosen last as leaders and for replicas, since what they have to do with others lags.",
)

CLUSTER = (
    *(LEADERS, REPLICAS, NOT_PREFERRED, ELECTIONS, LOST_LEADERS, ISR_CHANGES, FENCES, TOPICS, PARTITIONS, OFFLINE),
    *(UNDER_REPLICATED, UNDER_MINIMUM, REASSIGNING, PAUSED, READ_ONLY, SERVERS, SERVER_LAG, SLOW),
)
"""Shown by the active controller only, but for what is counted: that stays where it was counted."""
METRICS = (
    *CLUSTER,
    *(
        ACTIVE,
        ACTIVATIONS,
        ROLE,
        ROLLED_BACK,
        TERM,
        COMMITTED,
        APPLIED,
        LOG_ENTRIES,
        LOG_BYTES,
        SNAPSHOT_BYTES,
        SNAPSHOTS,
    ),
    *(INSTALLED, RAFT_ELECTIONS, PROPOSALS, COMMITS, PERSISTS, REQUESTS, REFUSED, WAITING, INPUTS, CONNECTIONS),
    *(WATCHERS, EVENTS),
)


def metrics_page(shell: ControllerShell) -> MetricsPage:
    """The page of one controller."""
    return MetricsPage(METRICS, lambda: _collect(shell))


def _collect(shell: ControllerShell) -> Iterator[Sample]:
    core, counts = shell.core, shell.core.counts
    if core.active:
        yield from _cluster(core.state)
        yield from by_label(SERVER_LAG, core.lags.worst(core.state, shell.now()))
        yield SLOW, (), len(core.lags.slow(shell.now()))
    yield from by_label(ELECTIONS, counts.elections)
    yield LOST_LEADERS, (), counts.offline
    yield from by_label(ISR_CHANGES, counts.isr_changes)
    yield FENCES, (), counts.fences
    yield ACTIVE, (), core.active
    yield ACTIVATIONS, (), counts.activations
    yield from _raft(shell)
    yield from by_label(REQUESTS, counts.requests)
    yield from by_label(REFUSED, counts.refused)
    yield WAITING, (), core.metadata_log.waiting
    yield INPUTS, (), shell.inputs_waiting
    roles = {"controller": 0, "replica": 0, "gateway": 0, "client": 0}
    for link in shell.links:
        roles[link.peer.role] += 1
    yield from by_label(CONNECTIONS, roles)
    yield WATCHERS, (), core.watcher_count
    yield from by_label(EVENTS, counted(CONTROLLER, shell.events))


def _raft(shell: ControllerShell) -> Iterator[Sample]:
    raft, counts = shell.core.metadata_log.raft, shell.core.counts
    for role in get_args(Role):
        yield ROLE, (role,), raft.role == role
    yield ROLLED_BACK, (), raft.rolled_back
    yield TERM, (), raft.term
    yield COMMITTED, (), raft.commit_index
    yield APPLIED, (), shell.core.state.index
    yield LOG_ENTRIES, (), raft.log.entry_count
    yield LOG_BYTES, (), raft.log.size_bytes
    yield SNAPSHOT_BYTES, (), 0 if raft.snapshot is None else len(raft.snapshot.data)
    yield SNAPSHOTS, (), counts.snapshots
    yield INSTALLED, (), counts.snapshots_installed
    yield RAFT_ELECTIONS, (), counts.raft_elections
    yield PROPOSALS, (), counts.proposals
    yield COMMITS, (), counts.commits
    yield PERSISTS, (), shell.persists


def _cluster(state: MetadataState) -> Iterator[Sample]:
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
