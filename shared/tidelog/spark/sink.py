"""The sink that Spark sees: batch and streaming writes of Arrow record batches.

A task attempt writes its rows as the batches of one producer (``rows``). Which producer decides what a second attempt
does: with ``idempotent`` every attempt of a task is the same producer, so that the leaders know its batches for
copies; with ``at-least-once`` each is another. A delivery that commits on the driver would be a third way to choose
the producer, and the only one with anything to do in ``commit``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.client.clock import random_name
from tidelog.spark.errors import SourceError
from tidelog.spark.rows import Numbering, check_columns
from tidelog.spark.write_options import WriteOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa

EPOCHS = 60_000
"""Micro-batches under one producer id: each is a producer epoch of its own, which are 16 bits wide."""
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark tells a task of its query; the same after a restart from the checkpoint."""


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """A task has written so many rows; all of them are acknowledged."""

    rows: int


def producer_of(app: str, batch: int, task: int) -> tuple[int, int]:
    """Id and epoch of the producer of a task of a micro-batch: the same for each of its attempts, and for each time
    that the batch is run. The cluster never gives such an id to anyone else."""
    digest = blake2b(f"{app}\0{batch // EPOCHS}\0{task}".encode(), digest_size=8).digest()
    return 1 << 63 | int.from_bytes(digest) >> 1, batch % EPOCHS


class TidelogWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. The name of the run is made on the driver, once for all tasks and attempts."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.run = random_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows."""
        return _write(self.options, iterator, self.run, 0)


class TidelogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The write of every micro-batch of a stream."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows."""
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if batch is None or query is None:
            raise SourceError("TIDELOG_FAILED", f"Spark does not tell {QUERY_ID} and {BATCH_ID}: another version?")
        return _write(self.options, iterator, self.options.app or query, int(batch))


def _write(options: WriteOptions, tables: Iterator[pa.RecordBatch], app: str, batch: int) -> Written:
    from tidelog.spark import sending

    task = TaskContext.get().partitionId()
    who = random_name() if options.delivery == "at-least-once" else app
    numbering = Numbering(*producer_of(who, batch, task), options.compression, options.topic, start=task)
    return Written(sending.write(options, numbering, tables))


def checked(options: dict[str, str], schema: Any, overwrite: bool, *, streaming: bool) -> WriteOptions:
    """The options of a write of rows with this schema. Raises ``SourceError``."""
    if overwrite:
        instead = 'outputMode("append")' if streaming else 'mode("append")'
        raise SourceError("TIDELOG_OPTION", f"a log is appended to, never overwritten: use {instead}")
    parsed = parse(options, streaming=streaming)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, bool(parsed.topic))
    return parsed
