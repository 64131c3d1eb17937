"""Findings about the disks of replica servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.cli.explain.findings.finding import MOST_NAMED, NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.sansio.recent_sums import WINDOW_S
from tidelog.wire.messages import ServerInfo

LITTLE_ROOM_BYTES = 1 << 30
LITTLE_ROOM = 0.1
"""A disk is a warning when less is free than ``LITTLE_ROOM_BYTES``, and less than this share of a small disk."""
OWN_SHARE = 0.5
"""A full disk is full of logs if they take this share of what is used; else other files have filled it."""
SLOW_SYNC_S = 0.5
"""A disk on which syncs take this many seconds on average is slow."""
STARVED = 0.5
"""A server whose work has to wait in this share of the time does not get enough of its machine. How long its syncs
take then says nothing about its disk."""
SOON_FULL_S = 7 * 86_400
"""A disk that will be full within this many seconds is a warning."""
FAR_FULL_S = 90 * 86_400
"""A disk that will be full later than in this many seconds is not reported."""


def examine_disk(server: ServerInfo, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Yield findings about the disk of one server: it is full or nearly full."""
    free = int(metrics.get("tidelog_replica_disk_free_bytes", 0))
    size = int(metrics.get("tidelog_replica_disk_size_bytes", 0))
    about, evidence = (server.node,), _use_of_disk(metrics) if size else ""
    if metrics.get("tidelog_replica_disk_full"):
        yield _full_disk(server.node, metrics, evidence)
    elif 0 < free < min(LITTLE_ROOM_BYTES, size * LITTLE_ROOM or LITTLE_ROOM_BYTES):
        what = f"the disk of {server.node} has {free >> 20} MiB of room left"
        step = "Make room, or shorten retention: 'tidelog topics configure'."
        yield Finding(WARNING, what, step, "disk-nearly-full", about, evidence)
    sync_s, late = metrics.get("tidelog_replica_recent_flush_seconds", 0.0), _late(metrics)
    if sync_s >= SLOW_SYNC_S and late < STARVED:
        what = f"the disk of {server.node} is slow: acks of its partitions wait for it"
        step = (
            f"Look for what else writes to that disk (iostat -x), and for errors of the medium (dmesg). Meanwhile"
            f" 'tidelog servers drain {server.node}' lets others lead."
        )
        evidence = f"a sync took {sync_s:.2f} s on average in the last {WINDOW_S:.0f} s"
        yield Finding(WARNING, what, step, "disk-slow", about, evidence)


def _late(metrics: Mapping[str, float]) -> float:
    """Return the share of the time in which work of a server was due and had to wait."""
    return metrics.get("tidelog_replica_late_ratio", 0.0)


def examine_starved(server: ServerInfo, metrics: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding if the process of a server does not get enough of its machine to do its work in time."""
    if _late(metrics) >= STARVED:
        what = f"{server.node} is slow because its process does not get to run"
        step = (
            f"Look at the machine of {server.node}: what takes its CPU (top), whether it swaps (vmstat), and which"
            f" limits its container has. Meanwhile 'tidelog servers drain {server.node}' lets others lead."
        )
        evidence = f"in {_late(metrics):.0%} of the last {WINDOW_S:.0f} s its work was due and had to wait"
        yield Finding(WARNING, what, step, "server-starved", (server.node,), evidence)


def _use_of_disk(metrics: Mapping[str, float]) -> str:
    """Return in words what the logs of a server and other files take of its disk."""
    size, free, logs = (
        int(metrics.get(f"tidelog_replica_{name}_bytes", 0)) >> 20 for name in ("disk_size", "disk_free", "log")
    )
    return f"of {size} MiB {free} are free; its logs take {logs} MiB, other files {max(0, size - free - logs)} MiB"


def _full_disk(node: str, metrics: Mapping[str, float], evidence: str) -> Finding:
    """Return the finding for a disk that is full, with what fills it as its cause, as far as that is known."""
    used = metrics.get("tidelog_replica_disk_size_bytes", 0.0) - metrics.get("tidelog_replica_disk_free_bytes", 0.0)
    if not evidence:
        what = f"the disk of {node} is full: it takes no records"
        step = "Make room, or shorten retention: 'tidelog topics configure'."
        return Finding(PROBLEM, what, step, "disk-full", (node,))
    if metrics.get("tidelog_replica_log_bytes", 0.0) >= OWN_SHARE * used:
        what = f"the disk of {node} is full of logs: it takes no records"
        step = "Shorten retention, which works on a full disk: 'tidelog topics configure TOPIC retention_bytes=…'."
        return Finding(PROBLEM, what, step, "disk-full-of-logs", (node,), evidence)
    what = f"the disk of {node} is full of files that are not its logs: it takes no records"
    step = f"Find and remove them on the machine of {node}: 'du -xh DIR | sort -h' on the disk of its data_dir."
    return Finding(PROBLEM, what, step, "disk-full-of-other-files", (node,), evidence)


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
            f"the disk of {node} is full in about {_duration(left_s)} at the present rate, since no retention is set"
            f" for {named}"
        )
        evidence = f"{rate / (1 << 20):.1f} MiB/s are added, and {free / (1 << 30):.1f} GiB are free"
        step = (
            f"'tidelog topics configure {view.growth.topics[0]} retention_ms=604800000', for example, keeps a week."
        )
        yield Finding(WARNING if left_s <= SOON_FULL_S else NOTE, what, step, "retention-not-set", (node,), evidence)


def _duration(seconds: float) -> str:
    """Return a number of seconds as text in one unit, such as "3 hours"."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
