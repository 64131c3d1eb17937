"""What ``tidelog doctor`` sees of a healthy cluster of three controllers and three servers, for tests of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.types import TopicConfig
from tidelog.wire.messages import (
    ControllerInfo,
    MetadataAnswer,
    PartitionInfo,
    QuorumAnswer,
    ServerInfo,
    TopicInfo,
)

SERVERS = tuple(ServerInfo(f"r{n}", f"ws://r{n}", n, False) for n in (1, 2, 3))
ROLES = {"c1": "leader", "c2": "follower", "c3": "follower"}
CONTROLLERS = tuple(ControllerInfo(node, f"ws://{node}", role, match=9) for node, role in ROLES.items())
WHOLE = PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 1, 1)
HEALTHY: Mapping[str, float] = {
    "tidelog_replica_disk_size_bytes": 100 << 30,
    "tidelog_replica_disk_free_bytes": 60 << 30,
    "tidelog_replica_log_bytes": 20 << 30,
    "tidelog_replica_recent_flush_seconds": 0.02,
    "tidelog_replica_late_ratio": 0.03,
}
"""The metrics of a replica server without problems, under load."""


def healthy(*partitions: PartitionInfo) -> ClusterSnapshot:
    """Return a snapshot of a cluster without problems, with one topic ``orders`` of these partitions; one that is
    whole if none are given."""
    chosen = tuple(replace(p, partition=n) for n, p in enumerate(partitions or (WHOLE,)))
    topic = TopicInfo("id", "orders", TopicConfig(min_insync_replicas=2).texts(), chosen)
    quorum = QuorumAnswer("c1", 1, 9, CONTROLLERS)
    metrics = {server.node: dict(HEALTHY) for server in SERVERS}
    return ClusterSnapshot(MetadataAnswer("c", 1, (topic,), SERVERS), quorum, metrics)


def with_metrics(view: ClusterSnapshot, node: str, **changes: float) -> ClusterSnapshot:
    """Return the snapshot with other values of metrics of a server, by their names without ``tidelog_replica_``."""
    changed = {f"tidelog_replica_{name}": value for name, value in changes.items()}
    return replace(view, metrics={**view.metrics, node: {**view.metrics[node], **changed}})
