"""Findings about the disks of replica servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.wire.messages import ServerInfo

LITTLE_ROOM_BYTES = 1 << 30
"""Free bytes below which a disk is a warning."""
SOON_FULL_S = 7 * 86_400
"""A disk that will be full within this many seconds is a warning."""
FAR_FULL_S = 90 * 86_400
"""A disk that will be full later than in this many seconds is not reported."""


def examine_disk(server: ServerInfo, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Yield findings about the disk of one server: it is full or nearly full."""
    free = int(metrics.get("tidelog_replica_disk_free_bytes", 0))
    if metrics.get("tidelog_replica_disk_full"):
        what = f"the disk of {server.node} is full: it takes no records"
        yield Finding(
            PROBLEM, what, "Make room, or shorten retention: 'tidelog topics configure'.", "disk-full", (server.node,)
        )
    elif 0 < free < LITTLE_ROOM_BYTES:
        what = f"the disk of {server.node} has {free >> 20} MiB of room left"
        yield Finding(
            WARNING,
            what,
            "Make room, or shorten retention: 'tidelog topics configure'.",
            "disk-nearly-full",
            (server.node,),
        )


def examine_growth(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each server whose disk will be full within ``FAR_FULL_S`` if the topics without retention
    go on growing as they do now."""
    topics = ", ".join(view.growth.topics[:MOST_NAMED])
    more = len(view.growth.topics) - MOST_NAMED
    named = f"{topics} and {more} more" if more > 0 else topics
    for node, rate in sorted(view.growth.rates.items()):
        free = view.metrics.get(node, {}).get("tidelog_replica_disk_free_bytes", 0.0)
        if not free or not rate or (left_s := free / rate) > FAR_FULL_S:
            continue
        what = (
            f"the disk of {node} is full in about {_duration(left_s)} at the present rate of {rate / (1 << 20):.1f}"
            f" MiB/s: {free / (1 << 30):.1f} GiB are free, and no retention is set for {named}"
        )
        step = (
            f"'tidelog topics configure {view.growth.topics[0]} retention_ms=604800000', for example, keeps a week."
        )
        yield Finding(WARNING if left_s <= SOON_FULL_S else NOTE, what, step, "disk-filling", (node,))


def _duration(seconds: float) -> str:
    """Return a number of seconds as text in one unit, such as "3 hours"."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
