"""Counters of one gateway since its start. They are for the metrics; no decision depends on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.sansio.counters import LATENCIES_S, Histogram, count


def _latencies() -> Histogram:
    return Histogram(LATENCIES_S)


@dataclass(slots=True)
class RouterCounts:
    """Counters of produced batches."""

    errors: dict[str, int]
    """Batches that were answered with an error, by its code."""
    batches: int = 0
    """Batches that were queued; those that were refused on arrival do not count."""
    records: int = 0
    bytes: int = 0
    acks: Histogram = field(default_factory=_latencies)
    """Seconds from a batch's arrival until its leader acked it."""
    retries: dict[str, int] = field(default_factory=dict)
    """Tries that failed and were followed by another, by the error's code."""
    holds: dict[str, int] = field(default_factory=dict)
    """Times that batches of one client for one partition waited because their principal's share of a slow server was
    used up, by principal."""
    throttles: dict[str, int] = field(default_factory=dict)
    """Acks that asked the client to pause, by principal."""
    throttle_s: dict[str, float] = field(default_factory=dict)
    """The sum of these pauses, by principal."""

    def on_throttle(self, principal: str, pause_ms: int) -> None:
        """Count an ack that asks its client to pause for ``pause_ms``."""
        count(self.throttles, principal)
        self.throttle_s[principal] = self.throttle_s.get(principal, 0.0) + pause_ms / 1000

    def on_batch(self, records: int, size: int) -> None:
        """Count a queued batch of ``size`` bytes."""
        self.batches += 1
        self.records += records
        self.bytes += size


@dataclass(slots=True)
class DeliveryCounts:
    """Counters of subscriptions."""

    reads: int = 0
    """Reads sent to replica servers; a read that several subscriptions share counts once."""
    deliveries: int = 0
    records: int = 0
    bytes: int = 0
    ages: Histogram = field(default_factory=_latencies)
    """Seconds from the first timestamp of a batch until it was delivered to a subscription that waited for it."""
    retries: dict[str, int] = field(default_factory=dict)
    """Reads that failed and were followed by another, by the error's code."""
    ended: dict[str, int] = field(default_factory=dict)
    """Subscriptions that were ended with an error, by its code."""

    def on_new_records(self, timestamps: list[int], wall_ms: int) -> None:
        """Observe the age of delivered batches with these first timestamps (ms) at ``wall_ms``."""
        for timestamp in timestamps:
            self.ages.observe(max(0, wall_ms - timestamp) / 1000)
