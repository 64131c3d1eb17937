"""The data source that Spark sees. The driver plans, and executors read, in processes that come and go. So its
objects are plain and small, and heavy imports happen only where the work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from tidelog.spark.errors import SourceError
from tidelog.spark.options import ReadOptions, parse
from tidelog.spark.read import planner
from tidelog.spark.read import ranges as offsets
from tidelog.spark.read.pushdown import Bounds
from tidelog.spark.read.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.spark.micro_batches import TidelogStreamReader
    from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter


class TidelogDataSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("tidelog")``; options are those of ``tidelog.spark.options``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "tidelog"

    def schema(self) -> str:
        """Return the columns as a Spark DDL text."""
        from tidelog.spark.read import arrow

        wanted = {name.lower(): text for name, text in self.options.items()}.get("includeheaders", "false")
        return arrow.DDL_HEADERS if wanted.strip().lower() == "true" else arrow.DDL

    def reader(self, schema: Any) -> TidelogReader:
        """Return the reader of a batch read. Its offsets are fixed when Spark plans the query."""
        options = parse(self.options)
        _check_columns(schema, options)
        return FilteringReader(options) if options.filter_pushdown else TidelogReader(options)

    def streamReader(self, schema: Any) -> TidelogStreamReader:
        """Return the reader of a stream, which begins at the end, or where options or checkpoint say."""
        from tidelog.spark.micro_batches import TidelogStreamReader

        options = parse(self.options, streaming=True)
        _check_columns(schema, options)
        return TidelogStreamReader(options)

    def writer(self, schema: Any, overwrite: bool) -> TidelogWriter:
        """Return the writer of a batch write."""
        from tidelog.spark import sink

        return sink.TidelogWriter(sink.checked(self.options, schema, overwrite, streaming=False))

    def streamWriter(self, schema: Any, overwrite: bool) -> TidelogStreamWriter:
        """Return the writer of a stream."""
        from tidelog.spark import sink

        return sink.TidelogStreamWriter(sink.checked(self.options, schema, overwrite, streaming=True))


def _check_columns(schema: Any, options: ReadOptions) -> None:
    from tidelog.spark.read import arrow

    expected = arrow.schema(options.include_headers).names
    if schema.fieldNames() != expected:
        raise SourceError(
            "TIDELOG_SCHEMA",
            f"the columns are {', '.join(expected)}: leave out schema() and select what you need",
        )


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """The work of one task, as Spark ships it."""

    range: Range


class TidelogReader(DataSourceReader):  # type: ignore[misc]
    """Plans ranges on the driver; a task reads one."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.bounds = Bounds()

    def partitions(self) -> list[RangePartition]:
        """Return the ranges, with their ends fixed now."""
        options = self.options
        with planner.connect(options) as client:
            found = planner.extents(client, options)
            starting = planner.offsets_at(
                client, found, options.starting_offsets, "a starting time", options.beyond_time
            )
            ending = planner.offsets_at(client, found, options.ending_offsets, "an ending time", "latest")
        ranges = self.bounds.narrow(offsets.plan(found, starting, ending, options.fail_on_data_loss))
        return [
            RangePartition(each) for each in offsets.cut(ranges, options.min_partitions, options.max_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one range, as Arrow record batches. If no range was planned, Spark still calls this
        with a partition of its own."""
        from tidelog.spark.read import task as reading

        if isinstance(partition, RangePartition):
            yield from reading.read(self.options, partition.range)


class FilteringReader(TidelogReader):
    """Reader with ``filterPushdown``: topics, partitions and offsets that a filter excludes are not read. It is a
    class of its own, since Spark refuses every reader with ``pushFilters`` unless its own switch is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read by filters. Spark applies all filters again."""
        for each in filters:
            self.bounds.add_filter(each)
        return filters
