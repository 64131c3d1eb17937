"""A healthy cluster as ``tidelog doctor`` sees it, for tests of rules: three controllers, three replica servers."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import NOTE, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.types import TopicConfig
from tidelog.wire.messages import (
    ControllerInfo,
    HistoryEntry,
    MetadataAnswer,
    PartitionInfo,
    QuorumAnswer,
    ServerInfo,
    TopicInfo,
)

NOW_MS = 1_795_000_000_000
SERVERS = tuple(ServerInfo(f"r{n}", f"ws://r{n}", n, False) for n in (1, 2, 3))
CONTROLLERS = tuple(ControllerInfo(f"c{n}", f"ws://c{n}", "follower", match=9) for n in (1, 2, 3))
QUORUM = QuorumAnswer("c1", 1, 9, (replace(CONTROLLERS[0], role="leader"), *CONTROLLERS[1:]))
WHOLE = PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 1, 1)


def cluster(*partitions: PartitionInfo, down: str = "", **more: object) -> ClusterSnapshot:
    """The snapshot of a cluster with one topic, ``orders``, of these partitions. ``down`` is a server that is down;
    ``more`` are other fields of the snapshot."""
    chosen = tuple(replace(p, partition=n) for n, p in enumerate(partitions or (WHOLE,)))
    topic = TopicInfo("id", "orders", TopicConfig(min_insync_replicas=2).texts(), chosen)
    servers = tuple(replace(server, fenced=server.node == down) for server in SERVERS)
    view = ClusterSnapshot(MetadataAnswer("c", 1, (topic,), servers), QUORUM, now_ms=NOW_MS)
    return replace(view, **more)  # type: ignore[arg-type]


def entry(
    ago_s: float, event: str, cause: str, leads: str, *, isr: tuple[str, ...] = ("r1", "r2", "r3"), **evidence: str
) -> HistoryEntry:
    """An entry of a partition's history, so many seconds before the snapshot."""
    return HistoryEntry(int(NOW_MS - ago_s * 1000), 1, 1, event, cause, leads, isr, evidence)


def causes(view: ClusterSnapshot) -> list[Finding]:
    """The problems and warnings that are called causes."""
    return [one for one in examine(view) if one.level != NOTE and not one.because_of]


def finding(view: ClusterSnapshot, cause: str) -> Finding:
    """The one finding with this code."""
    (one,) = [one for one in examine(view) if one.cause == cause]
    return one
