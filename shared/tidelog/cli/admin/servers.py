"""``tidelog servers …``: shows the replica servers, and takes them out of service, for a while or for good."""

from __future__ import annotations

from dataclasses import asdict

import click
import trio

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.exit_status import FAILED
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import Table, list_output, print_for_programs, say, show
from tidelog.client.log import Log
from tidelog.quantities import SECONDS, counted
from tidelog.wire.messages import MetadataAnswer, ScrubStatus

_POLL_S = 0.2
"""Seconds between two checks of a command that waits."""


@click.group(cls=CommandGroup)
def servers() -> None:
    """List the replica servers; drain a server before maintenance; read their disks again; forget a server that is
    gone."""


@servers.command("list")
@list_output
@gateway_option
def list_servers(output: str, gateways: tuple[str, ...]) -> None:
    """List the replica servers: rack, state, URL, and how many partitions each leads, is preferred for, and has
    copies of."""

    async def task() -> MetadataAnswer:
        async with connect(gateways, operator=True) as log:
            return await log.cluster.status()

    status = run(task)
    everywhere = [p for topic in status.topics for p in topic.partitions]
    rows = [
        {
            "id": server.node,
            "rack": server.rack,
            "state": "down" if server.fenced else "draining" if server.draining else "live",
            "draining": server.draining,
            "leads": sum(p.leader == server.node for p in everywhere),
            "preferred": sum(p.replicas[0] == server.node for p in everywhere),
            "replicas": sum(server.node in p.replicas for p in everywhere),
            "learns": sum(server.node in p.learners for p in everywhere),
            "url": server.url,
        }
        for server in sorted(status.servers, key=lambda server: server.node)
    ]
    columns = ("id", "rack", "state", "leads", "preferred", "replicas", "learns", "url")
    table = Table(*columns)
    for row in rows:
        table.add(*(row[column] for column in columns))
    show(output, table, rows)


def leads(status: MetadataAnswer, server: str, *, paused: bool = False) -> list[str]:
    """Return the partitions (``TOPIC/NUMBER``) that ``server`` leads according to the metadata. By default only
    partitions that serve are counted, with ``paused`` only paused ones."""
    everywhere = ((topic, p) for topic in status.topics for p in topic.partitions if p.paused is paused)
    return [f"{topic.name}/{p.partition}" for topic, p in everywhere if p.leader == server]


@servers.command()
@click.argument("name")
@click.option("--timeout", "timeout_s", type=Quantity(SECONDS, least=0), default="1m", show_default=True)
@gateway_option
def drain(name: str, timeout_s: float, gateways: tuple[str, ...]) -> None:
    """Move every leadership away from a server; returns when it leads nothing.

    The server keeps its copies and stays in sync. It gets new replicas only if there are too few other servers that
    run. This lasts over restarts, until 'tidelog servers resume'. Paused
    partitions move when they are resumed. Exit code 1 if it still leads partitions after --timeout, since no other
    server in sync can lead them."""

    async def task() -> tuple[list[str], list[str]]:
        async with connect(gateways, operator=True) as log:
            await log.cluster.drain_server(name)
            status = await log.cluster.status()
            with trio.move_on_after(timeout_s):
                while leads(status, name):
                    await trio.sleep(_POLL_S)
                    status = await log.cluster.status()
            return leads(status, name), leads(status, name, paused=True)

    left, paused = run(task)
    if paused:
        say(
            f"{name} leads {', '.join(paused)} in name: paused, and given away when 'tidelog topics resume' ends that"
        )
    if left:
        say(f"{name} is drained but for {', '.join(left)}: no other server in sync can lead it", err=True)
        raise SystemExit(FAILED)
    say(f"{name} leads nothing any more")


@servers.command()
@click.argument("name")
@gateway_option
def resume(name: str, gateways: tuple[str, ...]) -> None:
    """End the drain of a server: it may lead and get replicas again. The partitions that prefer it come back
    gradually."""

    async def task() -> None:
        async with connect(gateways, operator=True) as log:
            await log.cluster.drain_server(name, drain=False)

    run(task)
    say(f"{name} takes part again")


@servers.command()
@click.argument("name")
@gateway_option
def forget(name: str, gateways: tuple[str, ...]) -> None:
    """Remove a server that is gone for good from the cluster, so that nothing waits for it.

    It must be down and hold no copies: 'tidelog servers drain' and 'tidelog partitions rebalance --empty-drained'
    move them away, or 'tidelog partitions reassign'. If it comes back all the same it is a new server."""

    async def task() -> None:
        async with connect(gateways, operator=True) as log:
            await log.cluster.forget_server(name)

    run(task)
    say(f"{name} is none of the cluster any more")


@servers.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--no-wait", is_flag=True, help="Return as soon as the rounds have begun.")
@list_output
@gateway_option
def scrub(names: tuple[str, ...], no_wait: bool, output: str, gateways: tuple[str, ...]) -> None:
    """Make servers read and check their logs on disk now: the named servers, or all that are live.

    Each server goes through its partitions at its scrub_bytes_per_s and compares every log with those of the other
    replicas. It repairs logs that are damaged, and its copy if that is the odd one of three. A round that is under
    way starts again. Exit code 0: the rounds have ended; 'tidelog doctor' says what was found."""

    async def task() -> dict[str, ScrubStatus]:
        async with connect(gateways, operator=True) as log:
            live = [server.node for server in (await log.cluster.status()).servers if not server.fenced]
            begun = {node: await log.cluster.scrub_server(node) for node in names or sorted(live)}
            return begun if no_wait else {node: await _scrubbed(log, node, one) for node, one in begun.items()}

    found = run(task)
    table = Table("id", "running", "round", "segments", "bytes", "left")
    for node, one in found.items():
        table.add(node, one.running, one.round, one.segments, one.bytes, one.left)
    if print_for_programs(output, table, {node: asdict(one) for node, one in found.items()}):
        return
    for node, one in found.items():
        if one.running:
            say(f"{node} has begun: {counted(one.left, 'partition')}")
        else:
            say(f"{node} has checked {one.segments} segments, {one.bytes:,} bytes")
    if not no_wait:
        say("'tidelog doctor' says what was found")


async def _scrubbed(log: Log, node: str, begun: ScrubStatus) -> ScrubStatus:
    """Ask a server every ``_POLL_S`` seconds until the scrubbing round ``begun`` has ended, and return its last
    status. If a later round has begun meanwhile, this is the status of that round."""
    status = begun
    while status.running and status.round == begun.round:
        await trio.sleep(_POLL_S)
        status = await log.cluster.scrub_server(node, begin=False)
    return status
