"""Findings about replica servers that come and go: those that are restarted again and again, and those that go silent
again and again. The leaders of their partitions change each time, and sends wait each time.

The histories of partitions show it: a server that is lost leaves the in-sync set of a partition, or its lead, once
each time. The only replica of a partition stays in the set while it is down, and leaves it if it comes back without
its data: that is the end of the same loss, and no other one. A loss is a restart if the link to the server broke, or
the server registered as a new incarnation or handed over at its end. Otherwise the process ran on and was not heard
of: it, its host or its network had stopped for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from tidelog.cli.explain.findings.finding import WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.explain.samples import total
from tidelog.quantities import counted
from tidelog.wire.messages import HistoryEntry

WINDOW_MS = 120_000
"""Milliseconds before the snapshot in which losses of a server count."""
RECENT_MS = 45_000
"""Milliseconds since the last loss after which a server counts as steady again."""
LEAST_LOSSES = 3
"""Number of losses within the window from which on a server is reported."""
QUICK_MS = 30_000
"""Milliseconds within which two losses suffice: nobody restarts a server twice within so short a time on purpose."""
SAME_MS = 4_000
"""What shows a restart in some partition within so many milliseconds of a loss belongs to that loss: a session may
end later than the leader is replaced."""
_LOST = ("leader_reported", "session_expired", "registered", "handed_over")
"""Causes of changes by which a server is lost."""


@dataclass(slots=True)
class _Losses:
    """What the histories show of one server: the times at which it was lost, from the partition that shows most of
    them; the times at which something shows that its process had ended; and how often it lost the lead, by
    partition."""

    times: tuple[int, ...] = ()
    ends: list[int] = field(default_factory=list)
    led: dict[str, int] = field(default_factory=dict)

    def restarts(self, started_ms: int) -> int:
        """Return how many losses were restarts. ``started_ms`` is when the present process was started; 0: not
        known."""
        known = (*self.ends, started_ms)
        return sum(any(-SAME_MS < end - time_ms < SAME_MS for end in known) for time_ms in self.times)


def examine_unsteady(view: ClusterSnapshot) -> Iterator[Finding]:
    """Yield a finding for each server that was lost ``LEAST_LOSSES`` times within the last ``WINDOW_MS``, or twice
    within ``QUICK_MS``, the last time within ``RECENT_MS``."""
    for node, seen in sorted(_losses(view).items()):
        if not _is_unsteady(seen.times) or view.now_ms - seen.times[-1] > RECENT_MS:
            continue
        started_ms = int(total(view.pages.get(node, ""), "process_start_time_seconds") * 1000)
        span = f"{len(seen.times)} times in {(view.now_ms - seen.times[0]) / 1000:.0f} s"
        log = f"the end of the log of {node}"
        if 2 * seen.restarts(started_ms) >= len(seen.times):
            what = f"replica server {node} is restarted again and again: it was lost {span}"
            step = f"See {log}, and what starts it again: systemd, Kubernetes, the kernel for want of memory (dmesg)."
            cause = "server-restarting"
        else:
            what = f"replica server {node} goes silent again and again, while its process runs: {span}"
            step = f"Look at the load, the memory and the network of its host; {log} has the pauses that it noticed."
            cause = "server-unsteady"
        yield Finding(WARNING, what, step, cause, (node,), _evidence(seen, started_ms))


def _is_unsteady(times: Sequence[int]) -> bool:
    """Return whether a server that was lost at these times, in milliseconds, comes and goes."""
    return len(times) >= LEAST_LOSSES or any(after - before <= QUICK_MS for before, after in pairwise(times))


def _losses(view: ClusterSnapshot) -> dict[str, _Losses]:
    """Return what the histories show of each server that was lost within the window, by name."""
    found: dict[str, _Losses] = {}
    for (topic, partition), entries in view.histories.items():
        times: dict[str, list[int]] = {}
        for before, entry in pairwise(entries):
            node = _lost_server(before, entry)
            if not node or view.now_ms - entry.time_ms > WINDOW_MS:
                continue
            losses = found.setdefault(node, _Losses())
            if _is_end(entry):
                losses.ends.append(entry.time_ms)
            if before.leader == node or (before.leader and node in before.isr and node not in entry.isr):
                times.setdefault(node, []).append(entry.time_ms)
                if before.leader == node != entry.leader:
                    place = f"{topic}/{partition}"
                    losses.led[place] = losses.led.get(place, 0) + 1
        for node, of_partition in times.items():
            if len(of_partition) > len(found[node].times):
                found[node].times = tuple(of_partition)
    return found


def _lost_server(before: HistoryEntry, entry: HistoryEntry) -> str:
    """Return the server whose loss brought about a change of a partition; "" if none did. ``before`` is the entry
    before it."""
    if entry.cause not in _LOST or (entry.cause == "handed_over" and entry.evidence.get("reason") != "shutdown"):
        return ""
    return before.leader if entry.cause == "leader_reported" else entry.evidence.get("node", "")


def _is_end(entry: HistoryEntry) -> bool:
    """Return whether the change shows that the server's process had ended."""
    return entry.cause in ("registered", "handed_over") or entry.evidence.get("link") == "broken"


def _evidence(seen: _Losses, started_ms: int) -> str:
    """Return in words when the server was lost, when its process was started, and which leaders changed."""
    words = [f"lost at {', '.join(_clock(time_ms) for time_ms in seen.times)}"]
    if started_ms:
        words.append(f"its process runs since {_clock(started_ms)}")
    if seen.led:
        named = ", ".join(f"{place} {counted(count, 'time')}" for place, count in sorted(seen.led.items())[:3])
        more = f" and {len(seen.led) - 3} more" if len(seen.led) > 3 else ""
        words.append(f"it lost the lead of {named}{more}")
    return "; ".join(words)


def _clock(ms: int) -> str:
    """Return a time in milliseconds since 1970 as local time of day."""
    return datetime.fromtimestamp(ms / 1000).strftime("%H:%M:%S")
