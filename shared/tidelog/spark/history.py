"""The readers of queries with ``history``: what a table has of the topics is read from its files, and only the rest
from the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from tidelog.errors import ConfigError
from tidelog.spark.checkpoint_planner import TidelogStreamReader
from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import AtTime
from tidelog.spark.options import ReadOptions
from tidelog.spark.read import arrow, extents, history
from tidelog.spark.read import ranges as offsets
from tidelog.spark.read.checkpoint_json import Key
from tidelog.spark.read.data_loss import PartitionExtent
from tidelog.spark.read.history import Partition
from tidelog.spark.read.ranges import Range
from tidelog.spark.source import RangePartition, TidelogReader
from tidelog.tables.pinned import Footer, PinnedTable, RowGroup, read_footers
from tidelog.tables.tables import open_table

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


class HistoryTable:
    """The table of a query's option ``history``, as it was when it was last pinned. It has to be pinned before
    anything else is asked of it, and before the extents of the logs are looked up, so that the logs reach to the
    joins at least."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.history is not None
        self._address = options.history
        self._options = options
        self._pinned: PinnedTable
        self._footers: dict[str, Footer] = {}
        self._loss: SourceError | None = None

    def pin(self, places: Sequence[Partition]) -> None:
        """Read what the table has of these partitions now. Raises ``TIDELOG_HISTORY`` if it cannot be read, or does
        not have every record."""
        try:
            with closing(open_table(self._address)) as table:
                self._pinned = table.pin(self._options.history_app, places)
            self._footers = read_footers(self._pinned, self._footers)
        except (ConfigError, OSError, ValueError) as error:  # a file is not Parquet, or metadata are not JSON
            raise SourceError("TIDELOG_HISTORY", f"{self._address.place}: {error}") from error
        columns = arrow.schema(self._options.include_headers).names
        self._loss = history.check_files(self._pinned.marker, self._footers, columns)

    def kept(self, logs: Sequence[PartitionExtent]) -> dict[Partition, history.Kept]:
        """Return what the table has of each of these partitions. Raises ``SourceError``."""
        return history.kept_of(self._pinned.marker, logs)

    def whole(self, logs: Sequence[PartitionExtent]) -> list[PartitionExtent]:
        """Return the extents of table and logs together. Raises ``SourceError``."""
        kept = self.kept(logs)
        return [history.whole(extent, kept.get((extent.topic, extent.partition))) for extent in logs]

    def divide(self, ranges: Sequence[Range], logs: Sequence[PartitionExtent]) -> list[InputPartition]:
        """Divide ranges among tasks, each of which reads from the table or from the log, and return the work of each.
        Records that neither has are a loss: raises it with ``failOnDataLoss``, and logs it otherwise."""
        kept = self.kept(logs)
        parts, losses = history.cut_at_joins(ranges, kept, logs)
        pieces = offsets.cut(parts, self._options.min_partitions, self._options.max_per_partition)
        if self._loss is not None and any(history.in_table(each, kept) for each in pieces):
            losses.insert(0, self._loss)
        for loss in losses:
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss)
        return [
            TablePartition(each, history.prune(self._footers.values(), each), self._pinned.options)
            if history.in_table(each, kept)
            else RangePartition(each)
            for each in pieces
        ]


class HistoryReader(TidelogReader):
    """The reader of a batch read with ``history``."""

    def partitions(self) -> list[InputPartition]:
        """Pin the table, look up the logs' present extents, and return the ranges to read: those below a join from
        the table. Raises ``SourceError``, such as ``TIDELOG_HISTORY`` for a table that does not have every record,
        and ``TIDELOG_DATA_LOSS`` if a log begins behind its join."""
        options = self.options
        table = HistoryTable(options)
        with extents.connect(options) as client:
            table.pin(_places(extents.look_up(client, options)))
            logs = extents.look_up(client, options)
        starting, ending = options.starting_offsets, options.ending_offsets
        assert not isinstance(starting, AtTime) and not isinstance(ending, AtTime)
        return table.divide(offsets.plan(table.whole(logs), starting, ending, options.fail_on_data_loss), logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range as Arrow record batches, in order of their offsets, from the table or from
        the log. Spark calls this in a task. Raises ``SourceError``."""
        if isinstance(partition, TablePartition):
            yield from _read(self.options, partition)
        else:
            yield from super().read(partition)


class HistoryStreamReader(TidelogStreamReader):
    """The reader of a streaming query with ``history``. Its logs reach back to the beginning of the table. The table
    is pinned at the start, for every batch that reads from it, and when a log no longer reaches back to the join."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._table = HistoryTable(options)
        self._places: frozenset[Partition] | None = None
        """The partitions for which the table was pinned; None: it was not yet."""
        self._logs: dict[Partition, PartitionExtent] = {}
        """The extents of the logs alone, as they were last looked up."""

    def _look_up_extents(self) -> list[PartitionExtent]:
        """Return the extents of table and logs together."""
        found = super()._look_up_extents()
        if self._is_to_pin(found):
            found = self._pin(found)
        self._logs = {(extent.topic, extent.partition): extent for extent in found}
        return self._table.whole(found)

    def _is_to_pin(self, found: Sequence[PartitionExtent]) -> bool:
        """Return whether the table may have more by now that matters: there are new partitions, or a log has deleted
        records that the table did not have when it was pinned."""
        if self._places is None or not self._places.issuperset(_places(found)):
            return True
        kept = self._table.kept(found)
        return any(
            extent.start > max(kept[place].end, self._logs[place].start)
            for place, extent in zip(_places(found), found, strict=True)
            if place in kept
        )

    def _pin(self, found: Sequence[PartitionExtent]) -> list[PartitionExtent]:
        """Pin the table for the partitions of the logs, and return the logs' extents anew."""
        self._table.pin(_places(found))
        self._places = frozenset(_places(found))
        return super()._look_up_extents()

    def _epochs_before(self, cut: dict[Key, int]) -> dict[Key, int]:
        """Return the leader epochs of what the logs still have; a table's records have none."""
        logs = {key: self._logs[key.topic, key.partition] for key in cut}
        return super()._epochs_before({key: at for key, at in cut.items() if at > logs[key].start})

    def _divide(self, ranges: list[Range]) -> list[InputPartition]:
        """Divide ranges among tasks, each of which reads from the table or from the log, and return the work of
        each. The table is pinned anew if one of them begins in it, since its files may have been compacted."""
        logs = list(self._logs.values())
        kept = self._table.kept(logs)
        if any(each.start < kept[place].end for each in ranges if (place := (each.topic, each.partition)) in kept):
            logs = self._pin(logs)
        return self._table.divide(ranges, logs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one planned range as Arrow record batches, from the table or from the log. Spark calls
        this in a task. Raises ``SourceError``."""
        if isinstance(partition, TablePartition):
            yield from _read(self.options, partition)
        else:
            yield from super().read(partition)


def _places(found: Sequence[PartitionExtent]) -> list[Partition]:
    """Return the partitions of extents."""
    return [(extent.topic, extent.partition) for extent in found]


def _read(options: ReadOptions, partition: TablePartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range from the files of a table."""
    from tidelog.spark.read import table_task

    yield from table_task.read(options, partition.range, partition.groups, partition.options)
