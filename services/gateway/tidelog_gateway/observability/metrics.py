"""The metrics of a gateway: a table of them, and how their values are read when the page is requested."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.runtime.metrics import Metric, MetricsPage, Sample, by_label

from tidelog_gateway.shell import GatewayShell

CONNECTIONS = Metric("tidelog_gateway_connections", "gauge", "connections", "Clients that are connected.")
REQUESTS = Metric("tidelog_gateway_requests", "counter", "requests", "Messages of clients, by op.", ("op",))
BATCHES_IN = Metric(
    "tidelog_gateway_produced_batches", "counter", "batches", "Batches of clients, but for those refused by sight."
)
RECORDS_IN = Metric("tidelog_gateway_produced_records", "counter", "records", "Records in them.")
BYTES_IN = Metric("tidelog_gateway_produced_bytes", "counter", "bytes", "Their size.")
LATENCY = Metric(
    "tidelog_gateway_produce_latency_seconds",
    "histogram",
    "seconds",
    "From a batch's arrival until its leader's ack arrived, retries included; batches that were acked.",
)
ERRORS = Metric(
    "tidelog_gateway_produce_errors",
    "counter",
    "errors",
    "Batches answered with an error, by its code; OVERLOADED: the client, or all, have too much in flight.",
    ("code",),
)
RETRIES = Metric(
    "tidelog_gateway_produce_retries",
    "counter",
    "tries",
    "Tries that failed and were followed by another, unseen by the client; by the error's code.",
    ("code",),
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
HOLDS = Metric(
    "tidelog_gateway_throttle_holds",
    "counter",
    "waits",
    "Times that batches of one client for one partition waited here, since their principal had used up its share of a"
    " slow server.",
    ("principal",),
)
THROTTLES = Metric(
    "tidelog_gateway_throttled_acks",
    "counter",
    "acks",
    "Acks that asked their client to pause, since its principal had used up its share of a slow server.",
    ("principal",),
)
THROTTLE_TIME = Metric(
    "tidelog_gateway_throttle_time_seconds",
    "counter",
    "seconds",
    "The pauses that acks asked for because of slow servers, added up.",
    ("principal",),
)
IN_FLIGHT = Metric("tidelog_gateway_in_flight_batches", "gauge", "batches", "Batches that leaders have yet to ack.")
HELD = Metric("tidelog_gateway_held_bytes", "gauge", "bytes", "Batches that are held until they are acked.")
SUBSCRIPTIONS = Metric("tidelog_gateway_subscriptions", "gauge", "subscriptions", "Open subscriptions.")
READS = Metric(
    "tidelog_gateway_subscription_reads", "counter", "reads", "Asked of replica servers for subscriptions."
)
READ_QUEUE = Metric(
    "tidelog_gateway_queued_reads",
    "counter",
    "reads",
    "Reads and look-ups of offsets that waited here, since answers to others were on their way from the replica"
    " server (server_max_read_bytes).",
)
LONG_POLLS = Metric(
    "tidelog_gateway_long_polls",
    "gauge",
    "requests",
    "Requests that replica servers keep until there is news, each for all clients who wait for the same.",
)
TAIL_CACHE = Metric(
    "tidelog_gateway_tail_cache_bytes", "gauge", "bytes", "Newest batches of partitions, kept for their subscribers."
)
DELIVERIES = Metric("tidelog_gateway_deliveries", "counter", "messages", "Deliveries with data to subscriptions.")
RECORDS_OUT = Metric("tidelog_gateway_delivered_records", "counter", "records", "Records in them.")
BYTES_OUT = Metric("tidelog_gateway_delivered_bytes", "counter", "bytes", "Their size.")
AGES = Metric(
    "tidelog_gateway_end_to_end_latency_seconds",
    "histogram",
    "seconds",
    "From a batch's first timestamp, of its producer's clock, until it went to a subscription that waited for it,"
    " by the clock here: end-to-end latency.",
)
READ_RETRIES = Metric(
    "tidelog_gateway_read_retries",
    "counter",
    "tries",
    "Reads for subscriptions that failed and were followed by another, by the error's code.",
    ("code",),
)
ENDED = Metric(
    "tidelog_gateway_ended_subscriptions",
    "counter",
    "subscriptions",
    "Subscriptions that were ended with an error, by its code.",
    ("code",),
)
LINKS = Metric("tidelog_gateway_replica_links", "gauge", "connections", "Replica servers that it is connected to.")
INDEX = Metric("tidelog_gateway_metadata_index", "gauge", "index", "Last Raft entry whose metadata it has.")

METRICS = (
    *(CONNECTIONS, REQUESTS, BATCHES_IN, RECORDS_IN, BYTES_IN, LATENCY, ERRORS, RETRIES, IN_FLIGHT, HELD),
    *(LIMIT, SLOW, HOLDS, THROTTLES, THROTTLE_TIME),
    *(READ_QUEUE, LONG_POLLS),
    *(SUBSCRIPTIONS, READS, TAIL_CACHE, DELIVERIES, RECORDS_OUT, BYTES_OUT, AGES, READ_RETRIES, ENDED, LINKS, INDEX),
)


def metrics_page(shell: GatewayShell) -> MetricsPage:
    """The page of one gateway."""
    return MetricsPage(METRICS, lambda: _collect(shell))


def _collect(shell: GatewayShell) -> Iterator[Sample]:
    router, produced = shell.router, shell.router.counts
    yield CONNECTIONS, (), shell.connections
    yield from by_label(REQUESTS, shell.requests)
    yield BATCHES_IN, (), produced.batches
    yield RECORDS_IN, (), produced.records
    yield BYTES_IN, (), produced.bytes
    yield LATENCY, (), produced.acks
    yield from by_label(ERRORS, produced.errors)
    yield from by_label(RETRIES, produced.retries)
    yield IN_FLIGHT, (), router.in_flight
    yield HELD, (), router.held_bytes
    for node, limit in router.limits.items():
        if limit.bytes_s is not None:
            yield LIMIT, (node,), limit.bytes_s
        yield SLOW, (node,), limit.slow_intervals
    yield from by_label(HOLDS, produced.holds)
    yield from by_label(THROTTLES, produced.throttles)
    yield from by_label(THROTTLE_TIME, produced.throttle_s)
    delivered = shell.subscriptions.counts
    yield SUBSCRIPTIONS, (), shell.subscriptions.open_count
    yield READS, (), delivered.reads
    yield READ_QUEUE, (), shell.reads.queued
    yield LONG_POLLS, (), shell.reads.window.waits
    yield TAIL_CACHE, (), shell.subscriptions.tails.bytes
    yield DELIVERIES, (), delivered.deliveries
    yield RECORDS_OUT, (), delivered.records
    yield BYTES_OUT, (), delivered.bytes
    yield AGES, (), delivered.ages
    yield from by_label(READ_RETRIES, delivered.retries)
    yield from by_label(ENDED, delivered.ended)
    yield LINKS, (), sum(shell.peers.is_up(node) for node in shell.cluster.servers)
    yield INDEX, (), shell.cluster.image.index
