"""``tidelog groups …``: shows, resets and deletes consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import WIDE, Cell, Column, Table, list_output, print_for_programs, say, show
from tidelog.cli.records.consume import place

if TYPE_CHECKING:
    from tidelog.client.admin.groups import GroupProgress
    from tidelog.client.log import Log
    from tidelog.types import Position
    from tidelog.wire.messages import DescribeGroupAnswer, GroupInfo, TopicShare


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@groups.command("list")
@list_output
@gateway_option
def list_groups(output: str, gateways: tuple[str, ...]) -> None:
    """List all consumer groups. State: 'stable', 'moving' (partitions are on their way from one member to
    another), or 'empty' (no members)."""

    async def task() -> tuple[GroupInfo, ...]:
        async with connect(gateways) as log:
            return await log.groups.list()

    found = run(task)
    table = Table("group", "state", "members", "coordinator")
    for group in found:
        table.add(group.group, group.state, group.members, Cell(group.coordinator, group.coordinator or "none"))
    show(output, table, [asdict(group) for group in found])


@groups.command()
@click.argument("name")
@list_output
@gateway_option
def describe(name: str, output: str, gateways: tuple[str, ...]) -> None:
    """Show the members of a group and, per partition, its member, the group's position, and the lag: how many offsets
    the group has not processed."""

    async def task() -> tuple[DescribeGroupAnswer, tuple[GroupProgress, ...]]:
        async with connect(gateways) as log:
            return await log.groups.describe(name), await log.groups.progress(name)

    group, progress = run(task)
    document = asdict(group)
    del document["positions"]
    document["partitions"] = [asdict(one) | {"lag": one.lag} for one in progress]
    table = _progress_table(progress)
    if print_for_programs(output, table, document):
        return
    say(
        f"{group.group}: {group.state}, generation {group.generation}, {group.assignor} assignor, "
        f"coordinated by {group.coordinator}"
    )
    if group.members:
        _print_members(group)
    table.print(wide=output == WIDE)


def _progress_table(progress: tuple[GroupProgress, ...]) -> Table:
    """Return the table of the partitions of a group: position, lag, member, and time of the last commit."""
    table = Table(
        "topic",
        "partition",
        Column("position", "offset"),
        Column("HW", "high_watermark"),
        "lag",
        "member",
        Column("committed", "committed_ms"),
        Column("topic id", wide=True),
    )
    for one in progress:
        offsets = [Cell(at, at if at >= 0 else "?") for at in (one.offset, one.high_watermark, one.lag)]
        topic, member = Cell(one.topic, one.topic or "deleted"), Cell(one.member, one.member or "nobody")
        committed = Cell(one.committed_ms, _moment(one.committed_ms))
        name = f"{one.topic or one.topic_id}/{one.partition}"
        table.add(topic, one.partition, *offsets, member, committed, one.topic_id, name=name)
    return table


def _print_members(group: DescribeGroupAnswer) -> None:
    """Print the members of a group as a table: program, partitions, those that each gives up, and generation."""
    table = Table("member", "program", "has", "gives up", "generation")
    for member in group.members:
        name = f"{member.instance} (static{', away' if member.away else ''})" if member.instance else member.member
        table.add(name, member.node, _words(member.assignment), _words(member.leaving), member.generation)
    table.print()


async def beyond_end(log: Log, topic: str, positions: Mapping[int, Position]) -> str:
    """Return a sentence about the first of these positions that is beyond the high watermark of its partition, where
    members would get ``OFFSET_OUT_OF_RANGE``; "" if none is."""
    described = await log.topics.describe(topic)
    ends = await log.partitions.list_offsets(described, "latest", sorted(positions), "uncommitted")
    for partition, at in sorted(positions.items()):
        if at.offset > ends[partition].offset:
            return f"{topic}/{partition} ends at {ends[partition].offset}: no group can go on at {at.offset}"
    return ""


def _words(shares: tuple[TopicShare, ...]) -> str:
    """Return the partitions of a member as ``TOPIC/NUMBER``, separated by spaces; "nothing" if it has none."""
    return " ".join(f"{share.topic or share.topic_id}/{p}" for share in shares for p in share.partitions) or "nothing"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms >= 0 else "never"


@groups.command()
@click.argument("name")
@click.option(
    "-t", "--topic", "topics", multiple=True, help="Only this one; repeatable. Default: all it has come to."
)
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable."
)
@click.option("--to", "where", required=True, metavar="earliest|latest|OFFSET|TIME", help="Where it is to go on.")
@click.option("--dry-run", is_flag=True, help="Show what would be set, and set nothing.")
@list_output
@gateway_option
def reset(
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    where: str,
    dry_run: bool,
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Set the position at which a group continues. The group must have no members: end its consumers first. A group
    or topic without a committed position gets its first one in this way, if --topic names the topic. An offset beyond
    the end of a partition is refused."""
    target = place(where, "--to")

    async def task() -> list[dict[str, Any]]:
        async with connect(gateways) as log:
            wanted = topics
            if not wanted:
                wanted = tuple(sorted({one.topic for one in await log.groups.progress(name) if one.topic}))
            if not wanted:
                raise click.UsageError(f"{name} has come nowhere yet: name a --topic")
            rows: list[dict[str, Any]] = []
            for topic in wanted:
                before = await log.groups.fetch_offsets(name, topic)
                chosen = partitions or (None if topics else tuple(before))
                found = await log.partitions.find_positions(topic, target, chosen)
                if beyond := await beyond_end(log, topic, found):
                    raise click.UsageError(beyond)
                if not dry_run:
                    await log.groups.reset(name, topic, found)
                for partition, at in found.items():
                    old = before[partition].offset if partition in before else -1
                    rows.append({"topic": topic, "partition": partition, "before": old, "after": at.offset})
            return rows

    rows = run(task)
    table = Table("topic", "partition", "before", Column("would be" if dry_run else "now", "after"))
    for row in rows:
        old = Cell(row["before"], row["before"] if row["before"] >= 0 else "nowhere")
        table.add(row["topic"], row["partition"], old, row["after"], name=f"{row['topic']}/{row['partition']}")
    show(output, table, {"group": name, "dry_run": dry_run, "partitions": rows})


@groups.command()
@click.argument("name")
@gateway_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(name: str, gateways: tuple[str, ...], yes: bool) -> None:
    """Delete a consumer group and its committed positions. The group must have no members."""
    if not yes:
        click.confirm(f"Forget {name} and how far it has come?", abort=True)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.groups.delete(name)

    run(task)
    say(f"deleted {name}")
