"""How fit each replica server is to lead, as the active controller sees it: volatile, and only a preference.

The metadata decide which replicas *may* lead: live members of the ISR, then of the ELR. The ranking decides which of
them does. Rank 0 is the best, and most servers have it; replicas of equal rank are taken in replica order, so the
preferred replica leads where all are well. The ranks travel in the commands that replace leaders (``FenceServer``,
``ReplaceLeaders``, ``LeaveParts``; feature level ``RANKING``), so every controller that applies them elects the same.

A server's rank is the sum of:

    delay      the longest silence between two heartbeats, or the longest lag as a follower that a leader reported,
               whichever is longer, of the last ``RECENT_S``: one for each third of the session time-out, at most
               ``MOST_DELAY``
    slow       ``MOST_DELAY`` if the server is in the list of slow servers (``active/slow_servers.py``)
    replaced   one for each time in the last ``REMEMBERED_S`` that it lost a leadership because its session ended or
               its followers reported it. So leadership does not go to and fro between two servers that hang now and
               then

If a leader was silent itself, the lags that it reports say nothing about its followers, and do not count. A
controller that becomes active knows nothing, and ranks all servers equally until it has heard more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tidelog.types import NodeId, TopicPartition
from tidelog.wire.messages import FollowerLag

from tidelog_controller.metadata.commands import Command, FenceServer, RankedServer, ReplaceLeaders
from tidelog_controller.metadata.state import MetadataState

RECENT_S = 20.0
"""Seconds for which a delay counts. Leaders report lags every 5 s."""
REMEMBERED_S = 60.0
"""Seconds for which a leader that was replaced has a worse rank."""
STEPS = 3
"""Number of steps of delay in a session time-out. Each step adds one to the rank."""
MOST_DELAY = 6
"""The most that the delays of a server, or its being slow, add to its rank."""


@dataclass(slots=True)
class _Delays:
    """The evidence about how late one server is. A silence is a pair: when it was noticed, and how many seconds it
    lasted. A lag also has the leader that reported it."""

    heard_at: float
    """When the last heartbeat came."""
    beats: bool = False
    """Whether a heartbeat came since this controller became active."""
    silences: list[tuple[float, float]] = field(default_factory=list)
    lags: list[tuple[float, float, NodeId]] = field(default_factory=list)
    """Each is the time of the report, the lag in seconds, and the leader that reported it."""
    replaced: list[float] = field(default_factory=list)

    def forget(self, now: float) -> None:
        """Discard silences and lags older than ``RECENT_S``, and replacements as leader older than
        ``REMEMBERED_S``."""
        self.silences = [one for one in self.silences if now - one[0] < RECENT_S]
        self.lags = [one for one in self.lags if now - one[0] < RECENT_S]
        self.replaced = [at for at in self.replaced if now - at < REMEMBERED_S]


class ServerRanks:
    """The evidence about how fit each replica server is to lead, on the active controller, and the ranks that follow
    from it, by which new leaders are chosen. In memory only. Times are seconds of the caller's monotonic clock."""

    def __init__(self, session_timeout_s: float) -> None:
        self._step_s = session_timeout_s / STEPS
        self._delays: dict[NodeId, _Delays] = {}

    def become_active(self, state: MetadataState, now: float) -> None:
        """Forget all evidence, and begin with equal ranks for all registered servers."""
        self._delays = {node: _Delays(now) for node in state.servers}

    def clear(self) -> None:
        """Forget all evidence, since this controller is no longer active."""
        self._delays.clear()

    def on_heartbeat(self, node: NodeId, lags: Iterable[FollowerLag], now: float) -> None:
        """Record the silence before a heartbeat of the server ``node``, and the lags of its followers that it
        reported. Those shorter than a third of the session timeout are ignored."""
        delays = self._of(node, now)
        delays.forget(now)
        silence_s = now - delays.heard_at
        if delays.beats and silence_s >= self._step_s:
            delays.silences.append((now, silence_s))
        delays.heard_at, delays.beats = now, True
        for lag in lags:
            if lag.lag_ms >= 1000 * self._step_s:
                follower = self._of(lag.node, now)
                follower.forget(now)  # it may send no heartbeats itself
                follower.lags.append((now, lag.lag_ms / 1000, node))

    def on_applied(
        self, before: MetadataState, command: Command, changed: Collection[TopicPartition], now: float
    ) -> None:
        """Record that a server lost a leadership because its session ended or its followers reported it, if the
        applied ``command`` had that effect on one of the partitions in ``changed``. ``before`` is the state before
        the command. Other commands are ignored."""
        match command:
            case FenceServer():
                suspect = command.node
            case ReplaceLeaders():
                suspect = command.leader
            case _:
                return
        led = (before.partition(*key) for key in changed)
        if any(partition is not None and partition.leader == suspect for partition in led):
            self._of(suspect, now).replaced.append(now)

    def ranks(self, state: MetadataState, slow: Collection[NodeId], now: float) -> tuple[RankedServer, ...]:
        """Return the registered servers whose rank is above 0, sorted by name, each with its rank and the reasons as
        text. The higher the rank, the less a server is fit to lead. ``slow`` are the servers that are slow. Evidence
        that is too old is discarded first."""
        for delays in self._delays.values():
            delays.forget(now)
        silences = {node: self._silence_s(node, now) for node in self._delays}
        ranked = []
        for node in sorted(self._delays):
            if node not in state.servers:
                continue
            delays, silence_s = self._delays[node], silences[node]
            lags = [lag_s for _, lag_s, leader in delays.lags if silences.get(leader, 0.0) < self._step_s]
            rank = min(MOST_DELAY, int(max(silence_s, *lags, 0.0) / self._step_s)) + len(delays.replaced)
            reasons = [f"silent for {silence_s:.1f} s"] if silence_s >= self._step_s else []
            reasons += [f"lagged by {max(lags):.1f} s"] if lags else []
            reasons += [f"replaced {len(delays.replaced)} times as leader"] if delays.replaced else []
            if node in slow:
                rank += MOST_DELAY
                reasons.append("slow")
            if rank:
                ranked.append(RankedServer(node, rank, ", ".join(reasons)))
        return tuple(ranked)

    def _silence_s(self, node: NodeId, now: float) -> float:
        """Return the longest time in seconds without a heartbeat of the server within the last ``RECENT_S`` seconds,
        the present silence included."""
        delays = self._delays[node]
        return max(now - delays.heard_at, *(silence_s for _, silence_s in delays.silences), 0.0)

    def _of(self, node: NodeId, now: float) -> _Delays:
        return self._delays.setdefault(node, _Delays(now))
