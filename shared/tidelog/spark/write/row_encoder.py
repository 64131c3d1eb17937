"""Encodes rows of a table as batches of the log. Pure: the bytes of the batches are a function of the rows, the
producer and its timestamp, and the limits of the topics. The same rows in the same order from the same producer make
the same bytes, however Spark cuts them into tables. That is how leaders recognise a second attempt as a copy.

Columns: ``value``, and optionally ``key``, ``headers``, ``topic``, ``partition``. A record goes to the partition that
its row names, otherwise to the partition of its key (murmur2, as everywhere). Records with neither fill a batch of
one partition, then a batch of the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.batch.format import MAX_RECORDS, Codec, NewRecord, RecordHeaders, encode_batch
from tidelog.client.core.batch import BATCH_OVERHEAD, record_size
from tidelog.client.core.partitioner import Partitioner
from tidelog.spark.errors import SourceError
from tidelog.types import MAX_TASKS

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 256 << 10
"""Size in bytes at which a batch is closed. The limit of its topic applies if it is lower."""
COLUMNS = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""Columns of the sink and their types."""


class WriteTarget(NamedTuple):
    """A partition of a topic to which a task writes."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """An encoded batch of the log with its sequence number, ready to be sent to ``target``. ``count`` is the number
    of its records."""

    target: WriteTarget
    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The producer under which a task writes: all batches of the task carry its id and epoch."""

    id: int
    epoch: int
    timestamp_ms: int
    """The timestamp of every record of the task, in milliseconds since 1970."""
    transaction: str = ""
    """Transactional id of the staged transaction that the batches belong to; "": they belong to none."""
    ticket: str = field(default="", repr=False)
    """Proof that the cluster gave the id to this principal, for a connection that has not presented it."""


@dataclass(frozen=True, slots=True)
class Task:
    """The identity of a task of a numbered batch of an application, for which the cluster returns the same producer
    to every attempt. ``app`` is the transactional id of the application, ``owner`` the query that writes the batches,
    ``number`` the task's number in the batch."""

    app: str
    owner: str
    batch: int
    number: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The producer ids that the driver of a batch write has reserved for its tasks: task ``n`` gets the id ``first_id
    + n``."""

    first_id: int
    timestamp_ms: int
    ticket: str = field(default="", repr=False)
    """Ticket for all of the ids."""

    def of_task(self, task: int) -> TaskIdentity:
        """Return the producer of a task, which is the same for all its attempts. Raises ``TIDELOG_OPTION`` if the
        task's number is not below ``MAX_TASKS``."""
        if task >= MAX_TASKS:
            raise SourceError("TIDELOG_OPTION", f"an idempotent write has at most {MAX_TASKS} tasks: use coalesce()")
        return TaskIdentity(self.first_id + task, 0, self.timestamp_ms, ticket=self.ticket)


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic that a task needs for encoding: its number of partitions, and the largest batch in
    bytes."""

    partitions: int
    max_batch_bytes: int


def check_columns(types: Mapping[str, str], has_topic: bool) -> None:
    """Raise ``TIDELOG_SCHEMA``, with every error, if a write cannot take these columns. ``types`` maps each column to
    its type, as Spark writes it. ``has_topic`` says that the option ``topic`` is given, so that no column has to name
    the topic."""
    faults = [f"{name} is no column of a record" for name in types if name not in COLUMNS]
    faults += [
        f"{name} is {found}, not {' or '.join(COLUMNS[name])}"
        for name, found in types.items()
        if name in COLUMNS and found not in COLUMNS[name]
    ]
    if "value" not in types:
        faults.append("there is no column value")
    if "topic" not in types and not has_topic:
        faults.append("where rows go is not said: give the option topic, or a column topic")
    if faults:
        raise SourceError(
            "TIDELOG_SCHEMA",
            f"{'; '.join(faults)}. A write takes value (binary or string), and key, headers, topic, partition "
            "where there are such columns",
        )


class RowEncoder:
    """The encoder of one task attempt: it collects rows by partition, closes full batches, and numbers the records of
    each partition. ``start`` is the partition that gets the first records without key and partition; tasks differ in
    it, so that they spread."""

    def __init__(self, producer: TaskIdentity, codec: Codec, topic: str, start: int) -> None:
        self._encode = partial(
            encode_batch,
            codec=codec,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transactional=bool(producer.transaction),
        )
        self._timestamp_ms = producer.timestamp_ms
        self._topic = topic
        self._start = start
        self._limits: dict[str, TopicLimits] = {}
        self._partitioners: dict[str, Partitioner] = {}
        self._open: dict[WriteTarget, list[NewRecord]] = {}
        self._sizes: dict[WriteTarget, int] = {}
        self._sequences: dict[WriteTarget, int] = {}
        self.rows = 0

    def topics_of(self, table: pa.RecordBatch) -> list[str]:
        """Return the topics that the table's rows go to and whose limits are not set yet, sorted. Raises
        ``TIDELOG_VALUE`` if a row names no topic and the option ``topic`` is not given."""
        if "topic" not in table.schema.names:
            named = {self._topic}
        else:
            named = {name or self._topic for name in table.column("topic").unique().to_pylist()}
        if "" in named:
            raise SourceError("TIDELOG_VALUE", "a row has no topic (null), and the option topic is not given")
        return sorted(named - set(self._limits))

    def set_limits(self, topic: str, limits: TopicLimits) -> None:
        """Set the limits of a topic. The caller must do this before the first ``add`` of a row for that topic."""
        self._limits[topic] = limits
        self._partitioners[topic] = Partitioner(limits.partitions, self._start)

    def add(self, table: pa.RecordBatch) -> Iterator[NumberedBatch]:
        """Add the rows of a table, and yield the batches that became full. The other rows stay in open batches.
        Raises ``TIDELOG_VALUE`` for a row that cannot be a record: it is too large, names a partition that does not
        exist, or has a header without key or value."""
        columns = {name: table.column(name).to_pylist() for name in table.schema.names}
        nothing = [None] * table.num_rows
        wanted = (columns.get(name, nothing) for name in COLUMNS)
        for value, key, headers, topic, partition in zip(*wanted, strict=True):
            record = NewRecord(_bytes(value), _bytes(key), self._timestamp_ms, _pairs(headers))
            yield from self._add(topic or self._topic, partition, record)
            self.rows += 1

    def _add(self, topic: str, partition: int | None, record: NewRecord) -> Iterator[NumberedBatch]:
        """Add a record to the open batch of its partition, and yield the batches that had to be closed to make room
        for it. Raises ``TIDELOG_VALUE`` if the record is larger than a batch may be, or the partition does not
        exist."""
        limits, partitioner = self._limits[topic], self._partitioners[topic]
        size = record_size(record.value, record.key, record.headers)
        if BATCH_OVERHEAD + size > limits.max_batch_bytes:
            raise SourceError(
                "TIDELOG_VALUE",
                f"{topic}: a record of {size} bytes does not fit into a batch of max_batch_bytes "
                f"{limits.max_batch_bytes}",
            )
        sticky = partition is None and record.key is None
        if partition is None:
            partition = partitioner.sticky if record.key is None else partitioner.of_key(record.key)
        elif not 0 <= partition < limits.partitions:
            raise SourceError(
                "TIDELOG_VALUE", f"{topic} has partitions 0 to {limits.partitions - 1}; a row names {partition}"
            )
        target = WriteTarget(topic, partition)
        full = min(BATCH_BYTES, limits.max_batch_bytes)
        while target in self._open and (self._sizes[target] + size > full or len(self._open[target]) == MAX_RECORDS):
            yield self._close(target)
            if sticky:
                partitioner.move_on()
                target = WriteTarget(topic, partitioner.sticky)
        self._open.setdefault(target, []).append(record)
        self._sizes[target] = self._sizes.get(target, BATCH_OVERHEAD) + size

    def finish(self) -> Iterator[NumberedBatch]:
        """Close and yield the batches that are still open, in the order of topics and partitions. Called after the
        last ``add``."""
        for target in sorted(self._open):
            yield self._close(target)

    def _close(self, target: WriteTarget) -> NumberedBatch:
        """Encode the open batch of a partition under the partition's next sequence number, and return it. Raises
        ``TIDELOG_VALUE`` if a record cannot be encoded."""
        records = self._open.pop(target)
        self._sizes.pop(target)
        sequence = self._sequences.get(target, 0)
        self._sequences[target] = sequence + len(records)
        try:
            data = self._encode(records, base_sequence=sequence)
        except ValueError as error:
            raise SourceError("TIDELOG_VALUE", f"{target.topic}/{target.partition}: {error}") from None
        return NumberedBatch(target, data, len(records))


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _pairs(headers: Any) -> RecordHeaders:
    """Return the headers of a row as (key, value) pairs; an empty tuple for null. Raises ``TIDELOG_VALUE`` if a key
    or a value is null."""
    if not headers:
        return ()
    if any(pair is None or pair["key"] is None or pair["value"] is None for pair in headers):
        raise SourceError("TIDELOG_VALUE", "a header without key or value (null)")
    return tuple((pair["key"], pair["value"]) for pair in headers)
