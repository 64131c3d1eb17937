"""How long ``tidelog why`` takes on a cluster with many partitions and groups.

    .venv/bin/python deploy/bench/why.py [--topics 10] [--partitions 100] [--groups 20] [--rounds 20] [--commands 5]

A cluster of real processes: one controller, three replica servers, one gateway. Every partition has a few records,
and every group a position in every partition, one record behind the end in the last topic. Each question is asked
``--rounds`` times by the function behind the command on a connected client, and ``--commands`` times by the command
in a process of its own. The table has the median and the worst time of both.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import click
import tidelog
import trio
from rich.console import Console
from tidelog.errors import TidelogError
from tidelog.explain.questions import answer_question, parse_question

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.cluster import running_cluster
from bench.harness.processes import end_with_sigterm, require_linux

CONSOLE = Console(highlight=False, soft_wrap=True)
RECORDS = 3
"""Records of each partition."""
QUESTIONS = ("t0/0@1", "group g0", "gap t0/0@3", "duplicate t0/0@0 t0/0@1", "slow t0")
"""The questions, besides that about a refusal, whose id comes from the cluster."""


async def fill(log: tidelog.Log, topics: int, partitions: int, groups: int) -> str:
    """Create the topics, their records and the groups' positions. Returns the id of a refusal."""
    names = [f"t{number}" for number in range(topics)]
    for name in names:
        await log.topics.create(name, partitions=partitions, replication_factor=3)
        async with log.producer(name) as producer:
            for partition in range(partitions):
                for number in range(RECORDS):
                    await producer.submit(bytes(100), key=f"k{number}".encode(), partition=partition)
            await producer.flush()
    for number in range(groups):
        for name in names:
            place = RECORDS if name != names[-1] else RECORDS - 1
            await log.groups.reset(f"g{number}", name, dict.fromkeys(range(partitions), place))
    try:
        await log.groups.describe("nobody")
    except TidelogError as error:
        return error.id
    raise click.ClickException("the cluster knows a group that nobody has made")


async def time_function(log: tidelog.Log, words: list[str]) -> float:
    """Ask a question on a connected client, and return the time in ms. Fails if something is not answered in time."""
    began = time.perf_counter()
    found = await answer_question(log, parse_question(words))
    taken = (time.perf_counter() - began) * 1000
    if late := [text for text in found.unknown if "no answer within" in text]:
        raise click.ClickException(f"{' '.join(words)}: {late[0]}")
    return taken


async def time_command(gateway: str, words: list[str]) -> float:
    """Ask a question by the command, and return the time from its start to its end in ms."""
    command = [sys.executable, "-m", "tidelog.cli", "why", *words, "-o", "json", "--gateway", gateway]
    began = time.perf_counter()
    await trio.run_process(command, capture_stdout=True)
    return (time.perf_counter() - began) * 1000


async def measure(gateway: str, topics: int, partitions: int, groups: int, rounds: int, commands: int) -> None:
    """Fill the cluster, ask each question, and print the table."""
    async with tidelog.connect(gateway) as log:
        began = time.perf_counter()
        refusal = await fill(log, topics, partitions, groups)
        CONSOLE.print(f"{topics * partitions} partitions, {groups} groups, in {time.perf_counter() - began:.1f} s\n")
        CONSOLE.print(f"load average {os.getloadavg()[0]:.0f} at the begin\n")
        CONSOLE.print("| question | median, ms | worst, ms | command, median, s | command, worst, s |")
        CONSOLE.print("|---|---|---|---|---|")
        for question in (*QUESTIONS, refusal):
            words = question.split()
            inside = [await time_function(log, words) for _ in range(rounds)]
            whole = [await time_command(gateway, words) / 1000 for _ in range(commands)]
            CONSOLE.print(
                f"| `{question}` | {statistics.median(inside):.0f} | {max(inside):.0f}"
                f" | {statistics.median(whole):.2f} | {max(whole):.2f} |"
            )
        CONSOLE.print(f"\nload average {os.getloadavg()[0]:.0f} at the end")


@click.command(help=__doc__)
@click.option("--topics", default=10, show_default=True)
@click.option("--partitions", default=100, show_default=True, help="Partitions of each topic.")
@click.option("--groups", default=20, show_default=True)
@click.option("--rounds", default=20, show_default=True)
@click.option("--commands", default=5, show_default=True, type=click.IntRange(min=1))
def main(topics: int, partitions: int, groups: int, rounds: int, commands: int) -> None:
    require_linux()
    end_with_sigterm()
    with running_cluster() as cluster:
        trio.run(measure, cluster.gateways()[0], topics, partitions, groups, rounds, commands)


if __name__ == "__main__":
    main()
