"""The metrics of a gateway: a table of them, and how their values are computed when the page is requested.
``counters.py`` declares the counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.runtime.metrics import MetricsPage
from tidelog.sansio.counters import Metric, Sample, by_label, metrics_of, samples

from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.counters import DeliveryCounts, ReadCounts, RequestCounts, RouterCounts
from tidelog_gateway.shell import GatewayShell

CONNECTIONS = Metric("tidelog_gateway_connections", "gauge", "connections", "Clients that are connected.")
LIMIT = Metric(
    "tidelog_gateway_server_limit_bytes_per_second",
    "gauge",
    "bytes per second",
    "What is sent at most to a replica server that is slow, by server; absent: the server has no limit.",
    ("server",),
)
SLOW = Metric(
    "tidelog_gateway_server_slow_intervals",
    "counter",
    "intervals",
    "Seconds in which the quickest ack of a replica server took longer than throttle_target_s, by server. Each sets"
    " the limit to half of what the server acked.",
    ("server",),
)
IN_FLIGHT = Metric("tidelog_gateway_in_flight_batches", "gauge", "batches", "Batches that leaders have yet to ack.")
HELD = Metric("tidelog_gateway_held_bytes", "gauge", "bytes", "Batches that are held until they are acked.")
SUBSCRIPTIONS = Metric("tidelog_gateway_subscriptions", "gauge", "subscriptions", "Open subscriptions.")
LONG_POLLS = Metric(
    "tidelog_gateway_long_polls",
    "gauge",
    "requests",
    "Requests that replica servers keep until there is news, each for all clients who wait for the same.",
)
TAIL_CACHE = Metric(
    "tidelog_gateway_tail_cache_bytes", "gauge", "bytes", "Newest batches of partitions, kept for their subscribers."
)
LINKS = Metric("tidelog_gateway_replica_links", "gauge", "connections", "Replica servers that it is connected to.")
UNREACHABLE = Metric(
    "tidelog_gateway_server_unreachable_seconds",
    "gauge",
    "seconds",
    "For how long this gateway has tried to connect to a replica server without success; absent: it is connected.",
    ("server",),
)
INDEX = Metric("tidelog_gateway_metadata_index", "gauge", "index", "Last Raft entry whose metadata it has.")

METRICS = (
    CONNECTIONS,
    *metrics_of(RequestCounts),
    *metrics_of(RouterCounts, "batches", "retries"),
    *(IN_FLIGHT, HELD, LIMIT, SLOW),
    *metrics_of(RouterCounts, "holds", "throttle_s"),
    *metrics_of(ReadCounts),
    *(LONG_POLLS, SUBSCRIPTIONS),
    *metrics_of(DeliveryCounts, "reads"),
    TAIL_CACHE,
    *metrics_of(DeliveryCounts, "deliveries", "ended"),
    *(LINKS, UNREACHABLE, INDEX),
)


def metrics_page(shell: GatewayShell) -> MetricsPage:
    """Return the metrics page of a gateway, which computes the values from the state of ``shell`` at each request."""
    return MetricsPage(METRICS, lambda: _collect(shell))


def _collect(shell: GatewayShell) -> Iterator[Sample]:
    """Yield the present value of each metric of the table, with its labels."""
    router = shell.router
    for counts in (shell.counts, router.counts, shell.reads.counts, shell.subscriptions.counts):
        yield from samples(counts)
    yield CONNECTIONS, (), len(shell.links)
    yield IN_FLIGHT, (), router.in_flight
    yield HELD, (), router.held_bytes
    for node, limit in router.limits.items():
        if limit.bytes_s is not None:
            yield LIMIT, (node,), limit.bytes_s
        yield SLOW, (node,), limit.slow_intervals
    yield SUBSCRIPTIONS, (), shell.subscriptions.open_count
    yield LONG_POLLS, (), shell.reads.window.waits
    yield TAIL_CACHE, (), shell.subscriptions.tails.bytes
    yield LINKS, (), sum(shell.peers.is_up(node) for node in shell.cluster.servers)
    yield from by_label(UNREACHABLE, shell.peers.unreachable_s())
    yield INDEX, (), shell.cluster.image.index


# --- health ------------------------------------------------------------------------------------------


def reasons_not_ready(shell: GatewayShell, drain: Drain) -> Sequence[str]:
    """Return why this gateway is not ready for clients, one sentence for each reason: it is draining, or has no link
    to the active controller. An empty list if it is ready."""
    reasons = []
    if drain.begun.is_set():
        reasons.append("this gateway is ending")
    if shell.controllers.link is None:
        reasons.append("there is no link to the active controller")
    return reasons
