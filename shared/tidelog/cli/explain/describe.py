"""``tidelog describe``, and what ``tidelog why --at`` prints: a topic now, or as it was at some moment."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tidelog.cli.admin.topics import as_json_topic, partitions_table, print_topic
from tidelog.cli.completion import topic_names
from tidelog.cli.explain.retention_waits import AwaitedGroup, ask_awaited
from tidelog.cli.explain.sentences import partition_of
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import WIDE, list_output, print_for_programs, say
from tidelog.quantities import SECONDS, parse
from tidelog.timeline.query import Moment, TimelineReader, partition_at, topic_at
from tidelog.timeline.records import Document
from tidelog.timeline.replay import PastTopic
from tidelog.wire.messages import HistoryEntry, PartitionInfo, TopicInfo

_AGO = re.compile(r"-([0-9.]+\s*[a-z]+)", re.ASCII | re.IGNORECASE)
_EPOCH = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_MILLISECONDS = 1e11
"""Numbers above this are milliseconds since 1970, others seconds."""

AT_HELP = "A moment: 2026-01-31T12:00:00, -5m (also ms, s, h, d, w), or seconds or milliseconds since 1970."
"""Help text of the option ``--at``."""


def parse_moment(text: str, now: datetime) -> datetime | None:
    """Parse a moment: a date and time in ISO 8601 (local time if it has no zone), a time before ``now`` such as
    ``-5m``, or a number of seconds or milliseconds since 1970. Returns None for any other text."""
    try:
        if ago := _AGO.fullmatch(text):
            return now - timedelta(seconds=float(parse(ago[1], SECONDS)))
        if _EPOCH.fullmatch(text):
            number = float(text)
            return datetime.fromtimestamp(number / 1000 if number > _MILLISECONDS else number, UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.tzinfo else moment.astimezone()


def _moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Parse the value of the option ``--at``, as a callback of click; None if the option is not given. Raises
    ``click.BadParameter`` for a text that is no moment, and for a moment in the future."""
    now = datetime.now(UTC)
    at = None if value is None else parse_moment(value, now)
    if value is not None and at is None:
        raise click.BadParameter(f"{value!r} is no moment, such as 2026-01-31T12:00:00 or -5m")
    if at is not None and at > now:
        raise click.BadParameter(f"{at.isoformat()} has not been yet")
    return at


at_option = click.option("--at", callback=_moment, metavar="TIME", help=AT_HELP)
"""Decorator that adds the option ``--at`` to a command, as its argument ``at``."""


@click.command()
@click.argument("where", metavar="TOPIC[/PARTITION]", shell_complete=topic_names)
@at_option
@list_output
@gateway_option
def describe(where: str, at: datetime | None, output: str, gateways: tuple[str, ...]) -> None:
    """Show a topic or a partition as it is; with --at as it was at that moment, from the timeline of the cluster.

    \b
    tidelog describe orders
    tidelog describe orders/0 --at -5m
    tidelog describe orders/0 --at 2026-01-31T12:00:00
    """
    name, number = partition_of(where) if "/" in where else (where, None)
    if at is None:
        _describe_now(name, number, output, gateways)
        return

    async def task() -> Moment:
        async with connect(gateways, operator=True) as log:
            return await TimelineReader(log).moment(at)

    moment = run(task)
    topic = topic_info(topic_at(moment, name), number)
    table = partitions_table(topic, offsets=False)
    if print_for_programs(output, table, as_json_topic(topic) | _as_json_moment(moment)):
        return
    say(f"as of {_clock(moment.at)}, after event {moment.past.event}, which was at {_time(moment.past.time_ms)}")
    if not moment.past.complete:
        say(_incomplete(moment))
    print_topic(topic, table, {}, wide=output == WIDE)
    down = [node for node, server in sorted(moment.past.servers.items()) if server["fenced"]]
    say(f"active controller {moment.past.active or 'unknown'}; servers down: {', '.join(down) or 'none'}")


def _describe_now(name: str, number: int | None, output: str, gateways: tuple[str, ...]) -> None:
    """Ask the cluster for a topic, and print its present state: of all partitions, or only of partition ``number`` if
    that is not None. Ends the command with the error ``UNKNOWN_TOPIC`` if the topic or partition does not exist."""

    async def task() -> tuple[TopicInfo, dict[int, tuple[HistoryEntry, ...]], tuple[AwaitedGroup, ...]]:
        async with connect(gateways, operator=True) as log:
            topic = _only(await log.topics.describe(name, offsets=True), number)
            moved = [p.partition for p in topic.partitions if p.leader_epoch > 0]
            return topic, await log.partitions.histories(topic, moved), await ask_awaited(log, topic)

    topic, histories, awaited = run(task)
    table = partitions_table(topic)
    if not print_for_programs(output, table, as_json_topic(topic)):
        print_topic(topic, table, histories, awaited, wide=output == WIDE)


def _only(topic: TopicInfo, number: int | None) -> TopicInfo:
    """Return a description of a topic with only partition ``number``, or unchanged if ``number`` is None. Raises
    ``UNKNOWN_TOPIC`` if the topic has no such partition."""
    if number is None:
        return topic
    partition_at(PastTopic(topic.topic_id, topic.name, {}, {p.partition: {} for p in topic.partitions}), number)
    return TopicInfo(topic.topic_id, topic.name, topic.config, (topic.partitions[number],))


def topic_info(topic: PastTopic, number: int | None) -> TopicInfo:
    """Return a past state of a topic, which was read from the timeline, as the ``TopicInfo`` by which the cluster
    describes topics: with all partitions, or only with partition ``number``. Raises ``UNKNOWN_TOPIC`` if the topic
    had no such partition."""
    chosen = topic.partitions if number is None else {number: partition_at(topic, number)}
    partitions = tuple(
        PartitionInfo(
            n,
            tuple(state["replicas"]),
            tuple(state["isr"]),
            state["leader"] or "",
            state["leader_epoch"],
            state["epoch"],
            elr=tuple(state.get("elr", ())),
            learners=tuple(state.get("learners", ())),
            successor=state.get("successor") or "",
            target=tuple(state.get("target", ())),
            read_only=state.get("read_only", False),
            paused=state.get("paused", False),
        )
        for n, state in sorted(chosen.items())
    )
    return TopicInfo(topic.topic_id, topic.name, topic.config, partitions)


def history_at(name: str, number: int, at: datetime, gateways: tuple[str, ...]) -> tuple[list[Document], str]:
    """Read the timeline of the cluster, and return the records about one partition up to the moment ``at``: events
    and refused requests, oldest first. Also returns a warning if earlier events were not kept, otherwise "". Ends the
    command with an error, such as ``UNKNOWN_TOPIC`` if the partition did not exist at that moment."""

    async def task() -> tuple[list[Document], Moment]:
        async with connect(gateways, operator=True) as log:
            reader = TimelineReader(log)
            moment = await reader.moment(at)
            topic = topic_at(moment, name)
            partition_at(topic, number)
            return await reader.chain(moment, topic, number), moment

    chain, moment = run(task)
    return chain, "" if moment.past.complete else _incomplete(moment)


def entries_of(chain: list[Document]) -> list[HistoryEntry]:
    """Convert records of the timeline, oldest first, to the entries of a partition's history that the controllers
    would return, in the same order. A refused request changes nothing, so its entry has the state of the entry before
    it."""
    entries = []
    now: Document = {"epoch": -1, "leader_epoch": -1, "leader": "", "isr": ()}
    for record in chain:
        now, evidence = record.get("after", now), record["evidence"]
        if record["type"] == "refused":
            evidence = {name: str(record[name]) for name in ("op", "asked_by", "message", "count")} | evidence
        entries.append(
            HistoryEntry(
                record["time_ms"],
                now["epoch"],
                now["leader_epoch"],
                record["kind"],
                record["cause"],
                now["leader"] or "",
                tuple(now["isr"]),
                evidence,
            )
        )
    return entries


def _as_json_moment(moment: Moment) -> dict[str, Any]:
    """Return a moment, the event before it and the servers of the cluster at that time as an object for JSON."""
    past = moment.past
    return {
        "at": moment.at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "event": past.event,
        "event_time": datetime.fromtimestamp(past.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "complete": past.complete,
        "active_controller": past.active,
        "servers": [past.servers[node] for node in sorted(past.servers)],
    }


def _incomplete(moment: Moment) -> str:
    """Return a sentence that says which events are not known, so that the state at a moment may be incomplete."""
    missing = moment.past.missing
    if missing is None:
        return "incomplete: the timeline before was not kept; what has not changed since then is missing here"
    return f"incomplete: events {missing[0]} up to {missing[1]} could not be kept; what they changed is missing here"


def _clock(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _time(time_ms: int) -> str:
    return _clock(datetime.fromtimestamp(time_ms / 1000, UTC))
