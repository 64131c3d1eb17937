"""Who is connected to whom, and who tries in vain, as the metrics of servers and gateways show it."""

from __future__ import annotations

from tidelog.explain.samples import samples

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
