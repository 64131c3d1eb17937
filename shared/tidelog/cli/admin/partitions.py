"""``tidelog partitions …``: shows and changes leaders and replicas of partitions."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import click
import trio

from tidelog.cli.admin.partition_weights import UNITS, weigh_partitions
from tidelog.cli.command_group import CommandGroup
from tidelog.cli.completion import places, topic_names
from tidelog.cli.explain.histories import Histories, ask_histories
from tidelog.cli.explain.sentences import (
    awaited_in_words,
    doubt_in_words,
    lost_offsets_in_words,
    partition_of,
    state_in_words,
)
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import Cell, Column, Table, list_output, say, show
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.explain.partition_state import LOSSES
from tidelog.types import INTERNAL_PREFIX
from tidelog.wire.messages import HistoryEntry, PartitionInfo, PartitionWeight, PlannedMove, TopicInfo

IN_FULL = ("doubtful", *LOSSES.values())
"""Beginnings of the remarks that the table shows in full; of other remarks it shows the first words."""


@click.group(cls=CommandGroup)
def partitions() -> None:
    """List partitions, transfer leadership, reassign replicas, even out the load."""


def servers_of(text: str) -> tuple[str, ...]:
    """Parse a list of servers such as ``r1,r2,r3``, and return their names; an empty tuple if the text names none."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@partitions.command("list")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@click.option("--internal", is_flag=True, help="Those of the cluster's own topics, too.")
@list_output
@gateway_option
def list_partitions(topics: tuple[str, ...], internal: bool, output: str, gateways: tuple[str, ...]) -> None:
    """List partitions with their leaders, replicas and remarks, of all topics or of these.

    Remarks include copies with a doubtful tail and possibly lost records. Both are requested from the controllers,
    for 500 partitions at most."""

    async def task() -> tuple[list[TopicInfo], Histories]:
        async with connect(gateways) as log:
            found = tuple([await log.topics.describe(name) for name in topics]) or await log.topics.list()
            shown = [t for t in found if internal or topics or not t.name.startswith(INTERNAL_PREFIX)]
            return shown, await ask_histories(log, shown)

    shown, histories = run(task)
    rows = [
        (topic, p, _remarks(topic, p, histories.get((topic.name, p.partition), ())))
        for topic in shown
        for p in topic.partitions
    ]
    table = Table("partition", "leader", "leader epoch", Column("in sync", "isr"), "replicas", "remarks")
    for topic, p, words in rows:
        remarks = [word.partition(":")[0].partition(";")[0] for word in words if not word.startswith(IN_FULL)]
        remarks += [word.partition(";")[0] for word in words if word.startswith(IN_FULL)]
        leader, in_sync = Cell(p.leader, p.leader or "none"), Cell(p.isr, " ".join(p.isr) or "nobody")
        noted = Cell("; ".join(words), ", ".join(remarks))
        table.add(f"{topic.name}/{p.partition}", leader, p.leader_epoch, in_sync, p.replicas, noted)
    show(output, table, [{"topic": topic.name, **asdict(p), "remarks": words} for topic, p, words in rows])


def _remarks(topic: TopicInfo, partition: PartitionInfo, history: tuple[HistoryEntry, ...]) -> list[str]:
    """Return everything unusual about a partition as sentences for people; an empty list if all is well. ``history``
    is empty if it could not be had, and adds nothing then."""
    words = [*state_in_words(topic, partition), awaited_in_words(partition, history)]
    words += [doubt_in_words(partition, history), *lost_offsets_in_words(history)]
    return [word for word in words if word]


# --- leadership ------------------------------------------------------------------------------------------


@partitions.command()
@click.argument("where", metavar="TOPIC/PARTITION", shell_complete=places)
@click.argument("server", required=False, default="")
@gateway_option
def transfer(where: str, server: str, gateways: tuple[str, ...]) -> None:
    """Transfer the leadership of a partition to SERVER, which must be in sync; by default, to the preferred replica.

    The present leader refuses records until SERVER has all of them, and clients send those records again. If SERVER
    does not catch up in time, the present leader continues."""
    name, number = partition_of(where)

    async def task() -> PartitionInfo:
        async with connect(gateways) as log:
            return await log.partitions.transfer(name, number, server)

    info = run(task)
    say(f"{where}: {info.leader} leads in leader epoch {info.leader_epoch}")


# --- replicas --------------------------------------------------------------------------------------------


@partitions.command()
@click.argument("where", metavar="TOPIC/PARTITION", shell_complete=places)
@click.argument("servers", metavar="SERVER,...")
@click.option("--wait", is_flag=True, help="Return when it is done.")
@gateway_option
def reassign(where: str, servers: str, wait: bool, gateways: tuple[str, ...]) -> None:
    """Move a partition to these replicas, the preferred leader first. Their number may change.

    New replicas copy the log at the rate of catchup_max_bytes_per_s, join when they are in sync, then the others go
    and delete their copies. Nothing is given up before: 'tidelog partitions cancel' goes back at any time."""
    name, number = partition_of(where)

    async def task() -> PartitionInfo:
        async with connect(gateways) as log:
            await log.partitions.reassign(name, number, servers_of(servers))
            while True:
                found = (await log.topics.describe(name)).partitions[number]
                if not (wait and found.target):
                    return found
                await trio.sleep(0.2)

    info = run(task)
    state = f"on the way to {', '.join(info.target)}" if info.target else "done"
    say(f"{where}: replicas {', '.join(info.replicas)}, {state}")


@partitions.command()
@click.argument("where", metavar="TOPIC/PARTITION", shell_complete=places)
@gateway_option
def cancel(where: str, gateways: tuple[str, ...]) -> None:
    """Cancel a reassignment of a partition, whether it has begun or waits for its turn: the former replicas stay, or
    come back."""
    name, number = partition_of(where)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.partitions.cancel_reassignment(name, number)

    run(task)
    say(f"{where}: the reassignment is cancelled")


@partitions.command()
@list_output
@gateway_option
def reassignments(output: str, gateways: tuple[str, ...]) -> None:
    """List the reassignments of partitions: first those in progress, with how much of the log each new replica has
    copied; then those that wait for their turn."""

    async def task() -> list[dict[str, Any]]:
        async with connect(gateways) as log:
            status = await log.cluster.status()
            live = [server.node for server in status.servers if not server.fenced]
            moving = [(topic, p) for topic in status.topics for p in topic.partitions if p.target]
            begun = [await _progress(log, topic, p, live) for topic, p in moving]
            return begun + [_waits(move) for move in await log.partitions.waiting_moves()]

    found = run(task)
    table = Table("partition", "replicas", "target", Column("in sync", "isr"), "copies")
    for one in found:
        copies = ", ".join(
            f"{node} {'away' if copy is None else '{copied} of {end}'.format(**copy)}"
            for node, copy in one["copies"].items()
        )
        words = "waits for its turn" if one["waiting"] else copies or "all there"
        table.add(one["partition"], one["replicas"], one["target"], one["isr"], Cell(one["copies"], words))
    if found or output:
        show(output, table, found)
    else:
        say("no reassignment is in progress")


async def _progress(log: Log, topic: TopicInfo, p: PartitionInfo, live: list[str]) -> dict[str, Any]:
    """Return a reassignment in progress as an object for JSON. It says how many of the leader's records each new
    replica has copied; None if that replica does not answer. Asks the leader and the new replicas, as far as they are
    ``live``, for the bounds of their logs."""
    wanted = [node for node in p.target if node not in p.isr]
    ends: dict[str, tuple[int, int]] = {}
    for node in (*wanted, p.leader):
        if node in live:
            try:
                digest = await log.partitions.digest(topic.topic_id, p.partition, node)
            except TidelogError:
                continue  # the server opens the log at present, or has just ended
            ends[node] = (digest.log_start, digest.log_end)
    start, end = ends.get(p.leader, (0, 0))
    copies = {
        node: None if node not in ends else {"copied": max(0, ends[node][1] - start), "end": end - start}
        for node in wanted
    }
    return {
        "partition": f"{topic.name}/{p.partition}",
        "leader": p.leader,
        "replicas": list(p.replicas),
        "target": list(p.target),
        "isr": list(p.isr),
        "copies": copies,
        "waiting": False,
    }


def _waits(move: PlannedMove) -> dict[str, Any]:
    """Return a planned reassignment that waits for its turn as an object for JSON, with the same fields as
    ``_progress``."""
    return {
        "partition": f"{move.name}/{move.partition}",
        "leader": "",
        "replicas": list(move.replicas),
        "target": list(move.target),
        "isr": [],
        "copies": {},
        "waiting": True,
    }


@partitions.command()
@click.option("--dry-run", is_flag=True, help="Show the plan only.")
@click.option(
    "--by",
    type=click.Choice(tuple(UNITS)),
    default="count",
    show_default=True,
    help="What to even out: numbers of replicas, their bytes, or the bytes per second that are written to them now.",
)
@click.option("--empty-drained", is_flag=True, help="Also move all replicas away from drained servers.")
@click.option("--cancel", "cancels", is_flag=True, help="Drop what waits for its turn; what has begun goes on.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@list_output
@gateway_option
def rebalance(
    dry_run: bool, by: str, empty_drained: bool, cancels: bool, yes: bool, output: str, gateways: tuple[str, ...]
) -> None:
    """Even out replicas over racks and servers, and preferred leaders over servers; new servers get their share.

    The plan is shown first. Then its moves wait for their turn: a few at a time per server (the controllers' setting
    balance.moves_per_server), whatever becomes of this command or of a controller."""
    if cancels:
        run(partial(_cancel_rebalance, gateways))
        return

    async def plan() -> tuple[tuple[PartitionWeight, ...], tuple[PlannedMove, ...]]:
        async with connect(gateways) as log:
            weights = await weigh_partitions(log, by)
            planned = log.partitions.plan_rebalance(empty_drained=empty_drained, weights=weights, unit=UNITS[by])
            return weights, await planned

    weights, moves = run(plan)
    _show_plan(output, moves)
    if dry_run or not moves:
        return
    if not yes:
        click.confirm(f"Begin {len(moves)} reassignments?", abort=True, err=True)

    async def begin() -> None:
        async with connect(gateways) as log:
            await log.partitions.rebalance(empty_drained=empty_drained, weights=weights, unit=UNITS[by])

    run(begin)
    say("begun, a few at a time; how far it is: 'tidelog partitions reassignments'", err=True)


async def _cancel_rebalance(gateways: tuple[str, ...]) -> None:
    """Cancel those reassignments of a rebalance that have not begun, and print how many waited."""
    async with connect(gateways) as log:
        waiting = await log.partitions.waiting_moves()
        await log.partitions.cancel_rebalance()
    say(f"{len(waiting)} reassignments that waited for their turn are dropped")


def _show_plan(output: str, moves: tuple[PlannedMove, ...]) -> None:
    """Print the moves of a planned rebalance in the format ``output``, with the reason for each. If there are none,
    people get a remark."""
    table = Table(
        "partition",
        "replicas",
        Column("become", "target"),
        Column("for the sake of", "reason"),
        Column("figures", "evidence"),
    )
    for move in moves:
        table.add(f"{move.name}/{move.partition}", move.replicas, move.target, move.reason, move.evidence)
    if moves or output:
        show(output, table, [asdict(move) for move in moves])
    else:
        say("replicas and preferred leaders are spread evenly: nothing to do")
