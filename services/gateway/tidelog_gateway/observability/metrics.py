"""The metrics of a gateway: a table of them, and how their values are computed when the page is requested.
``counters.py`` declares the counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tidelog.net.tls import TlsFiles
from tidelog.runtime.metrics import MetricsPage, RecentMetrics, metrics_answer
from tidelog.sansio.counters import Metric, Sample, by_label, metrics_of, samples
from tidelog.wire.messages import MetricsAnswer

from tidelog_gateway.clients.client_figures import ClientFigures
from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.clients.refused_clients import RefusedClients
from tidelog_gateway.counters import DeliveryCounts, ReadCounts, RequestCounts, RouterCounts
from tidelog_gateway.shell import GatewayShell

SHOWN = 20
"""Most principals that have a series of their own for their connections."""
CONNECTIONS = Metric("tidelog_gateway_connections", "gauge", "connections", "Clients that are connected.")
CONNECTIONS_LIMIT = Metric(
    "tidelog_gateway_connections_limit",
    "gauge",
    "connections",
    "Most clients that may be connected: client_max_connections. Further ones are refused.",
)
RESERVED_CONNECTIONS = Metric(
    "tidelog_gateway_reserved_connections",
    "gauge",
    "connections",
    "Reserved connections that operators use: at most operator_reserved_connections.",
)
PRINCIPAL_CONNECTIONS = Metric(
    "tidelog_gateway_principal_connections",
    "gauge",
    "connections",
    f"Clients that are connected, by principal; the {SHOWN} with the most.",
    ("principal",),
)
QUOTA_REFUSALS = Metric(
    "tidelog_gateway_quota_refusals",
    "counter",
    "refusals",
    "Requests, batches and credits of subscriptions that had to wait, and connections that were refused, since their"
    " principal had used up its quota of that rate.",
    ("principal", "rate"),
)
QUOTA_PAUSE = Metric(
    "tidelog_gateway_quota_pause_seconds",
    "gauge",
    "seconds",
    "How long the principal must wait now until it may go on, by rate; absent: its quota is not used up.",
    ("principal", "rate"),
)
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
    *(CONNECTIONS, CONNECTIONS_LIMIT, RESERVED_CONNECTIONS, PRINCIPAL_CONNECTIONS),
    *metrics_of(RefusedClients),
    *(QUOTA_REFUSALS, QUOTA_PAUSE),
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


def metrics_page(shell: GatewayShell, clients: ClientFigures, tls: TlsFiles | None) -> MetricsPage:
    """Return the metrics page of a gateway, which computes the values from the state of ``shell`` and ``clients`` at
    each request. ``tls``: its TLS files; None: it uses no TLS."""
    return MetricsPage(METRICS, lambda: _collect(shell, clients), tls)


def recent_metrics(shell: GatewayShell) -> RecentMetrics:
    """Return the times of acks, and the retries and waits of batches, of the last seconds, for ``tidelog why
    slow``."""
    counts = shell.router.counts
    return RecentMetrics(lambda: samples(counts, "acks", "retries", "holds"), shell.clock)


def described_metrics(
    page: MetricsPage, recent: RecentMetrics, clients: ClientFigures, wall_ms: Callable[[], int]
) -> MetricsAnswer:
    """Return the answer to ``describe_metrics``: the page, what was counted recently, and the clients that were
    refused lately."""
    return replace(metrics_answer(page, recent), refused=clients.refused.recent(wall_ms()))


def _collect(shell: GatewayShell, clients: ClientFigures) -> Iterator[Sample]:
    """Yield the present value of each metric of the table, with its labels."""
    router = shell.router
    yield CONNECTIONS_LIMIT, (), clients.most_connections
    yield RESERVED_CONNECTIONS, (), len(clients.reserve.links)
    for principal, number in clients.quotas.largest(SHOWN):
        yield PRINCIPAL_CONNECTIONS, (principal,), number
    yield from samples(clients.refused)
    for key, times in clients.quotas.refusals.items():
        yield QUOTA_REFUSALS, key, times
    for principal, rate, pause_s in clients.quotas.pauses(shell.clock()):
        yield QUOTA_PAUSE, (principal, rate), pause_s
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
