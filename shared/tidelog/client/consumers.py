"""How an application reads: consumers of every kind, and the offsets of places. ``Log`` has all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from tidelog.batch.format import BatchHeader, decode_batch, split
from tidelog.client.backward_consumer import BackwardConsumer
from tidelog.client.clock import process_name, random_name
from tidelog.client.connection import Connection
from tidelog.client.consumer import Consumer, Plan, Where
from tidelog.client.group_consumer import GroupConsumer, Start
from tidelog.client.loop import Loop
from tidelog.client.options import ConsumerOptions, GroupOptions
from tidelog.client.rebalance_listener import NO_HOOKS, Hooks
from tidelog.client.record_stream import RecordStream
from tidelog.errors import ConfigError, CorruptBatch, refuse
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import JoinGroup, ListOffset, Message, OffsetAnswer, Read, ReadAnswer, TopicInfo

A = TypeVar("A", bound=Message)
T = TypeVar("T")


class Reading(TypedDict, total=False):
    """Options of a consumer that may be given by name; see ``ConsumerOptions``."""

    read_from: str
    consistency: str
    max_staleness_s: float | None
    isolation: str
    on_unreadable: str


class Consuming(ABC):
    """The part of ``Log`` that makes consumers and looks up offsets."""

    _connection: Connection
    _loop: Loop

    @abstractmethod
    async def _ask(self, request: Message, answer: type[A], *, again: bool = True) -> A:
        """A request and its answer."""

    @abstractmethod
    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic."""

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[False] = False,
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[True],
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> BackwardConsumer: ...

    @overload
    def consume(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        start: Start = "earliest",
        instance: str = "",
        hooks: Hooks = NO_HOOKS,
        options: ConsumerOptions | None = None,
        group_options: GroupOptions | None = None,
        **reading: Unpack[Reading],
    ) -> GroupConsumer: ...

    def consume(self, topic: str | Iterable[str], *, group: str | None = None, **how: Any) -> RecordStream:
        """``async for record in log.consume("orders", start="earliest")``. ``end``: stop there (half-open;
        ``latest``: at what is committed when the consumer is opened), else wait for more for ever. Records come in
        order per partition. ``read_from``, ``consistency``, ``max_staleness_s``, ``isolation`` and ``on_unreadable``
        take the place of the same in ``options``; raises ``ConfigError`` where they do not go together. ``start`` and
        ``end`` are the leaders' word in any case. The iterator raises ``UNKNOWN_TOPIC``, ``OFFSET_OUT_OF_RANGE``,
        ``LOG_TRUNCATED``, ``UnreadableBatch`` (unless ``on_unreadable`` is ``skip``), and ``TOPIC_PAUSED`` as soon as
        one of its partitions is paused.

        ``reverse``: newest first, from below ``start`` down to ``end`` (or the log's beginning): the same records, in
        the other order, as from ``end`` to ``start``.

        ``group``: as a member of this consumer group, which shares the partitions of these topics among its members
        and keeps how far it has come; ``start`` counts only where it has not come anywhere. ``instance``: the name of
        a static member, which may be away for the session timeout without losing its share. See ``GroupConsumer``."""
        if group is not None:
            return self._as_member(topic, group, **how)
        if not isinstance(topic, str):
            raise ConfigError("several topics at a time need a group")
        return self._alone(topic, **how)

    def _alone(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: bool = False,
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> RecordStream:
        chosen = None if partitions is None else sorted(set(partitions))
        wanted_options = replace(options or ConsumerOptions(), **reading)

        async def plan() -> Plan:
            found = await self.describe(topic)
            wanted = list(range(len(found.partitions))) if chosen is None else chosen
            check_partitions(found, wanted)

            async def locate(where: Where, partitions: list[int]) -> dict[int, Position]:
                return await self._positions(found, where, partitions, wanted_options.isolation)

            starts = await locate(start, wanted)
            ends = {} if end is None else await locate(end, wanted)
            return Plan(found.topic_id, starts, {p: position.offset for p, position in ends.items()}, locate)

        kind = BackwardConsumer if reverse else Consumer
        return kind(self._connection, topic, wanted_options, plan)

    def _as_member(
        self,
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
        topics = (topic,) if isinstance(topic, str) else tuple(sorted(set(topic)))
        chosen = group_options or GroupOptions()
        if not topics:
            raise ConfigError("a member of a group names at least one topic")
        if not isinstance(start, int):
            _place(start)

        async def locate(key: TopicPartition, start: Start) -> Position:
            if isinstance(start, int):
                return Position(-1, start)
            kind, timestamp_ms = _place(start)
            return Position(-1, (await self._offset_at(ListOffset(*key, kind, timestamp_ms))).offset)

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
        return GroupConsumer(self._connection, join, start, wanted, chosen, locate, hooks)

    async def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """The offset at a place of one partition: ``earliest``, ``latest``, or of the first record at or after a time
        (``latest`` when there is none)."""
        found = await self.describe(topic)
        check_partitions(found, [partition])
        return (await self.list_offsets(found, at, [partition]))[partition]

    async def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """``list_offset`` of many partitions at a time. With isolation ``uncommitted`` ``latest`` is the high
        watermark, else the last stable offset."""
        kind, timestamp_ms = _place(at)

        async def ask(partition: int) -> OffsetAnswer:
            request = ListOffset(topic.topic_id, partition, kind, timestamp_ms, isolation=isolation)
            return await self._offset_at(request)

        return await self._each(ask, partitions)

    async def read_batches(
        self,
        topic_id: str,
        partition: int,
        at: Position,
        *,
        max_bytes: int = 1 << 20,
        wait_s: float = 0.0,
        isolation: str = "committed",
    ) -> tuple[ReadAnswer, list[tuple[BatchHeader, memoryview]]]:
        """Whole batches from a position on, as they lie in the log: what ``tidelog.batch.format`` decodes. The first
        may begin before. None after ``wait_s`` (30 at most) without news. Raises ``OFFSET_OUT_OF_RANGE``,
        ``LOG_TRUNCATED``, ``CORRUPT_BATCH``."""
        wait_ms = round(1000 * wait_s)
        request = Read(
            topic_id,
            partition,
            at.offset,
            at.leader_epoch,
            max_bytes=max_bytes,
            max_wait_ms=wait_ms,
            isolation=isolation,
        )
        answer = await self._connection.call(request, self._connection.request_timeout_s + wait_s)
        assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
        return answer, list(split(answer.payload))

    async def _each(self, ask: Callable[[int], Awaitable[T]], partitions: Iterable[int]) -> dict[int, T]:
        """Ask for every partition at once; the first error ends all."""
        answers: dict[int, T] = {}

        async def one(partition: int) -> None:
            answers[partition] = await ask(partition)

        await self._loop.gather(partial(one, partition) for partition in partitions)
        return dict(sorted(answers.items()))

    async def _offset_at(self, request: ListOffset) -> OffsetAnswer:
        """One offset. A gateway of an earlier release answers a request by time with the beginning of a batch, as
        leaders do. Then the record is found here. If the batch cannot be decoded, its first offset is the answer: a
        reader that begins there gets the error."""
        answer = await self._ask(request, OffsetAnswer)
        if not 0 <= answer.timestamp_ms < request.timestamp_ms:
            return answer
        place = request.topic_id, request.partition, answer.offset
        read = Read(*place, max_bytes=1, isolation=request.isolation)
        payload = (await self._ask(read, ReadAnswer)).payload
        assert not isinstance(payload, list)
        with suppress(CorruptBatch):
            for _, batch in split(payload):
                for record in decode_batch(batch):
                    if record.offset >= answer.offset and record.timestamp_ms >= request.timestamp_ms:
                        return OffsetAnswer(record.offset, record.leader_epoch, record.timestamp_ms)
        return answer

    async def _positions(
        self, topic: TopicInfo, where: Where, partitions: list[int], isolation: str = "committed"
    ) -> dict[int, Position]:
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
        found = await self.list_offsets(topic, where, partitions, isolation)
        return {partition: Position(-1, answer.offset) for partition, answer in found.items()}


def check_partitions(topic: TopicInfo, partitions: Iterable[int]) -> None:
    """Raises ``UNKNOWN_TOPIC`` for one that the topic does not have."""
    count = len(topic.partitions)
    for partition in partitions:
        if not 0 <= partition < count:
            raise refuse("UNKNOWN_TOPIC", f"{topic.name} has partitions 0 to {count - 1}, not {partition}")


def _place(at: str | datetime) -> tuple[str, int]:
    if isinstance(at, datetime):
        return "timestamp", round(at.timestamp() * 1000)
    if at not in ("earliest", "latest"):
        raise ConfigError(f"a place is earliest, latest, an offset or a datetime, not {at!r}")
    return at, -1
