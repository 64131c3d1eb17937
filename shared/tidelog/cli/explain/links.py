"""Connections, attempts to connect that failed, and how long a process has run, as the metrics of servers and
gateways show them."""

from __future__ import annotations

from math import inf

from tidelog.explain.samples import samples, total

_UNREACHABLE = {
    "tidelog_replica_peer_unreachable_seconds": "peer",
    "tidelog_gateway_server_unreachable_seconds": "server",
}


def unreachable_in(page: str) -> dict[str, float]:
    """Return for how many seconds the process of this metrics page has tried in vain to connect, by server."""
    return {labels[label]: value for name, label in _UNREACHABLE.items() for labels, value in samples(page, name)}


def connected_in(page: str) -> frozenset[str]:
    """Return the replica servers that are connected to the server of this metrics page."""
    found = samples(page, "tidelog_replica_connections")
    return frozenset(labels["peer"] for labels, value in found if labels["role"] == "replica" and value > 0)


def running_s(page: str) -> float:
    """Return for about how many seconds the process of this metrics page has run; infinity if the page does not say,
    or the clock was set back since the process was started."""
    age_s = total(page, "tidelog_wall_clock_seconds") - total(page, "process_start_time_seconds")
    return age_s if age_s > 0 else inf
