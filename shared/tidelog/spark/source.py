"""The data source that Spark sees. It is planned on the driver and read on the executors, in processes that come
and go; so everything it keeps is plain and small, and imports of weight happen where the work is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tidelog.errors import TidelogError
from tidelog.spark import offsets
from tidelog.spark.errors import SourceError, data_loss, translated
from tidelog.spark.offsets import Extent, Range
from tidelog.spark.options import ReadOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.sync import Log

PLAN_TIMEOUT_S = 30.0
"""How long the driver tries to reach a gateway and to learn the offsets."""
READ_TIMEOUT_S = 120.0
"""How long a task waits for the next records of its range before it fails (and Spark tries it again)."""

log = logging.getLogger("tidelog.spark")


class TidelogDataSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("tidelog")``; options are those of ``tidelog.spark.options``."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` is called with."""
        return "tidelog"

    def schema(self) -> str:
        """The columns."""
        from tidelog.spark import arrow

        return arrow.DDL_HEADERS if parse(self.options).include_headers else arrow.DDL

    def reader(self, schema: Any) -> TidelogReader:
        """A batch read: from the offsets that are there now, fixed when Spark plans the query."""
        from tidelog.spark import arrow

        options = parse(self.options)
        expected = arrow.schema(options.include_headers).names
        if schema.fieldNames() != expected:
            raise SourceError(
                "TIDELOG_SCHEMA",
                f"the columns are {', '.join(expected)}: leave out schema() and select what you need",
            )
        return TidelogReader(options)


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's work, as Spark ships it."""

    range: Range


class TidelogReader(DataSourceReader):  # type: ignore[misc]
    """Plans ranges on the driver, reads one per task."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[RangePartition]:
        """The ranges, with their ends fixed now."""
        import tidelog.sync

        options = self.options
        try:
            with tidelog.sync.connect(
                **options.how_to_connect(), connect_timeout_s=PLAN_TIMEOUT_S, request_timeout_s=PLAN_TIMEOUT_S
            ) as client:
                found = [extent for topic in options.topics() for extent in self._extents(client, topic)]
        except TidelogError as error:
            raise translated(error) from error
        ranges = offsets.plan(found, options.starting_offsets, options.ending_offsets, options.fail_on_data_loss)
        return [RangePartition(each) for each in offsets.cut(ranges, options.min_partitions)]

    def _extents(self, client: Log, topic: str) -> list[Extent]:
        described = client.describe(topic)
        wanted = dict(self.options.assign).get(topic, tuple(range(len(described.partitions))))
        missing = [partition for partition in wanted if partition >= len(described.partitions)]
        if missing:
            last = len(described.partitions) - 1
            raise SourceError("TIDELOG_UNKNOWN_TOPIC", f"{topic} has partitions 0 to {last}; assign names {missing}")
        starts = client.list_offsets(described, "earliest", wanted)
        ends = client.list_offsets(described, "latest", wanted)
        return offsets.extents_of(topic, described.topic_id, _offsets(starts), _offsets(ends))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, as Arrow record batches. Where nothing was planned Spark asks all the same, for a
        partition of its own making."""
        import tidelog.sync

        if not isinstance(partition, RangePartition):
            return
        try:
            with tidelog.sync.connect(**self.options.how_to_connect(), connect_timeout_s=PLAN_TIMEOUT_S) as client:
                yield from self._read(client, partition.range)
        except TidelogError as error:
            raise translated(error) from error

    def _read(self, client: Log, wanted: Range) -> Iterator[pa.RecordBatch]:
        from tidelog.spark.arrow import Rows

        rows = Rows(wanted.topic, wanted.partition, self.options.include_headers)
        start = wanted.start
        while start < wanted.end:
            try:
                for batch in _batches(client, wanted, start, self.options.fetch_max_bytes):
                    rows.add(batch.data, batch.first, batch.end)
                    start = batch.end
                    if rows.is_enough():
                        yield from rows.take()
            except TidelogError as error:
                if error.code != "OFFSET_OUT_OF_RANGE":
                    raise
                start = self._skip(wanted, start, error)
        yield from rows.take()

    def _skip(self, wanted: Range, start: int, error: TidelogError) -> int:
        """Retention was faster than this task: where to go on, if that is allowed."""
        log_start = int(error.detail.get("log_start", -1))
        after = min(max(log_start, start), wanted.end)
        missing = f"offsets {start} to {after - 1}"
        if self.options.fail_on_data_loss or after <= start:
            raise data_loss(wanted.topic, wanted.partition, missing, error.message) from error
        log.warning("%s/%s: %s records lost: %s are gone", wanted.topic, wanted.partition, after - start, missing)
        return after


def _batches(client: Log, wanted: Range, start: int, fetch_max_bytes: int) -> Iterator[Any]:
    from tidelog.client.options import ConsumerOptions

    reading = ConsumerOptions(buffer_bytes=fetch_max_bytes, partition_bytes=fetch_max_bytes)
    with client.consume(
        wanted.topic, start=start, end=wanted.end, partitions=[wanted.partition], options=reading
    ) as consumer:
        if consumer.topic_id != wanted.topic_id:
            raise SourceError(
                "TIDELOG_TOPIC_CHANGED",
                f"{wanted.topic} was deleted and created again after the query was planned: run the query again",
            )
        while (batch := consumer.next_batch(READ_TIMEOUT_S)) is not None:
            yield batch


def _offsets(answers: Mapping[int, Any]) -> dict[int, int]:
    return {partition: answer.offset for partition, answer in answers.items()}
