"""The sink that Spark sees: batch and streaming writes of Arrow record batches.

A task attempt writes its rows as the batches of one producer. The choice of producer decides what a second attempt
does. With ``exactly-once`` each attempt is a staged transaction of its own, so that concurrent attempts do not hinder
each other; the driver commits the finished ones together, once for a batch. With ``idempotent`` every attempt of a
task is the same producer and sends the same bytes, so that leaders recognise copies. With ``at-least-once`` each
attempt is another producer.

All producer ids come from the cluster. In a stream a task asks the application's coordinator for the producer of
(application, batch, task); a replay gets the same answer, also after a restart of the driver. A batch write without a
number is never replayed, so its driver reserves the ids of all its tasks beforehand.

An application's batches have one owner, the query, whose id Spark keeps in the checkpoint. The cluster refuses those
of another: they are counted from 0 as well, and would be taken for batches that are committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.client.loop import random_name
from tidelog.spark.errors import SourceError
from tidelog.spark.write.columns import check_columns
from tidelog.spark.write.options import WriteOptions, parse
from tidelog.spark.write.task_data import Task, TaskIdentity
from tidelog.spark.write.task_input import check_complete
from tidelog.types import staged_name

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Names of the local properties in which Spark passes a task its query's id and its batch's number. Both stay the
same after a restart from the checkpoint. In the function of ``foreachBatch`` batch writes have them, too."""
OWNER_LETTERS = 160
"""Most characters of an owner's name; the names of staged transactions begin with it."""


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """The message of a task to the driver after all its rows were acknowledged: the number of rows, and the staged
    transaction that holds them, if there is one."""

    rows: int
    app: str = ""
    staged: str = ""
    """Name of the staged transaction that the driver has to commit, in the application ``app``; "": there is none."""


class TidelogWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of one batch write, made on the driver and shipped to its tasks. It holds what all tasks and their
    attempts share: the name of the write, and with ``delivery=idempotent`` the producer ids that it reserved for
    them."""

    def __init__(self, options: WriteOptions) -> None:
        from tidelog.spark.write import task as sending

        self.options = options
        self.run = random_name()
        self.reserved = sending.reserve(options) if options.delivery == "idempotent" else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of this task, and return a ``Written`` when all are acknowledged. Spark calls this in the
        task. With ``exactly-once`` the rows stay in a staged transaction until ``commit``. A task without rows sends
        nothing. Raises ``SourceError``, such as ``TIDELOG_NOT_WRITTEN``."""
        if self.options.delivery == "exactly-once":
            owner = self._owner() if self.options.app else ""
            return _stage(self.options, iterator, self.options.app or self.run, owner, self.options.batch)
        task = TaskContext.get().partitionId()
        who = None if self.reserved is None else self.reserved.of_task(task)
        return _write(self.options, who, task, iterator)

    def _owner(self) -> str:
        """Return the owner of the numbered batch that this task writes: the query in whose ``foreachBatch`` it does,
        and the topic, since a query that writes a batch to two topics needs an application for each."""
        query = TaskContext.get().getLocalProperty(QUERY_ID) or "batch"
        return f"{query}.{self.options.topic}"[:OWNER_LETTERS]

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the staged transactions that the tasks' messages name, all together. Spark calls this on the driver
        when every task has succeeded. If the cluster has committed the batch of this number before, the staged
        transactions are dropped. Does nothing if no transaction was staged. Raises ``SourceError``."""
        _commit(self.options, messages, self.options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the staged transactions that the tasks' messages name. Spark calls this on the driver when a task or
        the commit has failed for good. Does nothing if no transaction was staged. Raises ``SourceError``."""
        _abort(self.options, messages)


class TidelogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of all micro-batches of one streaming query, made on the driver and shipped to its tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows that this task has in a micro-batch, and return a ``Written`` when all are acknowledged.
        With ``exactly-once`` the rows stay in a staged transaction until ``commit``. A task without rows sends
        nothing. Raises ``SourceError``, such as ``TIDELOG_NOT_WRITTEN``, or ``TIDELOG_FAILED`` if Spark does not pass
        the query's id and the batch's number."""
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if batch is None or query is None:
            raise SourceError(
                "TIDELOG_FAILED", f"Spark does not pass {QUERY_ID} and {BATCH_ID}; is this version of Spark tested?"
            )
        app, task = self.options.app or query, context.partitionId()
        if self.options.delivery == "exactly-once":
            return _stage(self.options, iterator, app, query[:OWNER_LETTERS], int(batch))
        who = Task(app, query, int(batch), task) if self.options.delivery == "idempotent" else None
        return _write(self.options, who, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the staged transactions of a micro-batch, all together. Spark calls this on the driver when every
        task of the batch has succeeded. If the cluster has committed this batch number before, the staged
        transactions are dropped. Does nothing if no transaction was staged. Raises ``SourceError``."""
        _commit(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the staged transactions of a micro-batch. Spark calls this on the driver when a task or the commit
        has failed for good. Does nothing if no transaction was staged. Raises ``SourceError``."""
        _abort(self.options, messages)


def _write(
    options: WriteOptions, who: Task | TaskIdentity | None, task: int, tables: Iterator[pa.RecordBatch]
) -> Written:
    """Write a task's rows without a transaction, and return the message for the driver."""
    from tidelog.spark.write import task as sending

    rows = _rows(tables)
    return Written(sending.write(options, who, task, rows) if rows is not None else 0)


def _stage(options: WriteOptions, tables: Iterator[pa.RecordBatch], app: str, owner: str, batch: int) -> Written:
    """Write a task's rows in a staged transaction of ``owner`` ("": of none) whose name no other attempt has, also
    none of an earlier driver, and return the message for the driver. Without rows no transaction is begun."""
    from tidelog.spark.write import task as sending

    task = TaskContext.get().partitionId()
    rows = _rows(tables)
    if rows is None:
        return Written(0)
    name = staged_name(owner, f"{batch}-{task}-{random_name()}")
    return Written(sending.stage(options, app, name, task, rows), app, name)


def _rows(tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return the tables that Spark hands over, from the first one with rows on; iterating them raises
    ``TIDELOG_NOT_WRITTEN`` if Spark breaks the stream off. Returns None if there are no rows, so that the cluster
    need not be asked."""
    tables = check_complete(tables)
    first = next((table for table in tables if table.num_rows), None)
    return None if first is None else chain([first], tables)


def _commit(options: WriteOptions, messages: list[WriterCommitMessage | None], batch: int) -> None:
    """Commit the staged transactions that the messages name together, as batch number ``batch``. Does nothing if the
    messages name none."""
    from tidelog.spark.write import task as sending

    if staged := _staged(messages):
        sending.commit(options, staged[0].app, batch, [one.staged for one in staged])


def _abort(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Abort the staged transactions that the messages name. Those of tasks without a message are aborted by the next
    commit, or by their time-out."""
    from tidelog.spark.write import task as sending

    if staged := _staged(messages):
        sending.abort(options, staged[0].app, [one.staged for one in staged])


def _staged(messages: list[WriterCommitMessage | None]) -> list[Written]:
    """Return those messages that name a staged transaction. A message is None if its task has failed."""
    return [message for message in messages if isinstance(message, Written) and message.staged]


def batch_writer(options: dict[str, str], schema: Any, overwrite: bool) -> TidelogWriter:
    """Return the writer of a batch write. Raises ``SourceError`` as ``checked`` does."""
    return TidelogWriter(checked(options, schema, overwrite, streaming=False))


def stream_writer(options: dict[str, str], schema: Any, overwrite: bool) -> TidelogStreamWriter:
    """Return the writer of a streaming query. Raises ``SourceError`` as ``checked`` does."""
    return TidelogStreamWriter(checked(options, schema, overwrite, streaming=True))


def checked(options: dict[str, str], schema: Any, overwrite: bool, *, streaming: bool) -> WriteOptions:
    """Parse the options of a write, check them and the columns of its Spark schema, and return the options. Raises
    ``SourceError`` for invalid options, for columns that a record does not have, and for ``overwrite``. For a stream
    that means the mode ``complete``, which needs a column ``key``."""
    if overwrite and not streaming:
        raise SourceError("TIDELOG_OPTION", 'a log is appended to, never overwritten: use mode("append")')
    parsed = parse(options, streaming=streaming)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, bool(parsed.topic))
    if overwrite and "key" not in schema.fieldNames():
        text = "outputMode complete sends all rows with every batch: it takes a column key, and a compacted topic"
        raise SourceError("TIDELOG_MODE", text)
    return replace(parsed, keyed=overwrite)
