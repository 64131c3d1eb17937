"""The reader of a batch read with ``history``: what a table has of the topics is read from its files, and only the
rest from the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from tidelog.errors import ConfigError
from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import AtTime
from tidelog.spark.read import arrow, extents, history
from tidelog.spark.read import ranges as offsets
from tidelog.spark.source import RangePartition, TidelogReader
from tidelog.tables.pinned import Footer, PinnedTable, RowGroup, read_footers
from tidelog.tables.tables import TableAddress, open_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

log = logging.getLogger("tidelog.spark")


@dataclass
class TablePartition(RangePartition):
    """The work of a task that reads a range from the files of a table."""

    groups: list[list[RowGroup]]
    options: Mapping[str, str] = field(repr=False)
    """Options of the storage."""


class HistoryReader(TidelogReader):
    """The reader of a batch read with ``history``."""

    def partitions(self) -> list[RangePartition]:
        """Pin the table, look up the logs' present extents, and return the ranges to read: those below a join from
        the table. The table is pinned first, so that the logs reach to the joins at least. Raises ``SourceError``,
        such as ``TIDELOG_HISTORY`` for a table that does not have every record, and ``TIDELOG_DATA_LOSS`` if a log
        begins behind its join."""
        options = self.options
        assert options.history is not None
        with extents.connect(options) as client:
            named = [(extent.topic, extent.partition) for extent in extents.look_up(client, options)]
            table, footers = _pinned(options.history, options.history_app, named)
            found = extents.look_up(client, options)
        kept = history.kept_of(table.marker, found)
        missing = history.check_files(table.marker, table, footers, arrow.schema(options.include_headers).names)
        both = [history.whole(extent, kept.get((extent.topic, extent.partition))) for extent in found]
        starting, ending = options.starting_offsets, options.ending_offsets
        assert not isinstance(starting, AtTime) and not isinstance(ending, AtTime)
        wanted = offsets.plan(both, starting, ending, options.fail_on_data_loss)
        parts, losses = history.cut_at_joins(wanted, kept, found)
        for loss in [missing, *losses]:
            if loss is not None:
                self._handle(loss)
        return [
            TablePartition(each, history.prune(footers, each), table.options)
            if history.in_table(each, kept)
            else RangePartition(each)
            for each in offsets.cut(parts, options.min_partitions, options.max_per_partition)
        ]

    def _handle(self, loss: SourceError) -> None:
        """Raise a loss with ``failOnDataLoss``, otherwise log it."""
        if self.options.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range as Arrow record batches, in order of their offsets, from the table or from
        the log. Spark calls this in a task. Raises ``SourceError``."""
        if isinstance(partition, TablePartition):
            from tidelog.spark.read import table_task

            yield from table_task.read(self.options, partition.range, partition.groups, partition.options)
        else:
            yield from super().read(partition)


def _pinned(address: TableAddress, app: str, named: list[tuple[str, int]]) -> tuple[PinnedTable, list[Footer]]:
    """Return the table as it is now, and the footers of its files. Raises ``TIDELOG_HISTORY``."""
    try:
        with closing(open_table(address)) as table:
            pinned = table.pin(app, named)
        return pinned, read_footers(pinned)
    except (ConfigError, OSError, ValueError) as error:  # a file is not Parquet, or metadata are not JSON
        raise SourceError("TIDELOG_HISTORY", f"{address.place}: {error}") from error
