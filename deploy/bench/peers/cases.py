"""The cases that are measured, and their sizes. docs/lab/peers.md says what is equal between the products and what
cannot be.

Clients keep their defaults, but for what ``OPTIONS`` says under a case's ``options``:

- ``tuned`` is what one changes first for throughput: larger batches, more time to fill them. nats-py does not
  batch; it may have more or less in flight, which makes no difference. Liftbridge has neither.
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
        "jetstream": {"publish_async_max_pending": 2_000},
    },
    "prompt": {"kafka": {"linger.ms": 0}},
}
"""Settings of the clients, by the ``options`` of a case and by client."""
PARTITIONS = 3
"""Partitions of the cases for throughput, so that every server leads some."""
MOST_SUBSCRIBERS: dict[str, tuple[int, str]] = {
    "kafka": (4_000, "7 threads and 13 descriptors for each consumer"),
}
"""Most subscribers that this machine can hold of a client, with the reason; of the others it holds all of every
case. docs/lab/peers.md says how this was found."""
WIDE_ROUNDS = 2
"""Rounds with very many subscribers: they take a third of a round's time."""
WITHOUT_TOOL = {"liftbridge"}
"""Clients whose makers publish no tool for load."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case, which gives one row or several of the table: its ``title``, then the figure's name. Sizes in bytes,
    times in seconds."""

    name: str
    title: str
    do: str
    """The function of run_case.py that runs the case; or ``tool``, ``idle`` or ``wide_fan_out``, which the driver
    runs itself."""
    topic: str = ""
    """The case whose records are read; "" if the case has a topic of its own."""
    options: str = ""
    partitions: int = 1
    size: int = 100
    seconds: float = 0.0
    records: int = 0
    subscribers: int = 0
    processes: int = 1
    """Number of processes of subscribers. Cases with several have a cluster of their own, so that what so many
    subscribers leave behind is in no other case."""
    rate: float = 0.0
    limit_s: float = 60.0
    """Time after which the case has failed."""
    rounds: int | None = None
    """Number of rounds, the first ones, in which the case is run; None: in all."""

    def obstacle(self, client: str) -> str:
        """Return why the case cannot be measured with this client; "" if it can."""
        if self.do == "tool":
            return "no tool" if client in WITHOUT_TOOL else ""
        if self.options == "tuned" and client not in OPTIONS["tuned"]:
            return "nothing to tune"
        most, reason = MOST_SUBSCRIBERS.get(client, (self.subscribers, ""))
        return reason if self.subscribers > most else ""

    def is_in(self, number: int) -> bool:
        """Return whether the case is run in this round, counted from 0."""
        return self.rounds is None or number < self.rounds

    def options_of(self, client: str) -> dict[str, Any]:
        """Return the settings that the client gets for this case; empty if it keeps its defaults."""
        return OPTIONS[self.options].get(client, {}) if self.options else {}


def _produce(name: str, title: str, size: int, options: str = "") -> Case:
    return Case(name, title, "produce", options=options, partitions=PARTITIONS, size=size, seconds=3.0)


def _tool(name: str, title: str, size: int, records: int, options: str = "") -> Case:
    return Case(
        name, title, "tool", options=options, partitions=PARTITIONS, size=size, records=records, limit_s=120.0
    )


def _wide(subscribers: int, records: int, rate: float, limit_s: float) -> Case:
    return Case(
        f"fan-out-{subscribers}",
        f"fan-out to {subscribers:,}",
        "wide_fan_out",
        options="prompt",
        subscribers=subscribers,
        processes=2,
        records=records,
        rate=rate,
        limit_s=limit_s,
        rounds=WIDE_ROUNDS,
    )


CASES = (
    Case("start", "start to the first ack", "start", records=1, limit_s=150.0),
    _produce("produce-100", "produce 100 B", 100),
    _produce("produce-1k", "produce 1 KiB", 1 << 10),
    _produce("produce-10k", "produce 10 KiB", 10 << 10),
    _produce("produce-1k-tuned", "produce 1 KiB, tuned", 1 << 10, "tuned"),
    _tool("tool-100", "own tool, 100 B", 100, 500_000),
    _tool("tool-100-tuned", "own tool, 100 B, tuned", 100, 500_000, "tuned"),
    _tool("tool-1k", "own tool, 1 KiB", 1 << 10, 100_000),
    _tool("tool-1k-tuned", "own tool, 1 KiB, tuned", 1 << 10, 200_000, "tuned"),
    _tool("tool-10k", "own tool, 10 KiB", 10 << 10, 10_000),
    _tool("tool-10k-tuned", "own tool, 10 KiB, tuned", 10 << 10, 30_000, "tuned"),
    Case("consume", "consume 1 KiB", "consume", topic="produce-1k", partitions=PARTITIONS, size=1 << 10),
    Case("latency", "single record", "latency", records=2_200),
    Case("latency-prompt", "single record, prompt", "latency", options="prompt", records=2_200),
    Case("end-to-end", "end to end", "fan_out", options="prompt", records=600, subscribers=1, rate=100),
    Case("fan-out", "fan-out to 100", "fan_out", options="prompt", records=60, subscribers=100, rate=20),
    _wide(1_000, records=20, rate=2.0, limit_s=120.0),
    _wide(10_000, records=6, rate=0.25, limit_s=240.0),
    Case("idle", "idle", "idle", seconds=5.0),
    Case("failover", "kill -9 of the leader: no ack for", "failover", limit_s=180.0),
)
"""All cases, in the order of the table, which is also their order on a cluster: the first needs a new cluster, the
last leaves it with a server less."""

QUICK_DIVIDES = 20


def quick(case: Case) -> Case:
    """Return the case with small counts, to see that it runs."""
    return replace(
        case,
        seconds=case.seconds / 5,
        records=max(1, case.records // QUICK_DIVIDES),
        subscribers=min(case.subscribers, 10 * case.processes),
    )
