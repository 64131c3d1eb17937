"""Makes consumers: of one topic, and as members of groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from tidelog.client.connection import GatewayConnection
from tidelog.client.consumer import Consumer, Plan
from tidelog.client.lookups import Where, check_partitions, describe_topic, find_offset, find_positions, parse_place
from tidelog.client.loop import process_name, random_name
from tidelog.client.options import ConsumerOptions, GroupOptions, Reading
from tidelog.client.record_stream import RecordStream
from tidelog.errors import ConfigError
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import ListOffset

if TYPE_CHECKING:
    from tidelog.client.group_consumer import GroupConsumer, Hooks, Start


def open_consumer(
    connection: GatewayConnection,
    topic: str,
    *,
    start: Where = "latest",
    end: Where | None = None,
    partitions: Iterable[int] | None = None,
    reverse: bool = False,
    options: ConsumerOptions | None = None,
    **reading: Unpack[Reading],
) -> RecordStream:
    """Return a consumer of one topic that looks up its partitions, start and end when it is opened."""
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

    if reverse:
        from tidelog.client.backward_consumer import BackwardConsumer

        return BackwardConsumer(connection, topic, wanted_options, plan)
    return Consumer(connection, topic, wanted_options, plan)


def join_group(
    connection: GatewayConnection,
    topic: str | Iterable[str],
    group: str,
    *,
    start: Start = "earliest",
    instance: str = "",
    hooks: Hooks | None = None,
    options: ConsumerOptions | None = None,
    group_options: GroupOptions | None = None,
    **reading: Unpack[Reading],
) -> GroupConsumer:
    """Return a consumer that joins the group when it is opened. Raises ``ConfigError`` without a topic, or if
    ``start`` is no place."""
    from tidelog.client.group_consumer import NO_HOOKS, GroupConsumer
    from tidelog.wire.messages import JoinGroup

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
    return GroupConsumer(connection, join, start, wanted, chosen, locate, hooks or NO_HOOKS)
