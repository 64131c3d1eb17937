"""Makes consumers of every kind, for ``Log.consume``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypedDict, Unpack

from tidelog.client.backward_consumer import BackwardConsumer
from tidelog.client.clock import process_name, random_name
from tidelog.client.connection import Connection
from tidelog.client.consumer import Consumer, Plan
from tidelog.client.group_consumer import GroupConsumer, Start
from tidelog.client.lookups import Where, check_partitions, describe_topic, find_offset, find_positions, parse_place
from tidelog.client.options import ConsumerOptions, GroupOptions
from tidelog.client.rebalance_listener import NO_HOOKS, Hooks
from tidelog.client.record_stream import RecordStream
from tidelog.errors import ConfigError
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import JoinGroup, ListOffset


class Reading(TypedDict, total=False):
    """Options of a consumer that may be given by name; see ``ConsumerOptions``."""

    read_from: str
    consistency: str
    max_staleness_s: float | None
    isolation: str
    on_unreadable: str


def open_consumer(
    connection: Connection,
    topic: str,
    *,
    start: Where = "latest",
    end: Where | None = None,
    partitions: Iterable[int] | None = None,
    reverse: bool = False,
    options: ConsumerOptions | None = None,
    **reading: Unpack[Reading],
) -> RecordStream:
    """Make a consumer that reads by itself; see ``Log.consume``."""
    chosen = None if partitions is None else sorted(set(partitions))
    wanted_options = replace(options or ConsumerOptions(), **reading)

    async def plan() -> Plan:
        found = await describe_topic(connection, topic)
        wanted = list(range(len(found.partitions))) if chosen is None else chosen
        check_partitions(found, wanted)

        async def locate(where: Where, partitions: list[int]) -> dict[int, Position]:
            return await find_positions(connection, found, where, partitions, wanted_options.isolation)

        starts = await locate(start, wanted)
        ends = {} if end is None else await locate(end, wanted)
        return Plan(found.topic_id, starts, {p: position.offset for p, position in ends.items()}, locate)

    kind = BackwardConsumer if reverse else Consumer
    return kind(connection, topic, wanted_options, plan)


def join_group(
    connection: Connection,
    topic: str | Iterable[str],
    group: str,
    *,
    start: Start = "earliest",
    instance: str = "",
    hooks: Hooks = NO_HOOKS,
    options: ConsumerOptions | None = None,
    group_options: GroupOptions | None = None,
    **reading: Unpack[Reading],
) -> GroupConsumer:
    """Make a consumer that is a member of a group; see ``Log.consume``."""
    topics = (topic,) if isinstance(topic, str) else tuple(sorted(set(topic)))
    chosen = group_options or GroupOptions()
    if not topics:
        raise ConfigError("a member of a group names at least one topic")
    if not isinstance(start, int):
        parse_place(start)

    async def locate(key: TopicPartition, start: Start) -> Position:
        if isinstance(start, int):
            return Position(-1, start)
        kind, timestamp_ms = parse_place(start)
        return Position(-1, (await find_offset(connection, ListOffset(*key, kind, timestamp_ms))).offset)

    join = JoinGroup(
        group,
        random_name(),
        topics,
        instance,
        chosen.assignor,
        round(chosen.session_timeout_s * 1000),
        round(chosen.rebalance_timeout_s * 1000),
        process_name(),
    )
    wanted = replace(options or ConsumerOptions(), **reading)
    return GroupConsumer(connection, join, start, wanted, chosen, locate, hooks)
