"""The stream coordinators of this server, one for each partition of ``__streams`` that it leads:
``streams/coordinator.py`` on ``coordinators/runtime.py``.

A read at the end of a stream may wait. It waits here until something is appended to the stream, or its time is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from tidelog.batch.format import Columns, decode_columns, read_header
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.types import STREAMS, Buffer, TopicPartition
from tidelog.wire.messages import Message, ReadStream

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.context import NodeContext
from tidelog_replica.coordinators.runtime import CoordinatorRuntime, CoordinatorShard
from tidelog_replica.coordinators.streams.coordinator import KINDS as KINDS
from tidelog_replica.coordinators.streams.coordinator import WRITES, StoredStreams, StreamCoordinator, StreamRead
from tidelog_replica.coordinators.streams.records import data_of
from tidelog_replica.partition.partition import Partition

MAX_WAIT_MS = 60_000
"""Longest wait of a read at the end of a stream, in ms."""
SEEK_BYTES = 64 << 10
"""Bytes of the log that are read at once to find appends of one stream."""

Shard = CoordinatorShard[StreamCoordinator, StoredStreams]


@dataclass(slots=True, eq=False)
class _Reader:
    """A read that waits for an append."""

    source: int
    id: int | None
    message: ReadStream
    is_waiting: bool = True


class StreamCoordinatorService(CoordinatorRuntime[StreamCoordinator, StoredStreams]):
    """The coordinators of streams on this server, one for each partition of ``__streams`` that it leads, and the
    reads that wait for appends. It lives as long as the node."""

    TOPIC: ClassVar[str] = STREAMS

    def __init__(self, context: NodeContext, assignment: Assignment, leadership: Leadership) -> None:
        super().__init__(context, assignment, leadership)
        self._readers: dict[TopicPartition, dict[str, list[_Reader]]] = {}
        """Waiting reads by partition and path."""
        self._ends: list[tuple[float, int, _Reader]] = []
        """Heap of the times at which waiting reads are given up, also of those that wait no more."""
        self._order = 0

    @property
    def cores(self) -> Iterator[StreamCoordinator]:
        """Iterate over the coordinators that serve requests on this server now."""
        for led in self._led.values():
            if led.core is not None and led.is_led:
                yield led.core

    def _store(self) -> StoredStreams:
        return StoredStreams()

    def _add_record(self, stored: StoredStreams, key: bytes | None, value: bytes | None, offset: int) -> None:
        stored.add_record(key, value, offset)

    def _make(self, led: Shard, now: float) -> StreamCoordinator:
        core = StreamCoordinator(self._settings.streams, led.leading.core.epoch, led.leading.log_end)
        core.load_records(led.stored, now, self._wall_ms())
        return core

    def _on_begun(self, led: Shard, core: StreamCoordinator) -> None:
        fields = {"partition": led.partition.key.partition, "streams": len(core.streams)}
        self._effects.event("streams_coordinated", **fields, log_end=led.partition.log.end)

    def _on_unreadable(self, led: Shard) -> None:
        self._effects.event("streams_unreadable", partition=led.partition.key.partition, reason=led.broken)

    def _number(self, message: Message) -> int:
        return partition_of(getattr(message, "path", "").encode(), self.partitions)

    def _changes(self, message: Message) -> bool:
        return isinstance(message, WRITES)

    # --- reads -----------------------------------------------------------------------------------------------

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> None:
        """Pass a request to the coordinator that it is for. A read is answered from the log. A change lets the reads
        go on that wait for it."""
        if isinstance(message, ReadStream):
            self._read_stream(_Reader(source, id, message), now, now + min(message.max_wait_ms, MAX_WAIT_MS) / 1000)
        else:
            super().on_request(source, id, message, now)

    def on_settled(self, partition: Partition, now: float) -> None:
        """Follow the state of a partition, as the base class does. What was appended can be read from now on: let the
        reads go on that wait for it."""
        super().on_settled(partition, now)
        led = self._led.get(partition.key)
        if led is None or led.core is None:
            return
        for path in led.core.take_changed():
            for reader in self._readers.get(partition.key, {}).pop(path, ()):
                reader.is_waiting = False
                self._read_stream(reader, now, now)

    def _read_stream(self, reader: _Reader, now: float, until: float) -> None:
        """Answer a read. If it is at the end of its stream, have it wait until ``until`` (seconds); and if the log
        does not have what it asks for yet, until the end of this input."""
        led = self._find(reader.message, now)
        if isinstance(led, TidelogError):
            self._effects.answer(reader.source, reader.id, led)
            return
        assert led.core is not None
        found = led.core.read(reader.message, self._wall_ms())
        if isinstance(found, TidelogError):
            self._reply(led, reader.source, reader.id, reader.message, found, False, now)
        elif found.places and found.places[-1] >= led.partition.log.end:
            self._wait_for_append(led, reader, found, now + self._settings.ack_timeout_s)
        elif found.places or found.answer.closed or until <= now:
            led.partition.guard(self._answer_read, led, reader, found, now)
        else:
            self._wait_for_append(led, reader, found, until)
        self._touch(led.partition.key)
        self._set_timer(now)

    def _wait_for_append(self, led: Shard, reader: _Reader, found: StreamRead, until: float) -> None:
        message = replace(reader.message, position=found.answer.position)
        reader = _Reader(reader.source, reader.id, message)
        self._readers.setdefault(led.partition.key, {}).setdefault(reader.message.path, []).append(reader)
        self._order += 1
        heappush(self._ends, (until, self._order, reader))

    def _answer_read(self, led: Shard, reader: _Reader, found: StreamRead, now: float) -> None:
        """Read the bytes of a read from the log, and answer it."""
        answer: Message | TidelogError
        try:
            answer = replace(found.answer, payload=self._data(led, found.places))
        except (CorruptBatch, ValueError) as error:
            answer = refuse("CORRUPT_BATCH", str(error))
        self._reply(led, reader.source, reader.id, reader.message, answer, False, now)

    def _data(self, led: Shard, places: list[int]) -> list[Buffer]:
        """Return the bytes of the appends at these log offsets. Raises ``OSError``, and ``CorruptBatch`` or
        ``ValueError`` if a record cannot be decoded."""
        parts: list[Buffer] = []
        while len(parts) < len(places):
            before = len(parts)
            for batch in led.partition.log.read(places[before], SEEK_BYTES):
                if len(parts) == len(places):
                    break
                if read_header(batch).end_offset > places[len(parts)]:
                    _take(decode_columns(batch), places, parts)
            if len(parts) == before:
                raise ValueError(f"the log has no append at offset {places[before]}")
        return parts

    # --- the life of waiting reads ---------------------------------------------------------------------------

    def on_tick(self, now: float) -> None:
        """Answer the reads that have waited long enough, and do what the base class does."""
        late: list[_Reader] = []
        while self._ends and self._ends[0][0] <= now:
            late.append(heappop(self._ends)[2])
        for reader in late:  # only now, since each sets the timer
            if reader.is_waiting:
                self._drop([reader])
                self._read_stream(reader, now, now)
        super().on_tick(now)

    def _due(self) -> float | None:
        while self._ends and not self._ends[0][2].is_waiting:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def on_source_closed(self, source: int) -> None:
        """Discard the requests of a link, as the base class does, and its waiting reads."""
        super().on_source_closed(source)
        self._drop(reader for reader in self._all_readers() if reader.source == source)

    def _resign(self, led: Shard) -> None:
        """End a coordinator, as the base class does, and answer the reads that wait there."""
        super()._resign(led)
        gone = refuse("NOT_COORDINATOR", f"{self._node} leads no more")
        for readers in self._readers.pop(led.partition.key, {}).values():
            for reader in readers:
                reader.is_waiting = False
                self._effects.answer(reader.source, reader.id, gone)

    def _all_readers(self) -> list[_Reader]:
        return [one for of_path in self._readers.values() for readers in of_path.values() for one in readers]

    def _drop(self, readers: Iterable[_Reader]) -> None:
        """Let these reads wait no more."""
        for reader in readers:
            reader.is_waiting = False
            for of_path in self._readers.values():
                waiting = of_path.get(reader.message.path)
                if waiting is not None and reader in waiting:
                    waiting.remove(reader)
                    if not waiting:
                        del of_path[reader.message.path]


def _take(columns: Columns, places: list[int], parts: list[Buffer]) -> None:
    """Add the bytes of those of the next places that are in this batch. Raises ``ValueError`` if the batch has no
    append at one of them."""
    values = dict(zip(columns.offsets, columns.values, strict=True))
    while len(parts) < len(places) and places[len(parts)] < columns.header.end_offset:
        value = values.get(places[len(parts)])
        if value is None:
            raise ValueError(f"the log has no append at offset {places[len(parts)]}")
        parts.append(data_of(value))
