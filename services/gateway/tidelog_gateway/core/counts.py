"""What one gateway has done since it started, for its metrics; no rule goes by any of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.counting import LATENCIES_S, Histogram


def _latencies() -> Histogram:
    return Histogram(LATENCIES_S)


@dataclass(slots=True)
class RouterCounts:
    """What producers sent."""

    errors: dict[str, int]
    """Batches that were answered with an error, by its code."""
    batches: int = 0
    """Taken in; not those that were refused by sight."""
    records: int = 0
    bytes: int = 0
    acks: Histogram = field(default_factory=_latencies)
    """Seconds from a batch's arrival until its leader acked it."""
    retries: dict[str, int] = field(default_factory=dict)
    """Tries that failed and were followed by another, by the error's code."""

    def on_batch(self, records: int, size: int) -> None:
        """A batch was taken in."""
        self.batches += 1
        self.records += records
        self.bytes += size


@dataclass(slots=True)
class DeliveryCounts:
    """What subscriptions got."""

    reads: int = 0
    """Asked of replica servers, each for all subscriptions that share it."""
    deliveries: int = 0
    records: int = 0
    bytes: int = 0
    ages: Histogram = field(default_factory=_latencies)
    """Seconds from the first timestamp of a batch until it was delivered to one who had everything before it."""
    retries: dict[str, int] = field(default_factory=dict)
    """Reads that failed and were followed by another, by the error's code."""
    ended: dict[str, int] = field(default_factory=dict)
    """Subscriptions that were ended with an error, by its code."""

    def on_news(self, timestamps: list[int], wall_ms: int) -> None:
        """Batches with these timestamps (ms) were delivered to one who waited for them."""
        for timestamp in timestamps:
            self.ages.observe(max(0, wall_ms - timestamp) / 1000)
