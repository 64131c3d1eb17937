"""Look-ups in the cluster before reading, writing or administration: topics, and the offsets of places."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidelog.client.connection import GatewayConnection
from tidelog.client.loop import Loop
from tidelog.errors import ConfigError, CorruptBatch, refuse
from tidelog.types import Position
from tidelog.wire import messages
from tidelog.wire.messages import Metadata, MetadataAnswer, TopicInfo

if TYPE_CHECKING:
    from tidelog.wire.messages import ListOffset, OffsetAnswer

Where = str | int | datetime | Mapping[int, int | Position]
"""A place in every partition: ``earliest``, ``latest``, an offset, a time (the first record at or after it), or
partition -> offset or ``Position``."""

T = TypeVar("T")


async def ask_topics(connection: GatewayConnection, name: str, *, offsets: bool = False) -> tuple[TopicInfo, ...]:
    """Return the metadata of the topic of that name, as a tuple with one element; an empty tuple if there is no such
    topic. ``offsets``: also request the log start and high watermark of each partition from the leaders."""
    return (await connection.ask(Metadata(topics=(name,), offsets=offsets), MetadataAnswer)).topics


async def describe_topic(connection: GatewayConnection, name: str, *, offsets: bool = False) -> TopicInfo:
    """Return the metadata of one topic. ``offsets``: also request the log start and high watermark of each partition
    from the leaders. Raises ``UNKNOWN_TOPIC``."""
    for found in await ask_topics(connection, name, offsets=offsets):
        if found.name == name:
            return found
    raise refuse("UNKNOWN_TOPIC", f"there is no topic {name}", topic=name)


def check_partitions(topic: TopicInfo, partitions: Iterable[int]) -> None:
    """Raise ``UNKNOWN_TOPIC`` if the topic does not have one of these partitions; otherwise do nothing."""
    count = len(topic.partitions)
    for partition in partitions:
        if not 0 <= partition < count:
            raise refuse("UNKNOWN_TOPIC", f"{topic.name} has partitions 0 to {count - 1}, not {partition}")


async def list_offsets(
    connection: GatewayConnection,
    topic: TopicInfo,
    at: str | datetime,
    partitions: Iterable[int],
    isolation: str = "committed",
) -> dict[int, OffsetAnswer]:
    """Request from the leaders the offset of a place in each of these partitions, and return the answers by
    partition. The place is ``earliest``, ``latest``, or a time: the first record at or after it. Raises
    ``ConfigError`` for another place, and the error of a leader that gives no answer."""
    kind, timestamp_ms = parse_place(at)

    async def ask(partition: int) -> OffsetAnswer:
        request = messages.ListOffset(topic.topic_id, partition, kind, timestamp_ms, isolation=isolation)
        return await find_offset(connection, request)

    return await ask_each(connection.loop, ask, partitions)


async def find_offset(connection: GatewayConnection, request: ListOffset) -> OffsetAnswer:
    """Request the offset of a place in one partition from its leader, and return the answer. Servers of an earlier
    release answer a request by time with the first offset of a batch; the first record at or after the time is then
    found by reading that batch. If the batch cannot be decoded, its first offset is returned, and a reader that
    begins there gets the error."""
    answer = await connection.ask(request, messages.OffsetAnswer)
    if not 0 <= answer.timestamp_ms < request.timestamp_ms:
        return answer
    place = request.topic_id, request.partition, answer.offset
    read = messages.Read(*place, max_bytes=1, isolation=request.isolation)
    payload = (await connection.ask(read, messages.ReadAnswer)).payload
    assert not isinstance(payload, list)
    with suppress(CorruptBatch):
        from tidelog.batch.format import decode_batch, split

        for _, batch in split(payload):
            for record in decode_batch(batch):
                if record.offset >= answer.offset and record.timestamp_ms >= request.timestamp_ms:
                    return messages.OffsetAnswer(record.offset, record.leader_epoch, record.timestamp_ms)
    return answer


async def find_positions(
    connection: GatewayConnection, topic: TopicInfo, where: Where, partitions: list[int], isolation: str = "committed"
) -> dict[int, Position]:
    """Return the position of a place in each of these partitions. Offsets and mappings need no request; ``earliest``,
    ``latest`` and times are looked up at the leaders. The leader epoch is -1 unless ``where`` gives one. Raises
    ``ConfigError`` for a negative offset, an unknown place, or a mapping that lacks a partition."""
    if isinstance(where, int):
        if where < 0:
            raise ConfigError(f"an offset is not negative: {where}")
        return {partition: Position(-1, where) for partition in partitions}
    if isinstance(where, Mapping):
        missing = [partition for partition in partitions if partition not in where]
        if missing:
            raise ConfigError(f"no position is given for partitions {missing} of {topic.name}")
        given = {partition: where[partition] for partition in partitions}
        return {p: at if isinstance(at, Position) else Position(-1, at) for p, at in given.items()}
    found = await list_offsets(connection, topic, where, partitions, isolation)
    return {partition: Position(-1, answer.offset) for partition, answer in found.items()}


def parse_place(at: str | datetime) -> tuple[str, int]:
    """Return the name of a place on the wire (``earliest``, ``latest`` or ``timestamp``) and its time in milliseconds
    since 1970, -1 if it is no time. Raises ``ConfigError`` for any other place."""
    if isinstance(at, datetime):
        return "timestamp", round(at.timestamp() * 1000)
    if at not in ("earliest", "latest"):
        raise ConfigError(f"a place is earliest, latest, an offset or a datetime, not {at!r}")
    return at, -1


async def ask_each(loop: Loop, ask: Callable[[int], Awaitable[T]], keys: Iterable[int]) -> dict[int, T]:
    """Call ``ask`` for every key concurrently, and return the answers by key, in ascending order. The first error
    cancels the other calls and is raised."""
    answers: dict[int, T] = {}

    async def one(key: int) -> None:
        answers[key] = await ask(key)

    await loop.gather(partial(one, key) for key in keys)
    return dict(sorted(answers.items()))
