"""The format ``tidelog-table`` that Spark sees: a stream, or a batch write in its ``foreachBatch``, writes to a table
of Iceberg, Delta, or Parquet files with a manifest, each micro-batch exactly once.

Tasks write Parquet files that no reader knows. The driver commits the files of a micro-batch together, by the rules
of ``tidelog.tables.commit_protocol``. Spark calls ``commit`` in another process than the tasks and on another object,
so everything that it needs travels in the tasks' messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.errors import ConfigError
from tidelog.spark import option_parsers as texts
from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import Parsers
from tidelog.spark.sink import BATCH_ID, QUERY_ID
from tidelog.spark.write.task_input import check_complete
from tidelog.tables.columns import PartitionField, SchemaConflict, parse_partition_field
from tidelog.tables.commit_protocol import (
    Archive,
    CommitGivenUp,
    ForeignApplication,
    Marker,
    attempt_of,
    merged_offsets,
    owner_of,
)
from tidelog.tables.committer import STAGED_S, Append, StagedTooLong, commit
from tidelog.tables.file_writer import WritePlan, WrittenFile
from tidelog.tables.tables import FORMATS, TableAddress, open_table, open_writer
from tidelog.tables.upsert import MAX_ROWS, BatchTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

PREPARE_WAITS_S = (0.2, 1.0, 3.0)
"""Seconds before a table is prepared again that could not be reached, since Spark does not try that again."""
_PLACES = (("_topic", "_partition", "_offset"), ("topic", "partition", "offset"))
"""Columns that tell a row's place in the log: of values that were parsed, and of the source."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The checked options of a stream into a table."""

    address: TableAddress
    partition: tuple[PartitionField, ...]
    app: str
    """Name of the application in the table; "": the query's id."""
    key: str = ""
    """Column by which rows replace others; "": they are appended."""
    archive: Mapping[str, str] | None = None
    """Set if the rows are the source's records, none left out: the ids of the topics, where they are known."""


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]
    """The message of a task to the driver: the files that it wrote, and of which query and batch they are."""

    query: str
    batch: int
    files: list[WrittenFile]
    offsets: dict[str, dict[int, int]]
    """By topic and partition, the offset after the last row that the task wrote."""
    layout: str
    begun_ns: int
    archive: Archive | None = None


class TableSink(DataSource):  # type: ignore[misc]
    """The class that Spark knows as ``format("tidelog-table")`` after ``spark.dataSource.register(TableSink)``."""

    @classmethod
    def name(cls) -> str:
        """Return ``tidelog-table``, the name by which ``format`` finds this data source once it is registered."""
        return "tidelog-table"

    def writer(self, schema: Any, overwrite: bool) -> TableBatchWriter:
        """Return the writer of one batch write, which works in the function of ``foreachBatch`` only: nothing else
        numbers its batches. Raises what ``streamWriter`` does."""
        return TableBatchWriter(self.streamWriter(schema, overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> TableStreamWriter:
        """Return the writer of a micro-batch. Spark calls this for each one. Creates the table if it does not exist,
        and adds columns that it does not have. Raises ``SourceError`` for invalid options, and
        ``TIDELOG_TABLE_SCHEMA`` if the table cannot have the rows."""
        if overwrite:
            raise SourceError("TIDELOG_OPTION", 'a table is appended to, never overwritten: use outputMode("append")')
        options = parse(self.options)
        return TableStreamWriter(options, prepared(options, schema), order_of(options, schema.names))


class TableStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of a micro-batch, made on the driver and shipped to its tasks."""

    def __init__(self, options: TableOptions, plan: WritePlan, order: str = "") -> None:
        self.options = options
        self.plan = plan
        self.order = order

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows that this task has in a micro-batch to files, and return their names and statistics. Raises
        ``SourceError``."""
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if batch is None or query is None:
            text = "a table is written by a stream, or in the function of its foreachBatch"
            raise SourceError("TIDELOG_FAILED", f"Spark does not pass {QUERY_ID} and {BATCH_ID}: {text}")
        begun_ns = time.time_ns()
        offsets: dict[str, dict[int, int]] = {}
        archive = Archive(0)
        with table_errors():
            writer = open_writer(self.plan)
            for rows in check_complete(iterator):
                writer.add(rows)
                offsets = merged_offsets(offsets, offsets_of(rows))
                if self.options.archive is not None:
                    archive = joined(archive, archive_of(rows))
            files = writer.finish()
        kept = None if self.options.archive is None else archive
        return Staged(query, int(batch), files, offsets, self.plan.layout, begun_ns, kept)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the files of a micro-batch, all together and once. Does nothing if the table has that batch. Spark
        calls this on the driver when every task of the batch has succeeded. Raises ``SourceError``."""
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        offsets: dict[str, dict[int, int]] = {}
        for one in staged:
            offsets = merged_offsets(offsets, one.offsets)
        query, app = staged[0].query, self.options.app or staged[0].query
        files = tuple(file for one in staged for file in one.files)
        attempt = attempt_of([f"{query}/{batchId}/{staged[0].begun_ns}", *(file.name for file in files)])
        marker = Marker(batchId, attempt, owner_of(query), query, offsets, self._archive(staged))
        change = Append(app, marker, files, staged[0].layout, self.options.key, self.order)
        with table_errors(app), closing(open_table(self.options.address)) as table:
            commit(table, change, min(one.begun_ns for one in staged))

    def _archive(self, staged: list[Staged]) -> Archive | None:
        """Return what the marker keeps of an archive after these tasks; None if the table is none."""
        if self.options.archive is None:
            return None
        archive = Archive(0)
        for one in staged:
            archive = joined(archive, one.archive or Archive(0))
        ids = {topic: owner_of(id) for topic, id in self.options.archive.items() if topic in archive.starts}
        return replace(archive, topics=ids)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing. Spark also calls this after a commit whose outcome is unknown, so the files may be in the
        table; ``tidelog table expire`` deletes those that are not."""


class TableBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of a micro-batch in the function of ``foreachBatch``. The tasks tell the driver the batch's number,
    which Spark tells them as in a stream."""

    def __init__(self, stream: TableStreamWriter) -> None:
        self._stream = stream

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task to files, as ``TableStreamWriter.write`` does. Raises ``SourceError``."""
        return self._stream.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of the batch, all together and once. Raises ``SourceError``."""
        for number in {message.batch for message in messages if isinstance(message, Staged)}:
            self._stream.commit(messages, number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing, as ``TableStreamWriter.abort``."""


def prepared(options: TableOptions, schema: Any) -> WritePlan:
    """Create the table for rows of a Spark schema, or add the columns that it does not have. Returns what tasks have
    to know. Raises ``SourceError``, such as ``TIDELOG_TABLE_SCHEMA``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    order_of(options, schema.names)
    rows = to_arrow_schema(schema, timezone="UTC")
    if options.archive is not None:
        _check_archive(rows)
    with table_errors(), closing(open_table(options.address)) as table:
        for wait_s in PREPARE_WAITS_S:
            with suppress(OSError):
                return table.prepare(rows, options.partition)
            threading.Event().wait(wait_s)
        return table.prepare(rows, options.partition)


def order_of(options: TableOptions, columns: list[str]) -> str:
    """Return the column that tells which of two rows of a key is the later one; "" if rows are appended. Raises
    ``TIDELOG_TABLE_SCHEMA`` if the rows have no such column, or no column of the key."""
    found = next((offset for _, _, offset in _PLACES if offset in columns), "")
    if options.key and (options.key not in columns or not found):
        raise SourceError(
            "TIDELOG_TABLE_SCHEMA", f"upsertBy wants the columns {options.key} and _offset (or offset) in the rows"
        )
    return found if options.key else ""


def _check_archive(rows: pa.Schema) -> None:
    """Raise ``TIDELOG_TABLE_SCHEMA`` if rows of an archive do not have the source's columns, ``headers`` or not."""
    from tidelog.spark.read import arrow

    expected = arrow.schema(include_headers=False)
    if [one for one in expected if one.name not in rows.names or rows.field(one.name).type != one.type]:
        raise SourceError(
            "TIDELOG_TABLE_SCHEMA",
            f"archive: the rows must have the source's columns unchanged: {', '.join(expected.names)}",
        )


def parse(options: Mapping[str, str]) -> TableOptions:
    """Parse the options of a stream into a table. Raises ``SourceError`` (``TIDELOG_OPTION``), whose text has every
    error."""
    prefixed = {
        prefix: {name[len(prefix) :]: text for name, text in options.items() if name.lower().startswith(prefix)}
        for prefix in ("catalog.", "s3.")
    }
    plain = {name: text for name, text in options.items() if not name.lower().startswith(tuple(prefixed))}
    parsers: Parsers = {
        "format": ("format", texts.one_of(*FORMATS)),
        "table": ("table", str),
        "partitionBy": ("partition", _partition),
        "appId": ("app", texts.name_of("the writer")),
        "upsertBy": ("key", str),
        "archive": ("archive", texts.archive),
    }
    values, faults = texts.collect(plain, parsers, "a table")
    key, archive = values.get("key", ""), values.get("archive")
    for name in ("format", "table"):
        if not values.get(name) and not faults:
            faults.append(f"{name} must be given")
    if key and (values.get("format") == "parquet" or values.get("partition")):
        faults.append("upsertBy goes with format iceberg and delta, and without partitionBy")
    if key and archive is not None:
        faults.append("archive does not go with upsertBy, which replaces rows")
    if faults:
        raise SourceError("TIDELOG_OPTION", "; ".join(faults))
    storage = {f"s3.{name}": text for name, text in prefixed["s3."].items()}
    address = TableAddress(values["format"], values["table"], prefixed["catalog."], storage)
    return TableOptions(address, values.get("partition", ()), values.get("app", ""), key, archive)


def offsets_of(rows: pa.RecordBatch) -> dict[str, dict[int, int]]:
    """Return, by topic and partition, the offset after the last of the rows. Empty if the rows have no columns for
    their place in the log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for topic, partition, offset in _PLACES:
        kinds = [
            rows.schema.field(name).type if name in rows.schema.names else None for name in (topic, partition, offset)
        ]
        if kinds != [pa.string(), pa.int32(), pa.int64()]:
            continue
        found = pa.Table.from_batches([rows]).group_by([topic, partition]).aggregate([(offset, "max")])
        found = found.filter(pc.is_valid(found.column(f"{offset}_max")))
        after: dict[str, dict[int, int]] = {}
        for row in found.to_pylist():
            if row[topic] is not None and row[partition] is not None:
                after.setdefault(row[topic], {})[row[partition]] = row[f"{offset}_max"] + 1
        return after
    return {}


def archive_of(rows: pa.RecordBatch) -> Archive:
    """Return what rows with the source's columns tell of an archive."""
    import pyarrow as pa

    found = pa.Table.from_batches([rows]).group_by(["topic", "partition"])
    starts: dict[str, dict[int, int]] = {}
    epochs: dict[str, dict[int, int]] = {}
    for row in found.aggregate([("offset", "min"), ("leader_epoch", "max")]).to_pylist():
        starts.setdefault(row["topic"], {})[row["partition"]] = row["offset_min"]
        epochs.setdefault(row["topic"], {})[row["partition"]] = row["leader_epoch_max"]
    return Archive(rows.num_rows, starts, epochs)


def joined(one: Archive, other: Archive) -> Archive:
    """Return the archive of two parts of a batch, in any order."""
    starts = {topic: dict(partitions) for topic, partitions in one.starts.items()}
    for topic, partitions in other.starts.items():
        mine = starts.setdefault(topic, {})
        mine |= {partition: min(at, mine.get(partition, at)) for partition, at in partitions.items()}
    return Archive(one.rows + other.rows, starts, merged_offsets(one.epochs, other.epochs))


@contextmanager
def table_errors(app: str = "") -> Iterator[None]:
    """Return a context manager that raises the errors of a table as the ``SourceError`` that stands for them."""
    import pyarrow as pa

    try:
        yield
    except ConfigError as error:
        raise SourceError("TIDELOG_OPTION", str(error)) from error
    except (SchemaConflict, pa.ArrowException) as error:
        raise SourceError(
            "TIDELOG_TABLE_SCHEMA",
            f"{error}. New columns are added by themselves; for any other change write to another table, or change "
            "this one with an engine of its format",
        ) from error
    except ForeignApplication as error:
        owner = f"the query {error.query}" if error.query else "another query"
        raise SourceError(
            "TIDELOG_TABLE_APP",
            f"{owner} writes to the table as {app}. A query with a new checkpoint counts its batches from 0, so its "
            "new rows would count as already written. Give it another appId, or its old checkpoint",
        ) from error
    except BatchTooLarge as error:
        raise SourceError(
            "TIDELOG_OPTION",
            f"a batch of {error} rows is too large for upsertBy, which takes {MAX_ROWS}: set maxOffsetsPerTrigger",
        ) from error
    except StagedTooLong as error:
        raise SourceError(
            "TIDELOG_NOT_WRITTEN",
            f"the batch took more than {STAGED_S // 3600} hours: make batches smaller, as with maxOffsetsPerTrigger",
        ) from error
    except (CommitGivenUp, OSError) as error:
        raise SourceError(
            "TIDELOG_NOT_WRITTEN",
            f"the table cannot be reached, or the commit has failed or its result is unknown: {error}",
        ) from error


def _partition(text: str) -> tuple[PartitionField, ...]:
    return tuple(parse_partition_field(one) for one in text.split(",") if one.strip())
