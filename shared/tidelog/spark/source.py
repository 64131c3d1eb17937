"""The data source that Spark sees. It is planned on the driver and read on the executors, in processes that come
and go; so everything it keeps is plain and small, and imports of weight happen where the work is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from tidelog.spark.errors import SourceError
from tidelog.spark.options import ReadOptions, parse
from tidelog.spark.read import planner as looking
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
        """What ``format`` is called with."""
        return "tidelog"

    def schema(self) -> str:
        """Return the columns as a Spark DDL text."""
        from tidelog.spark.read import arrow

        wanted = {name.lower(): text for name, text in self.options.items()}.get("includeheaders", "false")
        return arrow.DDL_HEADERS if wanted.strip().lower() == "true" else arrow.DDL

    def reader(self, schema: Any) -> TidelogReader:
        """A batch read: from the offsets that are there now, fixed when Spark plans the query."""
        options = parse(self.options)
        _check_columns(schema, options)
        return FilteringReader(options) if options.filter_pushdown else TidelogReader(options)

    def streamReader(self, schema: Any) -> TidelogStreamReader:
        """A stream: from the end on, or where the options or the checkpoint say."""
        from tidelog.spark.micro_batches import TidelogStreamReader

        options = parse(self.options, streaming=True)
        _check_columns(schema, options)
        return TidelogStreamReader(options)

    def writer(self, schema: Any, overwrite: bool) -> TidelogWriter:
        """A batch write."""
        from tidelog.spark import sink

        return sink.TidelogWriter(sink.checked(self.options, schema, overwrite, streaming=False))

    def streamWriter(self, schema: Any, overwrite: bool) -> TidelogStreamWriter:
        """The write of a stream."""
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
    """One task's work, as Spark ships it."""

    range: Range


class TidelogReader(DataSourceReader):  # type: ignore[misc]
    """Plans ranges on the driver, reads one per task."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.bounds = Bounds()

    def partitions(self) -> list[RangePartition]:
        """The ranges, with their ends fixed now."""
        options = self.options
        with looking.connect(options) as client:
            found = looking.extents(client, options)
            starting = looking.offsets_at(
                client, found, options.starting_offsets, "a starting time", options.beyond_time
            )
            ending = looking.offsets_at(client, found, options.ending_offsets, "an ending time", "latest")
        ranges = self.bounds.narrow(offsets.plan(found, starting, ending, options.fail_on_data_loss))
        return [
            RangePartition(each) for each in offsets.cut(ranges, options.min_partitions, options.max_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one range, as Arrow record batches. Where nothing was planned Spark asks all the same, for a
        partition of its own making."""
        from tidelog.spark.read import task as reading

        if isinstance(partition, RangePartition):
            yield from reading.read(self.options, partition.range)


class FilteringReader(TidelogReader):
    """With ``filterPushdown``: topics, partitions and offsets that a filter excludes are not read. A class of its
    own, since Spark refuses every reader with ``pushFilters`` unless its own switch is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what narrows the read; Spark applies all filters again."""
        for each in filters:
            self.bounds.note(each)
        return filters
