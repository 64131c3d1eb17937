"""``tidelog status`` and ``tidelog why``: the cluster, and why a partition is in its present state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from tidelog.cli.completion import places
from tidelog.cli.explain.describe import at_option, entries_of, history_at
from tidelog.cli.explain.sentences import change_in_words, clock, event_in_words, partition_of, refill_in_words
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import WIDE, Table, counted, list_output, print_for_programs, rows_output, say
from tidelog.wire.messages import HistoryEntry


@click.command()
@list_output
@gateway_option
def status(output: str, gateways: tuple[str, ...]) -> None:
    """Show the controllers, the replica servers and how many partitions each leads, the gateways with the URLs under
    which clients find them, and the partitions that are offline, under-replicated, paused or read-only."""

    async def task() -> tuple[Any, Any]:
        async with connect(gateways) as log:
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


@click.command()
@click.argument("where", metavar="TOPIC/PARTITION", shell_complete=places)
@at_option
@rows_output
@gateway_option
def why(where: str, at: datetime | None, output: str, gateways: tuple[str, ...]) -> None:
    """Explain a partition: every change of its leader and in-sync set, every change of the topic's settings, every
    loss of records, and every refused request, oldest first, with cause and evidence. With --at up to that moment,
    from the timeline of the cluster, which keeps more than the controllers remember.

    \b
    tidelog why orders/0
    tidelog why orders/0 --at -2h
    """
    name, number = partition_of(where)
    words: list[str] = []
    if at is not None:
        chain, warning = history_at(name, number, at, gateways)
        entries: Any = entries_of(chain)
        words = [record["words"] for record in chain]
        if warning:
            say(warning, err=True)
    else:

        async def task() -> Any:
            async with connect(gateways) as log:
                return await log.partitions.history(name, number)

        entries = run(task)
    _print_history(entries, words, output)


def _print_history(entries: list[HistoryEntry], words: list[str], output: str) -> None:
    """Print the entries of a partition's history, oldest first, in the format ``output``. ``words`` has the sentence
    of the timeline for each entry; if it is empty, sentences are made of the entries."""
    rows = [
        {
            "time": datetime.fromtimestamp(e.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "epoch": e.epoch,
            "leader_epoch": e.leader_epoch,
            "event": e.event,
            "leader": e.leader,
            "isr": list(e.isr),
            "cause": e.cause,
            "evidence": e.evidence,
            **({"words": words[i]} if words else {}),
        }
        for i, e in enumerate(entries)
    ]
    columns = ("time", "epoch", "leader_epoch", "event", "leader", "isr", "cause", "evidence")
    table = Table(*columns, *(("words",) if words else ()))
    for row in rows:
        table.add(*row.values())
    if print_for_programs(output, table, rows):
        return
    for i, e in enumerate(entries):
        if e.event == "refused":
            say(f"{clock(e)}  refused: {words[i] if words else event_in_words(e)}")
            continue
        in_sync = " ".join(e.isr) or "nobody"
        eligible = f", eligible {e.evidence['elr']}" if e.evidence.get("elr") else ""
        say(
            f"{clock(e)}  epoch {e.epoch}, leader {e.leader or 'none'} ({e.leader_epoch}), "
            f"in sync {in_sync}{eligible}"
        )
        evidence = "; ".join(f"{key} {value or '-'}" for key, value in e.evidence.items())
        say(f"              {e.event}: {e.cause}" + (f" [{evidence}]" if evidence else ""))
        before = next((b for b in reversed(entries[:i]) if b.event != "refused"), None)
        say(f"              {words[i] if words else event_in_words(e) or change_in_words(e, before)}")
