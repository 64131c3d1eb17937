"""Counters of one gateway since its start. They are for the metrics; no decision depends on them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.sansio.counters import Histogram, count, counter, histogram


@dataclass(slots=True)
class RequestCounts:
    """A counter, by type, of the messages that clients have sent to a gateway since its start, for its metrics."""

    requests: dict[str, int] = counter("tidelog_gateway_requests", "requests", "Messages of clients, by op.", "op")


@dataclass(slots=True)
class RouterCounts:
    """Counters of produced batches, their acks, retries and pauses, for the metrics of a gateway."""

    batches: int = counter(
        "tidelog_gateway_produced_batches", "batches", "Batches of clients, but for those refused by sight."
    )
    records: int = counter("tidelog_gateway_produced_records", "records", "Records in them.")
    bytes: int = counter("tidelog_gateway_produced_bytes", "bytes", "Their size.")
    acks: Histogram = histogram(
        "tidelog_gateway_produce_latency_seconds",
        "From a batch's arrival until its leader's ack arrived, retries included; batches that were acked.",
    )
    errors: dict[str, int] = counter(
        "tidelog_gateway_produce_errors",
        "errors",
        "Batches answered with an error, by its code; OVERLOADED: the client, or all, have too much in flight.",
        "code",
    )
    retries: dict[str, int] = counter(
        "tidelog_gateway_produce_retries",
        "tries",
        "Tries that failed and were followed by another, unseen by the client; by the error's code.",
        "code",
    )
    holds: dict[str, int] = counter(
        "tidelog_gateway_throttle_holds",
        "waits",
        "Times that batches of one client for one partition waited here, since their principal had used up its share"
        " of a slow server.",
        "principal",
    )
    throttles: dict[str, int] = counter(
        "tidelog_gateway_throttled_acks",
        "acks",
        "Acks that asked their client to pause, since its principal had used up its share of a slow server.",
        "principal",
    )
    throttle_s: dict[str, float] = counter(
        "tidelog_gateway_throttle_time_seconds",
        "seconds",
        "The pauses that acks asked for because of slow servers, added up.",
        "principal",
    )

    def on_throttle(self, principal: str, pause_ms: int) -> None:
        """Count an ack that asks the principal's client to pause for ``pause_ms``, and add the pause to the
        principal's total."""
        count(self.throttles, principal)
        self.throttle_s[principal] = self.throttle_s.get(principal, 0.0) + pause_ms / 1000

    def on_batch(self, records: int, size: int) -> None:
        """Count a queued batch with ``records`` records and ``size`` bytes."""
        self.batches += 1
        self.records += records
        self.bytes += size


@dataclass(slots=True)
class ReadCounts:
    """Counter of the reads and offset look-ups that had to wait in the gateway because answers to others were still
    on their way from the replica server. Those that are sent at once are not counted."""

    queued: int = counter(
        "tidelog_gateway_queued_reads",
        "reads",
        "Reads and look-ups of offsets that waited here, since answers to others were on their way from the replica"
        " server (server_max_read_bytes).",
    )


@dataclass(slots=True)
class DeliveryCounts:
    """Counters of the subscriptions of a gateway and of what was delivered to them, for its metrics."""

    reads: int = counter("tidelog_gateway_subscription_reads", "reads", "Asked of replica servers for subscriptions.")
    """A read that several subscriptions share counts once."""
    deliveries: int = counter("tidelog_gateway_deliveries", "messages", "Deliveries with data to subscriptions.")
    records: int = counter("tidelog_gateway_delivered_records", "records", "Records in them.")
    bytes: int = counter("tidelog_gateway_delivered_bytes", "bytes", "Their size.")
    ages: Histogram = histogram(
        "tidelog_gateway_end_to_end_latency_seconds",
        "From a batch's first timestamp, of its producer's clock, until it went to a subscription that waited for it,"
        " by the clock here: end-to-end latency.",
    )
    retries: dict[str, int] = counter(
        "tidelog_gateway_read_retries",
        "tries",
        "Reads for subscriptions that failed and were followed by another, by the error's code.",
        "code",
    )
    ended: dict[str, int] = counter(
        "tidelog_gateway_ended_subscriptions",
        "subscriptions",
        "Subscriptions that were ended with an error, by its code.",
        "code",
    )

    def on_new_records(self, timestamps: list[int], wall_ms: int) -> None:
        """Add the age of each delivered batch to the histogram of end-to-end latency. The age is ``wall_ms`` minus
        the batch's first timestamp (both in milliseconds since 1970), at least 0."""
        for timestamp in timestamps:
            self.ages.observe(max(0, wall_ms - timestamp) / 1000)
