"""``tidelog topics …``: shows and changes topics and their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.completion import places, topic_names
from tidelog.cli.explain.retention_waits import AwaitedGroup, ask_awaited, awaited_in_words
from tidelog.cli.explain.sentences import losses_in_words, partition_of, state_in_words, waits_in_words
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import (
    WIDE,
    Cell,
    Column,
    Table,
    list_output,
    print_for_programs,
    print_json,
    result_output,
    say,
    show,
)
from tidelog.errors import TidelogError
from tidelog.quantities import counted, in_words, unit_of
from tidelog.types import INTERNAL_PREFIX

if TYPE_CHECKING:
    from tidelog.wire.messages import HistoryEntry, TopicInfo


def config_of(settings: tuple[str, ...], where: str = "--config") -> dict[str, str]:
    """Parse settings of the form ``KEY=VALUE``, and return them as a map; a repeated key keeps its last value. Raises
    ``click.BadParameter``, which names the option ``where``, if a setting has no ``=`` or no key."""
    config = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{setting!r} is not key=value", param_hint=where)
        config[name] = value
    return config


def typed(text: str) -> int | bool | str:
    """Return the value of a topic's setting, which the cluster sends as text, as a number or truth value if it is
    one. No setting has a text that looks like a number."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch("-?[0-9]+", text, re.ASCII) else text


def typed_config(config: Mapping[str, str]) -> dict[str, int | bool | str]:
    """Return the settings of a topic with numbers and truth values as such, for JSON."""
    return {name: typed(text) for name, text in config.items()}


def as_json_topic(topic: TopicInfo) -> dict[str, Any]:
    """Return a topic, with its settings and partitions, as an object for JSON."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "config": typed_config(topic.config),
        "partitions": [
            asdict(partition) | {"isr": list(partition.isr), "replicas": list(partition.replicas)}
            for partition in topic.partitions
        ],
    }


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, configure and delete topics."""


@topics.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option("-r", "--replication-factor", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "-c", "--config", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the topic; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic of that name as it is, and succeed.")
@result_output
@gateway_option
def create(
    name: str,
    partitions: int,
    replication_factor: int,
    settings: tuple[str, ...],
    if_not_exists: bool,
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Create a topic; returns when its partitions accept writes.

    With --if-not-exists a topic of that name stays as it is, also if it has other partitions, replicas or settings.

    Settings: min_insync_replicas (2 when there are 3 or more replicas, else 1; 1 with commit_rule=leader),
    commit_rule (isr, quorum, leader), flush (fsync, interval, os), and more: 'tidelog topics describe' lists all.
    commit_rule and flush never change. Times and sizes may have units: retention_ms=7d, segment_max_bytes=64MiB."""

    async def task() -> tuple[TopicInfo, bool]:
        async with connect(gateways) as log:
            create = partial(
                log.topics.create,
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config_of(settings),
            )
            try:
                await create()
            except TidelogError as error:
                if not if_not_exists or error.code != "TOPIC_EXISTS":
                    raise
                return await create(exist_ok=True), False
            return await log.topics.describe(name), True

    topic, is_new = run(task)
    if output:
        print_json(as_json_topic(topic))
    elif not is_new:
        replicas = max(len(partition.replicas) for partition in topic.partitions)
        size = f"{counted(len(topic.partitions), 'partition')}, {counted(replicas, 'replica')} each"
        say(f"{name} exists, and stays as it is: {size}")
    else:
        say(f"created {name}: {counted(partitions, 'partition')}, {counted(replication_factor, 'replica')} each")
        given = {setting.partition("=")[0] for setting in settings}
        if topic.config["commit_rule"] == "leader" and "min_insync_replicas" not in given:
            say(
                "min_insync_replicas is 1, the default with commit_rule=leader: writes with acks all go on while the"
                " leader is the only replica in sync, and a failover may lose them"
            )


@topics.command("list")
@click.option("--internal", is_flag=True, help="The cluster's own topics, too: those whose names begin with __.")
@list_output
@gateway_option
def list_topics(internal: bool, output: str, gateways: tuple[str, ...]) -> None:
    """List the topics: number of partitions and replicas, whether all replicas are in sync, and, with -o wide, the
    topic's id."""

    async def task() -> list[TopicInfo]:
        async with connect(gateways) as log:
            return [t for t in await log.topics.list() if internal or not t.name.startswith(INTERNAL_PREFIX)]

    found = run(task)
    table = Table(
        "name", "partitions", "replicas", Column("in sync", "under_replicated"), Column("topic id", wide=True)
    )
    for topic in found:
        replicas = max((len(p.replicas) for p in topic.partitions), default=0)
        lagging = sum(len(p.isr) < len(p.replicas) for p in topic.partitions)
        state = Cell(lagging, "all" if not lagging else f"{counted(lagging, 'partition')} not")
        table.add(topic.name, len(topic.partitions), replicas, state, topic.topic_id)
    show(output, table, [as_json_topic(topic) for topic in found])


@topics.command()
@click.argument("name", shell_complete=topic_names)
@list_output
@gateway_option
def describe(name: str, output: str, gateways: tuple[str, ...]) -> None:
    """Show a topic's settings and, per partition, leader, epochs, replicas, the start and the end of its log, and its
    last stable offset, up to which readers of committed records get records; then in words what is wrong, the unclean
    elections and losses in its history, and how far the groups have read that retention waits for."""

    async def task() -> tuple[TopicInfo, dict[int, tuple[HistoryEntry, ...]], tuple[AwaitedGroup, ...]]:
        async with connect(gateways) as log:
            topic = await log.topics.describe(name, offsets=True)
            moved = [
                p.partition for p in topic.partitions if p.leader_epoch > 0
            ]  # without a change of leader nothing was lost
            return topic, await log.partitions.histories(topic, moved), await ask_awaited(log, topic)

    topic, histories, awaited = run(task)
    described = as_json_topic(topic)
    for p in described["partitions"]:
        entries = histories.get(p["partition"], ())
        p["unclean_elections"] = sum(e.event == "leader_elected" and e.cause == "unclean_election" for e in entries)
        p["records_lost"] = [e.evidence for e in entries if e.event == "records_lost"]
        p["records_possibly_lost"] = [e.evidence for e in entries if e.event == "records_possibly_lost"]
        p["retention_waits"] = [
            {"group": one.group, "position": one.position, "behind": one.behind, "lost": one.lost}
            for one in awaited
            if one.partition == p["partition"]
        ]
    table = partitions_table(topic)
    if not print_for_programs(output, table, described):
        print_topic(topic, table, histories, awaited, wide=output == WIDE)


def partitions_table(topic: TopicInfo, *, offsets: bool = True) -> Table:
    """Return the table of a topic's partitions; with ``offsets`` it has the bounds of the logs, too."""
    bounds = ("log start", Column("HW", "high_watermark"), "last stable") if offsets else ()
    table = Table("partition", "leader", "leader epoch", "epoch", Column("in sync", "isr"), "replicas", *bounds)
    for p in topic.partitions:
        stable = p.high_watermark if p.stable is None else p.stable.offset
        ends = [Cell(at, at if at >= 0 else "?") for at in (p.log_start, p.high_watermark, stable) if offsets]
        leader, in_sync = Cell(p.leader, p.leader or "none"), Cell(p.isr, " ".join(p.isr) or "nobody")
        name = f"{topic.name}/{p.partition}"
        table.add(p.partition, leader, p.leader_epoch, p.epoch, in_sync, p.replicas, *ends, name=name)
    return table


def print_topic(
    topic: TopicInfo,
    table: Table,
    histories: dict[int, tuple[HistoryEntry, ...]],
    awaited: Sequence[AwaitedGroup] = (),
    *,
    wide: bool,
) -> None:
    """Print a topic for people: its settings, the table of its partitions, and sentences about what is unusual, and
    about the groups ``awaited``, for which retention waits. ``histories`` has the history of each partition, in which
    unclean elections and losses are looked for. With ``wide`` the topic's id is printed, too."""
    say(f"{topic.name} ({topic.topic_id})" if wide else topic.name)
    for key, value in sorted(topic.config.items()):
        number = typed(value)
        words = in_words(number, unit_of(key)) if type(number) is int else ""
        say(f"  {key} = {value}{f' ({words})' if words else ''}")
    table.print(wide=wide)
    for p in topic.partitions:
        for words in (
            *state_in_words(topic, p),
            *waits_in_words(p),
            *losses_in_words(histories.get(p.partition, ())),
            *awaited_in_words(p.partition, awaited),
        ):
            say(f"{topic.name}/{p.partition}: {words}")


@topics.command()
@click.argument("name", shell_complete=topic_names)
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@gateway_option
def configure(name: str, settings: tuple[str, ...], gateways: tuple[str, ...]) -> None:
    """Change settings of a topic; settings that are not named stay as they are. Times and sizes may have units:
    retention_ms=7d, segment_max_bytes=64MiB.

    With unclean_election=true, if no live replica of a partition is known to hold every committed record, another one
    is elected at once: records may be lost."""
    config = config_of(settings, "KEY=VALUE")

    async def task() -> None:
        async with connect(gateways) as log:
            await log.topics.alter(name, config)

    run(task)
    say(f"{name}: {', '.join(f'{key} = {value}' for key, value in config.items())}")


topics.add_command(configure, "alter")


@topics.command()
@click.argument("name", shell_complete=topic_names)
@click.option("-p", "--partitions", type=click.IntRange(1), required=True, help="How many it is to have in all.")
@gateway_option
def grow(name: str, partitions: int, gateways: tuple[str, ...]) -> None:
    """Give a topic more partitions. The present ones keep their records; keys may go to other partitions. New
    partitions have as many replicas as most partitions of the topic have."""

    async def task() -> TopicInfo:
        async with connect(gateways) as log:
            await log.topics.grow(name, partitions)
            return await log.topics.describe(name)

    topic = run(task)
    replicas = len(topic.partitions[-1].replicas)
    say(f"{name} has {counted(partitions, 'partition')}, the new ones with {counted(replicas, 'replica')} each")


@topics.command()
@click.argument("where", metavar="TOPIC/PARTITION", shell_complete=places)
@click.argument("servers", required=False, metavar="SERVER,...")
@click.option("--none", "nobody", is_flag=True, help="No learners any more.")
@gateway_option
def learners(where: str, servers: str | None, nobody: bool, gateways: tuple[str, ...]) -> None:
    """Set the learners of a partition: servers that copy its log and do not count for commits. The list replaces the
    former learners."""
    if nobody == bool(servers):
        raise click.UsageError("name the servers, such as r4,r5, or say --none")
    name, partition = partition_of(where)
    wanted = tuple(node.strip() for node in (servers or "").split(",") if node.strip())

    async def task() -> None:
        async with connect(gateways) as log:
            await log.partitions.set_learners(name, partition, wanted)

    run(task)
    say(f"learners of {where}: {', '.join(wanted) or 'none'}")


partitions_option = click.option(
    "-p",
    "--partitions",
    "numbers",
    default="",
    metavar="N,...",
    help="Only these, such as 0,1; else all of the topic.",
)
"""Decorator that adds the option ``--partitions`` to a command."""


def _numbers(text: str) -> tuple[int, ...]:
    """Parse partition numbers such as ``0,1``, the value of ``--partitions``, and return them; an empty tuple for "".
    Raises ``click.BadParameter`` for another text."""
    wanted = [number.strip() for number in text.split(",") if number.strip()]
    if not all(number.isascii() and number.isdigit() for number in wanted):
        raise click.BadParameter(f"{text!r} is not N,N,... such as 0,1", param_hint="--partitions")
    return tuple(map(int, wanted))


def _named(name: str, numbers: tuple[int, ...]) -> str:
    return ", ".join(f"{name}/{number}" for number in numbers) or f"all of {name}"


@topics.command("set-readonly")
@click.argument("name", shell_complete=topic_names)
@partitions_option
@click.option("--off", is_flag=True, help="Take records again.")
@gateway_option
def set_read_only(name: str, numbers: str, off: bool, gateways: tuple[str, ...]) -> None:
    """Make a topic, or some of its partitions, read-only: produces fail with TOPIC_READ_ONLY, reads go on.

    Acknowledged records stay. A change of leader does not end this. A leader that has lost touch with the controllers
    may take records until its session is over."""
    wanted = _numbers(numbers)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.partitions.set_read_only(name, wanted, read_only=not off)

    run(task)
    say(f"{_named(name, wanted)}: {'records are taken again' if off else 'read-only'}")


@topics.command()
@click.argument("name", shell_complete=topic_names)
@partitions_option
@gateway_option
def pause(name: str, numbers: str, gateways: tuple[str, ...]) -> None:
    """Pause a topic, or some of its partitions: servers close the logs, and nothing is written, read, copied or
    cleaned until 'tidelog topics resume'. Producers get TOPIC_PAUSED, and so do consumers, even if they also read
    other partitions. What is committed stays."""
    wanted = _numbers(numbers)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.partitions.pause(name, wanted)

    run(task)
    say(f"{_named(name, wanted)}: paused")


@topics.command()
@click.argument("name", shell_complete=topic_names)
@partitions_option
@gateway_option
def resume(name: str, numbers: str, gateways: tuple[str, ...]) -> None:
    """Resume a paused topic, or some of its partitions: servers open the logs, and serve them again."""
    wanted = _numbers(numbers)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.partitions.resume(name, wanted)

    run(task)
    say(f"{_named(name, wanted)}: resumed")


@topics.command()
@click.argument("name", shell_complete=topic_names)
@gateway_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(name: str, gateways: tuple[str, ...], yes: bool) -> None:
    """Delete a topic and all its records, after a confirmation unless --yes is given."""
    if not yes:
        click.confirm(f"Delete {name} and all its records?", abort=True)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.topics.delete(name)

    run(task)
    say(f"deleted {name}")
