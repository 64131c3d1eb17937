"""``tidelog topics …``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tidelog.cli.main import connect, gateway_option, json_option, print_json, run
from tidelog.wire.messages import TopicInfo


def _config(settings: tuple[str, ...]) -> dict[str, str]:
    config = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{setting!r} is not key=value", param_hint="--config")
        config[name] = value
    return config


def as_json_topic(topic: TopicInfo) -> dict[str, Any]:
    """A topic as scripts see it."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "config": topic.config,
        "partitions": [
            asdict(partition) | {"isr": list(partition.isr), "replicas": list(partition.replicas)}
            for partition in topic.partitions
        ],
    }


@click.group()
def topics() -> None:
    """Create, list, describe and delete topics."""


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option("--replication-factor", type=click.IntRange(1), default=1, show_default=True)
@click.option("--config", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the topic; repeatable.")
@json_option
@gateway_option
def create(
    name: str,
    partitions: int,
    replication_factor: int,
    settings: tuple[str, ...],
    as_json: bool,
    gateways: tuple[str, ...],
) -> None:
    """Create a topic; returns when its partitions accept writes.

    Settings: min_insync_replicas (2 when there are 3 or more replicas, else 1), flush (fsync, interval, os),
    flush_interval_ms, segment_max_bytes, max_batch_bytes, replica_max_lag_ms."""

    async def task() -> TopicInfo:
        async with connect(gateways) as log:
            await log.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, config=_config(settings)
            )
            return await log.describe(name)

    topic = run(task)
    if as_json:
        print_json(as_json_topic(topic))
    else:
        click.echo(f"created {name}: {partitions} partitions, {replication_factor} replicas each")


@topics.command("list")
@json_option
@gateway_option
def list_topics(as_json: bool, gateways: tuple[str, ...]) -> None:
    """List all topics."""

    async def task() -> list[TopicInfo]:
        async with connect(gateways) as log:
            return list(await log.topics())

    found = run(task)
    if as_json:
        print_json([as_json_topic(topic) for topic in found])
        return
    table = Table("name", "partitions", "replicas", "in sync", "topic id", box=None)
    for topic in found:
        replicas = max((len(p.replicas) for p in topic.partitions), default=0)
        lagging = sum(len(p.isr) < len(p.replicas) for p in topic.partitions)
        state = "all" if not lagging else f"{lagging} partitions are not"
        table.add_row(topic.name, str(len(topic.partitions)), str(replicas), state, topic.topic_id)
    Console().print(table)


@topics.command()
@click.argument("name")
@json_option
@gateway_option
def describe(name: str, as_json: bool, gateways: tuple[str, ...]) -> None:
    """Show a topic's settings and, per partition, leader, epochs, replicas, and where its log starts and ends."""

    async def task() -> TopicInfo:
        async with connect(gateways) as log:
            return await log.describe(name, offsets=True)

    topic = run(task)
    if as_json:
        print_json(as_json_topic(topic))
        return
    click.echo(f"{topic.name} ({topic.topic_id})")
    for key, value in sorted(topic.config.items()):
        click.echo(f"  {key} = {value}")
    table = Table("partition", "leader", "leader epoch", "epoch", "in sync", "replicas", "log start", "HW", box=None)
    for p in topic.partitions:
        start, end = (str(offset) if offset >= 0 else "?" for offset in (p.log_start, p.high_watermark))
        table.add_row(
            str(p.partition), p.leader or "none", str(p.leader_epoch), str(p.epoch), " ".join(p.isr),
            " ".join(p.replicas), start, end,
        )  # fmt: skip
    Console().print(table)


@topics.command()
@click.argument("name")
@gateway_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(name: str, gateways: tuple[str, ...], yes: bool) -> None:
    """Delete a topic and all its records."""
    if not yes:
        click.confirm(f"Delete {name} and all its records?", abort=True)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.delete_topic(name)

    run(task)
    click.echo(f"deleted {name}")
