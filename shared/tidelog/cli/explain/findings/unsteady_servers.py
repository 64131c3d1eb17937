"""Findings about replica servers that come and go: those that are restarted again and again, and those that go silent
again and again. The leaders of their partitions change each time, and sends wait each time.

The histories of partitions show it. A server that is lost leaves the in-sync sets of its partitions within a second
or two; all these changes together are one *loss*. A loss is a restart if the link to the server broke, or the server
registered as a new incarnation or handed over at its end. Otherwise the process ran on and was not heard of: it, its
host or its network had stopped for a while."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tidelog.cli.explain.findings.finding import WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.explain.samples import total
from tidelog.wire.messages import HistoryEntry

WINDOW_MS = 120_000
"""Milliseconds before the snapshot in which losses of a server count."""
RECENT_MS = 45_000
"""Milliseconds since the last loss after which a server counts as steady again."""
LEAST_LOSSES = 3
"""Number of losses within the window from which on a server is reported."""
APART_MS = 2_000
"""Changes that follow each other by less than this many milliseconds belong to one loss."""


@dataclass(slots=True)
class _Losses:
    """What the histories show of one server: the times at which it was lost, whether each loss was a restart, and the
    partitions that changed their leader because of it."""

    times: list[int] = field(default_factory=list)
    restarts: list[bool] = field(default_factory=list)
    led: dict[str, int] = field(default_factory=dict)

    def add(self, time_ms: int, restart: bool) -> None:
        if self.times and time_ms - self.times[-1] < APART_MS:
            self.restarts[-1] |= restart
        else:
            self.times.append(time_ms)
            self.restarts.append(restart)


def examine_unsteady(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each server that was lost ``LEAST_LOSSES`` times within the last ``WINDOW_MS``, the last
    time within ``RECENT_MS``."""
    for node, seen in sorted(_losses(view).items()):
        if len(seen.times) < LEAST_LOSSES or view.now_ms - seen.times[-1] > RECENT_MS:
            continue
        span = f"{len(seen.times)} times in {(view.now_ms - seen.times[0]) / 1000:.0f} s"
        log = f"the end of the log of {node}"
        if 2 * sum(seen.restarts) > len(seen.times):
            what = f"replica server {node} is restarted again and again: it was lost {span}"
            step = f"See {log}, and what starts it again: systemd, Kubernetes, the kernel for want of memory (dmesg)."
            cause = "server-restarting"
        else:
            what = f"replica server {node} goes silent again and again, while its process runs: {span}"
            step = f"Look at the load, the memory and the network of its host; {log} has the pauses that it noticed."
            cause = "server-unsteady"
        yield Finding(WARNING, what, step, cause, (node,), _evidence(view, node, seen))


def _losses(view: ClusterSnapshot) -> dict[str, _Losses]:
    """Return what the histories show of each server that was lost within the window, by name."""
    changes: list[tuple[int, str, str, HistoryEntry, bool]] = []
    for (topic, partition), entries in view.histories.items():
        leader = ""
        for entry in entries:
            node = _lost_server(entry)
            if node and view.now_ms - entry.time_ms <= WINDOW_MS:
                changes.append((entry.time_ms, node, f"{topic}/{partition}", entry, leader == node != entry.leader))
            leader = entry.leader
    found: dict[str, _Losses] = {}
    for time_ms, node, place, entry, led in sorted(changes, key=lambda change: change[:3]):
        losses = found.setdefault(node, _Losses())
        losses.add(time_ms, _is_restart(entry))
        if led:
            losses.led[place] = losses.led.get(place, 0) + 1
    return found


def _lost_server(entry: HistoryEntry) -> str:
    """Return the server whose loss brought about a change of a partition; "" if none did."""
    if entry.cause == "leader_reported":
        return entry.evidence.get("leader", "")
    if entry.cause in ("session_expired", "registered"):
        return entry.evidence.get("node", "")
    if entry.cause == "handed_over" and entry.evidence.get("reason") == "shutdown":
        return entry.evidence.get("node", "")
    return ""


def _is_restart(entry: HistoryEntry) -> bool:
    """Return whether the change shows that the server's process had ended."""
    return entry.cause in ("registered", "handed_over") or entry.evidence.get("link") == "broken"


def _evidence(view: ClusterSnapshot, node: str, seen: _Losses) -> str:
    """Return in words when the server was lost, when its process was started, and which leaders changed."""
    words = [f"lost at {', '.join(_clock(time_ms) for time_ms in seen.times)}"]
    if started := total(view.pages.get(node, ""), "process_start_time_seconds"):
        words.append(f"its process runs since {_clock(int(started * 1000))}")
    if seen.led:
        named = ", ".join(f"{place} {count} times" for place, count in sorted(seen.led.items())[:3])
        more = f" and {len(seen.led) - 3} more" if len(seen.led) > 3 else ""
        words.append(f"it lost the lead of {named}{more}")
    return "; ".join(words)


def _clock(ms: int) -> str:
    """Return a time in milliseconds since 1970 as local time of day."""
    return datetime.fromtimestamp(ms / 1000).strftime("%H:%M:%S")
