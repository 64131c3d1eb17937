"""What a producer notices of consumers that catch up beside it.

    .venv/bin/python deploy/bench/catch_up.py [--consumers 16] [--rounds 3] [--seconds 12] [--megabytes 800]

A cluster of processes on this machine: a controller, three replica servers and a gateway. One topic of 25 partitions
holds records of 1,000 bytes. A client sends 50 records a second to another topic, acks ``all``. In each round it is
measured alone, and then beside the consumers. Each of these reads the first topic from its beginning and decodes
every record. They are one process of the lowest priority: otherwise they would take CPU from the servers that they do
not take where they run elsewhere.

A row has p50, p99 and the slowest ack (ms) alone and beside the consumers, the ratio of the two p99, and what the
consumers read (MB/s). Acks of the first second, in which all consumers start at once, are left out. The last line
says how often the gateway lost its link to a replica server, and how many records were not acked. ``--megabytes`` is
to be more than a consumer reads in the time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import tidelog
import trio
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.client.log import Log

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.bystander import Bystander
from bench.harness.cluster import running_cluster
from bench.harness.processes import end_with_sigterm

TOPIC, HISTORY = "healthy", "history"
PARTITIONS = 25
RECORD_BYTES = 1000
START_S = 1.0
"""Seconds from the start of the consumers until acks count."""


async def fill(log: Log, megabytes: int) -> None:
    """Create both topics, and fill the one to be read with this many megabytes."""
    await log.topics.create(TOPIC, partitions=1, replication_factor=3)
    await log.topics.create(HISTORY, partitions=PARTITIONS, replication_factor=3)
    async with log.producer(HISTORY) as producer:
        for number in range(megabytes * 1000):
            await producer.submit(os.urandom(RECORD_BYTES), partition=number // 100 % PARTITIONS)


async def consume(url: str, consumers: int, seconds: float) -> float:
    """Read with this many consumers for this many seconds, and return the MB/s of all together. Exits if there is too
    little to read."""
    read = 0

    async def catch_up() -> None:
        nonlocal read
        async with tidelog.connect([url]) as log:
            consumer = log.consume(HISTORY, start="earliest", end="latest")
            while records := await consumer.next_records():
                read += sum(len(record.value or b"") for record in records)
            raise SystemExit(f"{HISTORY} has too little to read: choose more --megabytes")

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(consumers):
                nursery.start_soon(catch_up)
    return read / 1e6 / seconds


async def measure(cluster: LocalCluster, consumers: int, rounds: int, seconds: float, megabytes: int) -> int:
    """Fill the topics and print a row for each round. Returns the number of records of the bystander that were not
    acked."""
    (url, *_) = cluster.gateways()
    bystander = Bystander(TOPIC)
    async with tidelog.connect([url]) as log:
        await fill(log, megabytes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander.produce, log)
            await trio.sleep(START_S)
            for _ in range(rounds):
                bystander.take_latencies()
                await trio.sleep(seconds)
                alone = bystander.take_latencies()
                rates: list[float] = []
                async with trio.open_nursery() as beside:
                    beside.start_soon(_consume_elsewhere, url, consumers, seconds + START_S, rates)
                    await trio.sleep(START_S)
                    bystander.take_latencies()
                    await trio.sleep(seconds)
                    both = bystander.take_latencies()
                p50s, p99s, slowest = ((f"{one:.1f}", f"{other:.1f}") for one, other in zip(alone, both, strict=True))
                figures = (*p50s, *p99s, *slowest, f"{both[1] / alone[1]:.1f}", f"{rates[0]:.0f}")
                print(f"| {' | '.join(figures)} |", flush=True)
            nursery.cancel_scope.cancel()
    failed: int = bystander.failed
    return failed


async def _consume_elsewhere(url: str, consumers: int, seconds: float, rates: list[float]) -> None:
    command = ["nice", "-n", "19", sys.executable, __file__, "--consume", url, str(consumers), str(seconds)]
    ran = await trio.run_process(command, capture_stdout=True)
    rates.append(float(ran.stdout))


@click.command(help=__doc__)
@click.option("--consumers", default=16, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=12.0, show_default=True, help="Length of each half of a round.")
@click.option(
    "--megabytes", default=800, show_default=True, type=click.IntRange(1), help="Size of the topic that is read."
)
def main(consumers: int, rounds: int, seconds: float, megabytes: int) -> None:
    """Start a cluster, print a row for each round, and stop it."""
    end_with_sigterm()
    print("| p50 alone | beside | p99 alone | beside | slowest alone | beside | ratio of p99 | MB/s |")
    print("|---|---|---|---|---|---|---|---|")
    with running_cluster() as cluster:
        failed = trio.run(measure, cluster, consumers, rounds, seconds, megabytes)
        broken = Path(cluster.get("g1").log).read_text().count('"peer_failed"')
    print(f"links that broke: {broken}, records without an ack: {failed}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--consume"]:
        print(trio.run(consume, sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
    else:
        main()
