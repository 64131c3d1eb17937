"""``tidelog groups …``: shows, resets and deletes consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tidelog.cli.main import connect, gateway_option, json_option, run
from tidelog.cli.output import add_row, print_json, say, show
from tidelog.cli.records.consume import place

if TYPE_CHECKING:
    from tidelog.client.admin.groups import GroupProgress
    from tidelog.wire.messages import DescribeGroupAnswer, GroupInfo, TopicShare


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@groups.command("list")
@json_option
@gateway_option
def list_groups(as_json: bool, gateways: tuple[str, ...]) -> None:
    """List all consumer groups. State: 'stable', 'moving' (partitions are on their way from one member to
    another), or 'empty' (no members)."""

    async def task() -> tuple[GroupInfo, ...]:
        async with connect(gateways) as log:
            return await log.groups.list()

    found = run(task)
    if as_json:
        print_json([asdict(group) for group in found])
        return
    table = Table("group", "state", "members", "coordinator", box=None)
    for group in found:
        add_row(table, group.group, group.state, str(group.members), group.coordinator or "none")
    show(table)


@groups.command()
@click.argument("name")
@json_option
@gateway_option
def describe(name: str, as_json: bool, gateways: tuple[str, ...]) -> None:
    """Show the members of a group and, per partition, its member, the group's position, and the lag: how many offsets
    the group has not processed."""

    async def task() -> tuple[DescribeGroupAnswer, tuple[GroupProgress, ...]]:
        async with connect(gateways) as log:
            return await log.groups.describe(name), await log.groups.progress(name)

    group, progress = run(task)
    if as_json:
        document = asdict(group)
        del document["positions"]
        document["partitions"] = [asdict(one) | {"lag": one.lag} for one in progress]
        print_json(document)
        return
    say(
        f"{group.group}: {group.state}, generation {group.generation}, {group.assignor} assignor, "
        f"coordinated by {group.coordinator}"
    )
    if group.members:
        _print_members(group)
    table = Table("topic", "partition", "position", "HW", "lag", "member", "committed", box=None)
    for one in progress:
        add_row(
            table,
            one.topic or f"deleted ({one.topic_id})", str(one.partition), _known(one.offset),
            _known(one.high_watermark), _known(one.lag), one.member or "nobody", _moment(one.committed_ms),
        )  # fmt: skip
    show(table)


def _print_members(group: DescribeGroupAnswer) -> None:
    """Print the members of a group as a table: program, partitions, those that each gives up, and generation."""
    table = Table("member", "program", "has", "gives up", "generation", box=None)
    for member in group.members:
        name = f"{member.instance} (static{', away' if member.away else ''})" if member.instance else member.member
        add_row(table, name, member.node, _words(member.assignment), _words(member.leaving), str(member.generation))
    show(table)


def _words(shares: tuple[TopicShare, ...]) -> str:
    """Return the partitions of a member as ``TOPIC/NUMBER``, separated by spaces; "nothing" if it has none."""
    return " ".join(f"{share.topic or share.topic_id}/{p}" for share in shares for p in share.partitions) or "nothing"


def _known(number: int) -> str:
    return str(number) if number >= 0 else "?"


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms >= 0 else "never"


@groups.command()
@click.argument("name")
@click.option("--topic", "topics", multiple=True, help="Only this one; repeatable. Default: all it has come to.")
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; repeatable.")
@click.option("--to", "where", required=True, metavar="earliest|latest|OFFSET|TIME", help="Where it is to go on.")
@click.option("--dry-run", is_flag=True, help="Show what would be set, and set nothing.")
@json_option
@gateway_option
def reset(
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    where: str,
    dry_run: bool,
    as_json: bool,
    gateways: tuple[str, ...],
) -> None:
    """Set the position at which a group continues. The group must have no members: end its consumers first. A group
    or topic without a committed position gets its first one in this way, if --topic names the topic."""
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
                if not dry_run:
                    await log.groups.reset(name, topic, found)
                for partition, at in found.items():
                    old = before[partition].offset if partition in before else -1
                    rows.append({"topic": topic, "partition": partition, "before": old, "after": at.offset})
            return rows

    rows = run(task)
    if as_json:
        print_json({"group": name, "dry_run": dry_run, "partitions": rows})
        return
    table = Table("topic", "partition", "before", "would be" if dry_run else "now", box=None)
    for row in rows:
        old = str(row["before"]) if row["before"] >= 0 else "nowhere"
        add_row(table, row["topic"], str(row["partition"]), old, str(row["after"]))
    show(table)


@groups.command()
@click.argument("name")
@gateway_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(name: str, gateways: tuple[str, ...], yes: bool) -> None:
    """Delete a consumer group and its committed positions. The group must have no members."""
    if not yes:
        click.confirm(f"Forget {name} and how far it has come?", abort=True)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.groups.delete(name)

    run(task)
    say(f"deleted {name}")
