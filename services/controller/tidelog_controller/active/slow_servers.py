"""Which replica servers are slow, by the reports of their peers. Only the active controller knows this, in memory.

With its heartbeats each server reports, now and then, for how long the followers of the partitions that it leads have
not been caught up. Such a lag is between two: the follower may be slow, or the leader, or what lies between. So a
server is *in trouble* when more than half of the lags between it and a live peer, reported by either of them, are
``threshold_s`` or more: one slow server is in trouble with all its peers, these with one of theirs only.

A server that is in trouble for ``patience_s`` without a break is slow, and stays so for ``rest_s`` after the last
time, lest leaderships go to and fro. It is chosen last among equals for new replicas and as preferred leader, and no
leadership comes back to it for the sake of balance. Nothing is taken from it: a leader whose disk stalls hands over
by itself, and a follower that stays behind leaves the ISR. A slow server also ranks worse when a leader is replaced
(``active/server_ranks.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tidelog.types import NodeId
from tidelog.wire.messages import FollowerLag

from tidelog_controller.metadata.state import MetadataState

FRESH_S = 15.0
"""Seconds for which the lags that a server reported count; it reports them every few seconds."""


class SlowServers:
    """The lags that servers report of their followers, on the active controller, and which servers are slow because
    of them. In memory only. Times are seconds of the caller's monotonic clock. With ``threshold_s`` 0 no server is
    ever slow."""

    def __init__(self, threshold_s: float, patience_s: float, rest_s: float) -> None:
        self._threshold_s = threshold_s
        self._patience_s = patience_s
        self._rest_s = rest_s
        self._reported: dict[NodeId, tuple[float, dict[NodeId, float]]] = {}
        self._trouble_since: dict[NodeId, float] = {}
        self._slow_until: dict[NodeId, float] = {}

    def clear(self) -> None:
        """Forget all lags and slow servers, since this controller is no longer active: servers report to another
        one."""
        self._reported.clear()
        self._trouble_since.clear()
        self._slow_until.clear()

    def on_heartbeat(self, state: MetadataState, node: NodeId, lags: Iterable[FollowerLag], now: float) -> None:
        """Record the lags of the followers that the leader server ``node`` has reported, in place of those that it
        reported before; a follower that is not in ``lags`` has none. Then mark each server as slow for ``rest_s``
        seconds that has been in trouble with its peers for ``patience_s`` seconds."""
        self._reported[node] = now, {lag.node: lag.lag_ms / 1000 for lag in lags}
        in_trouble = self._in_trouble(state, now)
        self._trouble_since = {each: self._trouble_since.get(each, now) for each in in_trouble}
        for each, since in self._trouble_since.items():
            if now - since >= self._patience_s:
                self._slow_until[each] = now + self._rest_s

    def slow(self, now: float) -> tuple[NodeId, ...]:
        """Return the servers that are slow at ``now``. They are chosen last as leaders and for new replicas."""
        return tuple(node for node, until in self._slow_until.items() if now < until)

    def worst(self, state: MetadataState, now: float) -> dict[NodeId, float]:
        """Return for each live server the longest lag in seconds that a leader has reported of it within the last
        ``FRESH_S`` seconds; 0.0 if none was reported."""
        found = {node: 0.0 for node in state.servers if state.is_live(node)}
        for at, lags in self._reported.values():
            for node, lag_s in lags.items():
                if node in found and now - at < FRESH_S:
                    found[node] = max(found[node], lag_s)
        return found

    def _in_trouble(self, state: MetadataState, now: float) -> list[NodeId]:
        """Return the servers for which more than half of the lags between them and live peers, as reported lately by
        either side, are ``threshold_s`` seconds or more."""
        counted: dict[NodeId, int] = {}
        late: dict[NodeId, int] = {}
        threshold_s = self._threshold_s or inf
        for leader, (at, lags) in self._reported.items():
            if now - at >= FRESH_S or not state.is_live(leader):
                continue
            for follower, lag_s in lags.items():
                if state.is_live(follower):
                    for node in (leader, follower):
                        counted[node] = counted.get(node, 0) + 1
                        late[node] = late.get(node, 0) + (lag_s >= threshold_s)
        return [node for node, count in counted.items() if 2 * late[node] > count]
