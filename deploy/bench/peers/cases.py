"""The cases that are measured, and their sizes. docs/lab/peers.md says what is equal between the products and what
cannot be.

Clients keep their defaults, but for what ``OPTIONS`` says under a case's ``options``:

- ``tuned`` is what one changes first for throughput: larger batches, more time to fill them. nats-py does not
  batch, but may have more in flight; Liftbridge has neither.
- ``prompt`` is what one changes for latency. librdkafka waits 5 ms for more records even when nothing else is sent;
  the others send a record that comes alone at once, so they have nothing to change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "tidelog_client": {"batch_bytes": 1 << 20, "linger_s": 0.02, "buffer_bytes": 64 << 20},
        "kafka": {"linger.ms": 20, "batch.size": 1 << 20, "queue.buffering.max.messages": 500_000},
        "jetstream": {"publish_async_max_pending": 16_000},
    },
    "prompt": {"kafka": {"linger.ms": 0}},
}
"""Settings of the clients, by the ``options`` of a case and by client."""
PARTITIONS = 3
"""Partitions of the cases for throughput, so that every server leads some."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, which gives one row or several of the table: its ``title``, then the figure's name. Sizes in bytes,
    times in seconds."""

    name: str
    title: str
    do: str
    """The function of run_case.py that runs the case; or ``tool`` or ``idle``, which the driver runs itself."""
    topic: str = ""
    """The case whose records are read; "" if the case has a topic of its own."""
    options: str = ""
    partitions: int = 1
    size: int = 100
    seconds: float = 0.0
    records: int = 0
    subscribers: int = 0
    rate: float = 0.0

    def is_for(self, client: str) -> bool:
        """Return whether the case is measured with this client: it has options to change, or needs none."""
        return not self.options or self.options in ("prompt",) or client in OPTIONS[self.options]

    def options_of(self, client: str) -> dict[str, Any]:
        """Return the settings that the client gets for this case; empty if it keeps its defaults."""
        return OPTIONS[self.options].get(client, {}) if self.options else {}


def _produce(name: str, title: str, size: int, options: str = "") -> Case:
    return Case(name, title, "produce", options=options, partitions=PARTITIONS, size=size, seconds=5.0)


def _tool(name: str, title: str, size: int, records: int, options: str = "") -> Case:
    return Case(name, title, "tool", options=options, partitions=PARTITIONS, size=size, records=records)


CASES = (
    Case("start", "start to the first ack", "start", records=1),
    _produce("produce-100", "produce 100 B", 100),
    _produce("produce-1k", "produce 1 KiB", 1 << 10),
    _produce("produce-10k", "produce 10 KiB", 10 << 10),
    _produce("produce-1k-tuned", "produce 1 KiB, tuned", 1 << 10, "tuned"),
    _tool("tool-100", "own tool, 100 B", 100, 1_000_000),
    _tool("tool-1k", "own tool, 1 KiB", 1 << 10, 100_000),
    _tool("tool-10k", "own tool, 10 KiB", 10 << 10, 10_000),
    _tool("tool-1k-tuned", "own tool, 1 KiB, tuned", 1 << 10, 100_000, "tuned"),
    Case("consume", "consume 1 KiB", "consume", topic="produce-1k", partitions=PARTITIONS, size=1 << 10),
    Case("latency", "single record", "latency", records=2_200),
    Case("latency-prompt", "single record, prompt", "latency", options="prompt", records=2_200),
    Case("end-to-end", "end to end", "fan_out", options="prompt", records=1_000, subscribers=1, rate=100),
    Case("fan-out", "fan-out to 100", "fan_out", options="prompt", records=100, subscribers=100, rate=20),
    Case("idle", "idle", "idle", seconds=15.0),
    Case("failover", "kill -9 of the leader: no ack for", "failover"),
)
"""All cases, in their order on one cluster: the first needs a new cluster, the last leaves it with a server less."""

QUICK_DIVIDES = 20


def quick(case: Case) -> Case:
    """Return the case with small counts, to see that it runs."""
    return replace(
        case,
        seconds=case.seconds / 5,
        records=max(1, case.records // QUICK_DIVIDES),
        subscribers=min(case.subscribers, 10),
    )
