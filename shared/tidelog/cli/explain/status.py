"""``tidelog status``: the cluster at a glance."""

from __future__ import annotations

from typing import Any

import click

from tidelog.cli.explain.sentences import refill_in_words
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import WIDE, Table, list_output, print_for_programs, say
from tidelog.quantities import counted


@click.command()
@list_output
@gateway_option
def status(output: str, gateways: tuple[str, ...]) -> None:
    """Show the controllers, the replica servers and how many partitions each leads, the gateways with the URLs under
    which clients find them, and the partitions that are offline, under-replicated, paused or read-only."""

    async def task() -> tuple[Any, Any]:
        async with connect(gateways, operator=True) as log:
            return await log.cluster.status(), await log.cluster.quorum()

    metadata, quorum = run(task)
    servers = sorted(metadata.servers, key=lambda server: server.node)
    partitions = [(topic, p) for topic in metadata.topics for p in topic.partitions]
    offline = [f"{topic.name}/{p.partition}" for topic, p in partitions if not p.leader]
    behind = [f"{topic.name}/{p.partition}" for topic, p in partitions if len(p.isr) < len(p.replicas)]
    paused = [f"{topic.name}/{p.partition}" for topic, p in partitions if p.paused]
    read_only = [f"{topic.name}/{p.partition}" for topic, p in partitions if p.read_only]
    table = Table("id", "role", "state", "url")
    for controller in quorum.controllers:
        if controller.rolled_back:
            state = f"rolled back: {refill_in_words(controller)}"
        else:
            state = "active" if controller.node == quorum.active else ""
        table.add(controller.node, "controller", state, controller.url)
    for server in servers:
        leads = sum(p.leader == server.node for _, p in partitions)
        state = "down" if server.fenced else f"leads {leads} of {len(partitions)}"
        table.add(server.node, "replica", state, server.url)
    for gateway in quorum.gateways:
        table.add(gateway, "gateway", "", quorum.gateway_urls.get(gateway, ""))
    document = {
        "cluster": metadata.cluster,
        "active_controller": quorum.active,
        "controllers": [{"id": c.node, "url": c.url, "role": c.role} for c in quorum.controllers],
        "servers": [
            {"id": s.node, "url": s.url, "broker_epoch": s.broker_epoch, "live": not s.fenced} for s in servers
        ],
        "gateways": [{"id": node, "url": quorum.gateway_urls.get(node, "")} for node in quorum.gateways],
        "partitions": len(partitions),
        "offline": offline,
        "under_replicated": behind,
        "paused": paused,
        "read_only": read_only,
    }
    if print_for_programs(output, table, document):
        return
    size = f"{counted(len(metadata.topics), 'topic')}, {counted(len(partitions), 'partition')}"
    say(f"cluster {metadata.cluster}, {size}")
    table.print(wide=output == WIDE)
    for title, names in (
        ("offline", offline),
        ("under-replicated", behind),
        ("paused", paused),
        ("read-only", read_only),
    ):
        if names:
            say(f"{title}: {', '.join(names[:20])}" + (f" and {len(names) - 20} more" if len(names) > 20 else ""))
