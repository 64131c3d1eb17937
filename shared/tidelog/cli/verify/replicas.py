"""``tidelog verify replicas``: whether the replicas of each partition hold the same."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tidelog.cli.completion import topic_names
from tidelog.cli.explain import partition_of
from tidelog.cli.main import connect, gateway_option, json_option, print_json, run
from tidelog.client.comparing import Comparison
from tidelog.client.log import Log
from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import MetadataAnswer, TopicInfo

AT_ONCE = 8
"""Partitions that are compared at a time."""

Found = tuple[TopicInfo, int, Comparison]


@click.command()
@click.argument("where", nargs=-1, metavar="[TOPIC[/PARTITION]]...", shell_complete=topic_names)
@json_option
@gateway_option
def replicas(where: tuple[str, ...], as_json: bool, gateways: tuple[str, ...]) -> None:
    """Compare the logs of all live replicas of each partition: by their hash chains, of the topics or partitions
    named, or of all. The first offset from which on replicas differ is named, with both sides.

    Exit code 0: all that could be compared is the same, and every live replica answered."""

    async def task() -> list[Found]:
        async with connect(gateways) as log:
            metadata = await log.status()
            return await _compare_all(log, metadata, list(_chosen(metadata, where)))

    found = run(task)
    if as_json:
        print_json([_as_json(*one) for one in found])
    else:
        _print(found)
    if any(result.difference or result.unasked for _, _, result in found):
        sys.exit(1)


def _chosen(metadata: MetadataAnswer, where: tuple[str, ...]) -> Iterable[tuple[TopicInfo, int]]:
    by_name = {topic.name: topic for topic in metadata.topics}
    for text in where or sorted(by_name):
        name, number = partition_of(text) if "/" in text else (text, None)
        if name not in by_name:
            raise refuse("UNKNOWN_TOPIC", f"there is no topic {name}", topic=name)
        topic = by_name[name]
        if number is not None and number >= len(topic.partitions):
            raise refuse("UNKNOWN_TOPIC", f"{name} has partitions 0 to {len(topic.partitions) - 1}, not {number}")
        for partition in range(len(topic.partitions)) if number is None else (number,):
            yield topic, partition


async def _compare_all(log: Log, metadata: MetadataAnswer, chosen: list[tuple[TopicInfo, int]]) -> list[Found]:
    live = {server.node for server in metadata.servers if not server.fenced}
    found: dict[tuple[str, int], Found] = {}
    limit = trio.CapacityLimiter(AT_ONCE)
    columns = (TextColumn("comparing replicas"), BarColumn(), MofNCompleteColumn(), TextColumn("partitions"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(chosen))

        async def one(topic: TopicInfo, partition: int) -> None:
            async with limit:
                try:
                    result = await log.compare_replicas(topic, partition, live)
                except* TidelogError as errors:
                    result = Comparison((), unasked={"": str(errors.exceptions[0])})
                found[topic.name, partition] = topic, partition, result
                progress.advance(bar)

        async with trio.open_nursery() as nursery:
            for topic, partition in chosen:
                nursery.start_soon(one, topic, partition)
    return [found[topic.name, partition] for topic, partition in chosen]


def _as_json(topic: TopicInfo, partition: int, result: Comparison) -> dict[str, object]:
    return {"topic": topic.name, "partition": partition, **asdict(result)}


def _print(found: list[Found]) -> None:
    records = 0
    for topic, partition, result in found:
        name = f"{topic.name}/{partition}"
        records += result.end - result.start
        for node, reason in result.unasked.items():
            click.echo(f"{name}: {node or 'a replica'} could not be asked: {reason}")
        info = topic.partitions[partition]
        if down := [n for n in (*info.replicas, *info.learners) if n not in {*result.compared, *result.unasked}]:
            click.echo(f"{name}: {', '.join(down)} down, not compared")
        difference = result.difference
        if difference is not None:
            place = "somewhere below" if difference.below else "from"
            click.echo(f"{name}: replicas differ {place} offset {difference.offset}")
            for node, side in difference.sides.items():
                click.echo(f"  {node}: {side.chain} at {side.end}")
    differing = sum(result.difference is not None for _, _, result in found)
    verdict = f"{differing} of {len(found)} partitions differ" if differing else "no difference"
    click.echo(f"{verdict}; {len(found)} partitions, {records:,} records compared")
