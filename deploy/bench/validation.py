"""What the gateway's check of batches costs: the produce path with the topic setting ``validate_batches`` on and off.

    .venv/bin/python deploy/bench/validation.py [--rounds 30] [--seconds 2] [--case NAME] [--encode] [--json FILE]

One cluster of real processes has two topics for each case, which differ in that setting alone. A round sends the same
batch to both, one after the other; the next round begins with the other one. So the two halves of a pair are seconds
apart. Every message holds one batch; replication factor 3, acks ``all``, loopback. The client sends a batch that it
built before, or with ``--encode`` builds each one from its records, as producers must.

The figure is the ratio of sums: the CPU time per batch of all processes (client, gateway, replica servers,
controller) over all rounds with the check, divided by that without. The CPU time per MB has the same ratio, since the
batches are the same. CPU time comes from /proc in ticks of 10 ms, so a case needs some seconds in all. A busy machine
disturbs the rates more than the CPU time, and both halves of a pair alike.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import click
import tidelog
import trio
from rich.console import Console
from rich.table import Table
from tidelog.batch.body import Codec
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.local.local_cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.cluster import new_cluster
from bench.harness.processes import end_with_sigterm, require_linux
from bench.harness.rows import CONSOLE, machine
from bench.throughput import PARTITIONS, send_batches

CODECS: tuple[tuple[Codec, tuple[tuple[int, int], ...]], ...] = (
    ("none", ((16 << 10, 1024), (128 << 10, 1024), (16 << 10, 100))),
    ("zstd", ((16 << 10, 100), (16 << 10, 1024), (128 << 10, 100), (128 << 10, 1024))),
    ("lz4", ((16 << 10, 100), (16 << 10, 1024), (128 << 10, 100), (128 << 10, 1024))),
)
"""(codec, ((bytes of values in a batch before compression, bytes of a value), …)) of all cases."""
SHAPES = {
    f"{codec}-{size >> 10}k-{record}": (codec, size, record) for codec, sizes in CODECS for size, record in sizes
}
"""Case -> (codec, bytes of values in a batch before compression, bytes of a value)."""
IN_FLIGHT = {16 << 10: 64, 128 << 10: 16}
"""Bytes of values in a batch -> number of batches in flight."""
_WORDS = ("order", "customer", "amount", "currency", "EUR", "shipped", "pending", "street", "article", "quantity")


@dataclass(frozen=True, slots=True)
class Sample:
    """The measurement of one half of a round. ``cpu_s``: CPU seconds by process."""

    batches: int
    seconds: float
    cpu_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of a case with one value of the setting, over all its rounds."""

    gateway_ms_per_mb: float
    all_ms_per_mb: float
    all_us_per_batch: float
    mb_per_s: float


def compressible(size: int, rng: random.Random) -> bytes:
    """Return a value like a line of JSON, with few words and some digits. zstd and lz4 make about a third of it."""
    text = ""
    while len(text) < size:
        text += f'"{rng.choice(_WORDS)}": {rng.randrange(10_000)}, '
    return text[:size].encode()


def records_of(codec: Codec, size: int, record_bytes: int) -> list[NewRecord]:
    """Return records with ``size`` bytes of values: random ones for the codec ``none``, compressible ones
    otherwise."""
    rng = random.Random(size + record_bytes)
    count = size // record_bytes
    values = [
        rng.randbytes(record_bytes) if codec == "none" else compressible(record_bytes, rng) for _ in range(count)
    ]
    return [NewRecord(value, timestamp_ms=0) for value in values]


def cost(samples: Iterable[Sample], value_bytes: int) -> Cost:
    """Return the costs of these samples. ``value_bytes``: bytes of the values in one batch."""
    chosen = list(samples)
    batches = sum(sample.batches for sample in chosen)
    mb = batches * value_bytes / 1e6
    gateway = sum(sample.cpu_s["g1"] for sample in chosen)
    everything = sum(sum(sample.cpu_s.values()) for sample in chosen)
    seconds = sum(sample.seconds for sample in chosen)
    return Cost(gateway * 1e3 / mb, everything * 1e3 / mb, everything * 1e6 / batches, mb / seconds)


def pair_ratios(checked: list[Sample], trusted: list[Sample]) -> list[float]:
    """Return for each round the CPU time per batch of all processes with the check, divided by that without."""
    return [
        (sum(one.cpu_s.values()) / one.batches) / (sum(other.cpu_s.values()) / other.batches)
        for one, other in zip(checked, trusted, strict=True)
    ]


async def create(cluster: LocalCluster, name: str, flush: str, validate: bool) -> str:
    """Create the topic of a case with this value of the setting, and return its name."""
    topic = f"{name}-{'checked' if validate else 'trusted'}"
    config = {"flush": flush, "max_batch_bytes": str(2 << 20), "validate_batches": str(validate).lower()}
    async with tidelog.connect(cluster.gateways()) as log:
        await log.topics.create(topic, partitions=PARTITIONS, replication_factor=3, config=config)
    return topic


async def sample(
    cluster: LocalCluster, topic: str, encode: Callable[[], bytes], window: int, seconds: float
) -> Sample:
    """Send batches for this many seconds, and return the measurement."""
    batches, took, _, cores = await send_batches(cluster, topic, encode, window, lambda _, passed: passed >= seconds)
    return Sample(batches, took, {name: used * took for name, used in cores.items()})


async def measure(
    cluster: LocalCluster, name: str, flush: str, rounds: int, seconds: float, anew: bool
) -> tuple[list[Sample], list[Sample]]:
    """Run all rounds of a case, and return the samples with the check, and those without. ``anew``: the client
    encodes each batch."""
    codec, size, record_bytes = SHAPES[name]
    encode = partial(encode_batch, records_of(codec, size, record_bytes), codec=codec)
    if not anew:
        batch = encode()
        encode = lambda: batch  # noqa: E731
    topics = {validate: await create(cluster, name, flush, validate) for validate in (True, False)}
    found: dict[bool, list[Sample]] = {True: [], False: []}
    for validate in topics:  # the first batches of a topic are no measure
        await sample(cluster, topics[validate], encode, IN_FLIGHT[size], min(seconds, 0.5))
    for number in range(rounds):
        for validate in (number % 2 == 0, number % 2 == 1):
            found[validate].append(await sample(cluster, topics[validate], encode, IN_FLIGHT[size], seconds))
    async with tidelog.connect(cluster.gateways()) as log:
        for topic in topics.values():
            await log.topics.delete(topic)
    return found[True], found[False]


async def run(
    cluster: LocalCluster, names: list[str], flush: str, rounds: int, seconds: float, anew: bool
) -> dict[str, tuple[list[Sample], list[Sample]]]:
    """Start the cluster, run the chosen cases one after the other, and return the samples of each with and without
    the check."""
    cluster.start()
    await cluster.wait_ready()
    results = {}
    for name in names:
        results[name] = await measure(cluster, name, flush, rounds, seconds, anew)
        CONSOLE.print(f"{name} is done")
    return results


def table(results: dict[str, tuple[list[Sample], list[Sample]]]) -> Table:
    """Return a table with a line for each case, as "without the check -> with it"."""
    made = Table("case", "gateway ms/MB", "all ms/MB", "all µs/batch", "MB/s", "all: ratio", "median pair", box=None)
    for name, (checked, trusted) in results.items():
        _, size, record_bytes = SHAPES[name]
        value_bytes = size // record_bytes * record_bytes
        on, off = cost(checked, value_bytes), cost(trusted, value_bytes)
        made.add_row(
            name,
            f"{off.gateway_ms_per_mb:.2f} -> {on.gateway_ms_per_mb:.2f}",
            f"{off.all_ms_per_mb:.2f} -> {on.all_ms_per_mb:.2f}",
            f"{off.all_us_per_batch:.0f} -> {on.all_us_per_batch:.0f}",
            f"{off.mb_per_s:.1f} -> {on.mb_per_s:.1f}",
            f"{on.all_us_per_batch / off.all_us_per_batch:.3f}",
            f"{median(pair_ratios(checked, trusted)):.3f}",
        )
    return made


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=30, show_default=True, help="Pairs of each case.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Length of a half of a round.")
@click.option("--flush", type=click.Choice(["fsync", "interval", "os"]), default="os", show_default=True)
@click.option("--case", "names", type=click.Choice(list(SHAPES)), multiple=True, help="Only these.")
@click.option("--encode", "anew", is_flag=True, help="The client encodes each batch anew.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all samples here too.")
def main(rounds: int, seconds: float, flush: str, names: tuple[str, ...], anew: bool, json_file: Path | None) -> None:
    """Measure what the gateway's check of batches costs, a topic with it beside a topic without it, and print the
    table."""
    require_linux()
    end_with_sigterm()
    with new_cluster() as cluster:
        results = trio.run(run, cluster, list(names or SHAPES), flush, rounds, seconds, anew)
    built = "encoded anew" if anew else "built before"
    load = os.getloadavg()[0]
    CONSOLE.print(f"batches {built}, flush {flush}, {rounds} rounds of {seconds:g} s; load {load:.1f}; {machine()}")
    Console(highlight=False, width=max(CONSOLE.width, 140)).print(table(results))
    if json_file:
        document = {
            name: {"checked": [asdict(s) for s in checked], "trusted": [asdict(s) for s in trusted]}
            for name, (checked, trusted) in results.items()
        }
        json_file.write_text(json.dumps({"machine": machine(), "cases": document}, indent=2) + "\n")


if __name__ == "__main__":
    main()
