"""The data source that Spark sees, for batch reads; streams are in ``checkpoint_planner.py``, writes in ``sink.py``.
The driver plans, and executors read, in processes that come and go. So its objects are plain and small, and heavy
imports happen only where the work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.extras import install_hint
from tidelog.spark.errors import SourceError, check_pyspark
from tidelog.spark.options import ReadOptions, parse
from tidelog.spark.read import extents
from tidelog.spark.read import ranges as offsets
from tidelog.spark.read.ranges import Range

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ImportError as error:
    raise ImportError(f"tidelog.spark.source needs PySpark 4: {install_hint('spark')}") from error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from tidelog.spark.checkpoint_planner import TidelogStreamReader
    from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter
    from tidelog.sync import Log


class TidelogDataSource(DataSource):  # type: ignore[misc]
    """The class that Spark finds for ``format("tidelog")``. It creates the readers of the source and the writers of
    the sink from the options of a query (``tidelog.spark.options``, ``tidelog.spark.write.options``)."""

    @classmethod
    def name(cls) -> str:
        """Return ``tidelog``, the name by which ``format`` finds this data source."""
        return "tidelog"

    def schema(self) -> str:
        """Return the columns of the source as a Spark DDL text. It has the column ``headers`` only if the option
        ``includeHeaders`` is true."""
        from tidelog.spark.read import arrow

        wanted = {name.lower(): text for name, text in self.options.items()}.get("includeheaders", "false")
        return arrow.DDL_HEADERS if wanted.strip().lower() == "true" else arrow.DDL

    def reader(self, schema: Any) -> TidelogReader:
        """Return the reader of a batch read: a ``FilteringReader`` if ``filterPushdown`` is true, a ``HistoryReader``
        with ``history``, otherwise a ``TidelogReader``. Raises ``SourceError`` for invalid options, and for a schema
        other than the source's."""
        options = parse(self.options)
        _check_columns(schema, options)
        if options.history is not None:
            from tidelog.spark.history import HistoryReader

            return HistoryReader(options)
        if options.filter_pushdown:
            check_pyspark("filters that are pushed down", 4, 1)
        return FilteringReader(options) if options.filter_pushdown else TidelogReader(options)

    def streamReader(self, schema: Any) -> TidelogStreamReader:
        """Return the reader of a streaming query: a ``HistoryStreamReader`` with ``history``. A query without a
        checkpoint begins at the end of the logs, with ``history`` at the beginning of the table, or where the options
        say. Raises ``SourceError`` for invalid options, and for a schema other than the
        source's."""
        check_pyspark("reads of a stream", 4, 2)
        from tidelog.spark.checkpoint_planner import TidelogStreamReader

        options = parse(self.options, streaming=True)
        _check_columns(schema, options)
        if options.history is not None:
            from tidelog.spark.history import HistoryStreamReader

            return HistoryStreamReader(options)
        return TidelogStreamReader(options)

    def writer(self, schema: Any, overwrite: bool) -> TidelogWriter:
        """Return the writer of a batch write. With ``delivery=idempotent`` this already asks the cluster for producer
        ids. Raises ``SourceError`` for invalid options or columns, and for ``overwrite``."""
        check_pyspark("writes", 4, 1)
        from tidelog.spark import sink

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> TidelogStreamWriter:
        """Return the writer of a streaming query. Raises ``SourceError`` for invalid options or columns.
        ``overwrite`` is Spark's mode ``complete``, which needs keys."""
        check_pyspark("writes", 4, 1)
        from tidelog.spark import sink

        return sink.stream_writer(self.options, schema, overwrite)


def _check_columns(schema: Any, options: ReadOptions) -> None:
    """Raise ``TIDELOG_SCHEMA`` if the program has set a schema with other columns than the source's."""
    from tidelog.spark.read import arrow

    expected = arrow.schema(options.include_headers).names
    if schema.fieldNames() != expected:
        raise SourceError(
            "TIDELOG_SCHEMA",
            f"the columns are {', '.join(expected)}: leave out schema() and select what you need",
        )


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """The work of one task of a read, as Spark sends it to the task: one range of offsets."""

    range: Range


class TidelogReader(DataSourceReader):  # type: ignore[misc]
    """The reader of one batch read, which Spark creates and calls. On the driver it decides which ranges are read; in
    a task it reads one of them."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[RangePartition]:
        """Look up the logs' present extents, and return the ranges to read, each the work of one task. Spark calls
        this on the driver, once for a query: records that are appended later are not read. Raises ``SourceError``,
        such as ``TIDELOG_DATA_LOSS`` if requested offsets are gone."""
        options = self.options
        with extents.connect(options) as client:
            found = extents.look_up(client, options)
            starting = extents.offsets_at(
                client, found, options.starting_offsets, "a starting time", options.beyond_time
            )
            ending = extents.offsets_at(client, found, options.ending_offsets, "an ending time", "latest")
            ranges = self._narrow(client, offsets.plan(found, starting, ending, options.fail_on_data_loss))
        return [
            RangePartition(each) for each in offsets.cut(ranges, options.min_partitions, options.max_per_partition)
        ]

    def _narrow(self, client: Log, ranges: list[Range]) -> list[Range]:
        """Return the ranges that are left of those that the options select: all of them."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range as Arrow record batches. Spark calls this in a task. Yields nothing for the
        placeholder that Spark passes if ``partitions`` returned no range. Raises ``SourceError``, such as
        ``TIDELOG_DATA_LOSS``."""
        from tidelog.spark.read import task as reading

        if isinstance(partition, RangePartition):
            yield from reading.read(self.options, partition.range)


class FilteringReader(TidelogReader):
    """The reader of a batch read with ``filterPushdown``: topics, partitions and offsets that a filter excludes are
    not read, nor is what lies before the first record of a time. It is a class of its own, since Spark refuses every
    reader with ``pushFilters`` unless its own switch is on."""

    def __init__(self, options: ReadOptions) -> None:
        from tidelog.spark.read.bounds import Bounds

        super().__init__(options)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read by the query's filters, and return all of them, so that Spark applies them to the rows
        again. Spark calls this on the driver before ``partitions``."""
        for each in filters:
            self._bounds.add_filter(each)
        return filters

    def _narrow(self, client: Log, ranges: list[Range]) -> list[Range]:
        """Return the parts of the ranges that lie within the bounds of the filters."""
        narrowed = self._bounds.narrow(ranges)
        since = self._bounds.since
        return narrowed if since is None else extents.since(client, narrowed, since)
