"""The writes of the sink over the client: what a task sends (``write``, ``stage``), and what the driver asks of the
cluster before and after the tasks (``reserve``, ``commit``, ``abort``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tidelog.client import trio_loop
from tidelog.client.loop import wall_ms
from tidelog.client.transactions import Transaction
from tidelog.errors import TidelogError
from tidelog.feature_levels import TASK_PRODUCERS
from tidelog.spark.errors import SourceError, translated_errors
from tidelog.spark.read import extents
from tidelog.spark.write.delivery import SEND_TIMEOUT_S, TaskSender
from tidelog.spark.write.options import WriteOptions
from tidelog.spark.write.renewal import ENDED, explain_end, keep_open
from tidelog.spark.write.task_data import Reserved, Task, TaskIdentity
from tidelog.sync.portal import Portal
from tidelog.types import MAX_TASKS

if TYPE_CHECKING:
    import pyarrow as pa


def reserve(options: WriteOptions) -> Reserved:
    """Ask the cluster for ``MAX_TASKS`` producer ids, enough for all tasks of one batch write, and return them. The
    driver calls this before the tasks start. Raises ``SourceError``."""
    with _connected(options) as portal, _advised():
        given = portal.run(portal.log.producer_ids, MAX_TASKS)
        return Reserved(given.producer_id, wall_ms(), given.ticket)


def write(
    options: WriteOptions, who: Task | TaskIdentity | None, start: int, tables: Iterator[pa.RecordBatch]
) -> int:
    """Write a task's rows, and return their number when all are acknowledged. ``who`` is a ``Task``, for which the
    cluster returns the producer; or a known producer; or None for a new producer. ``start`` is the first partition
    for records without key and partition. Raises ``SourceError``, such as ``TIDELOG_NOT_WRITTEN``."""
    with _connected(options) as portal:
        if isinstance(who, Task):
            with _advised():
                given = portal.run(
                    portal.log.task_producer, who.app, who.owner, who.batch, who.number, SEND_TIMEOUT_S
                )
            producer = TaskIdentity(given.producer_id, given.producer_epoch, given.timestamp_ms, ticket=given.ticket)
        elif who is None:
            new = portal.run(portal.log.producer_ids, 1)
            producer = TaskIdentity(new.producer_id, 0, wall_ms(), ticket=new.ticket)
        else:
            producer = who
        return _send(portal, options, producer, start, tables)


def stage(options: WriteOptions, app: str, name: str, start: int, tables: Iterator[pa.RecordBatch]) -> int:
    """Write a task's rows in a staged transaction with the given name, and return their number when all are
    acknowledged. Readers of committed records see the rows after ``commit`` has named the transaction. Raises
    ``SourceError``; the transaction is then aborted, at the latest by its time-out."""
    timeout_s = options.transaction_timeout_ms / 1000
    with (
        _connected(options) as portal,
        _timeout_named(timeout_s),
        portal.entered(portal.log.stage(app, name=name, timeout_s=timeout_s)) as transaction,
    ):
        _, id, epoch = transaction.identity
        return _send(portal, options, TaskIdentity(id, epoch, wall_ms(), app), start, tables, transaction)


def commit(options: WriteOptions, app: str, batch: int, names: list[str]) -> None:
    """Commit the named staged transactions of an application together, as batch number ``batch``, and abort all
    others that it has staged. If that batch number was committed before, nothing more is committed, and the staged
    transactions are dropped. Raises ``SourceError``."""
    with _connected(options) as portal:
        portal.run(partial(portal.log.commit, app, batch, names, alone=True))


def abort(options: WriteOptions, app: str, names: list[str]) -> None:
    """Abort the named staged transactions of an application; transactions that are already committed stay committed.
    Raises ``SourceError``."""
    with _connected(options) as portal:
        portal.run(portal.log.abort, app, names)


@contextmanager
def _advised() -> Iterator[None]:
    """Return a context manager that raises ``TIDELOG_FAILED`` with advice if the cluster's feature level has no
    producer ids for idempotent writes. Other errors pass unchanged."""
    try:
        yield
    except TidelogError as error:
        if error.code not in ("UNSUPPORTED", "UNSUPPORTED_LEVEL"):
            raise
        raise SourceError(
            "TIDELOG_FAILED",
            f"the cluster cannot give the producer ids of delivery=idempotent: {error.message} ({error.code}). "
            f"Upgrade all of its processes and raise its feature level to {TASK_PRODUCERS} (tidelog features raise), "
            "or use another delivery",
        ) from error


@contextmanager
def _timeout_named(timeout_s: float) -> Iterator[None]:
    """Return a context manager that raises ``TIDELOG_NOT_WRITTEN`` with advice if the cluster says that the
    transaction, whose time-out is ``timeout_s`` seconds, has ended. Other errors pass unchanged."""
    try:
        yield
    except TidelogError as error:
        if error.code not in ENDED:
            raise
        text = f"{error.message} ({error.code}). {explain_end(timeout_s)}"
        raise SourceError("TIDELOG_NOT_WRITTEN", text) from error


@contextmanager
def _connected(options: WriteOptions) -> Iterator[Portal]:
    """Return a context manager that connects to a gateway, with a thread for the client, and closes the connection at
    its end. Errors of the client become ``SourceError``."""
    with translated_errors():
        portal = Portal(
            lambda: trio_loop.connect(**options.how_to_connect(), connect_timeout_s=extents.PLAN_TIMEOUT_S)
        )
        try:
            yield portal
        finally:
            portal.close()


def _send(
    portal: Portal,
    options: WriteOptions,
    producer: TaskIdentity,
    start: int,
    tables: Iterator[pa.RecordBatch],
    transaction: Transaction | None = None,
) -> int:
    """Encode the tables as batches of one producer, send them, and return the number of rows when all are
    acknowledged. ``transaction`` is that of the batches, which is renewed meanwhile; None: they have none. Raises
    ``SourceError`` for a row that cannot be a record, and for a batch that failed."""
    from tidelog.spark.write.row_encoder import RowEncoder

    timeout_s = options.transaction_timeout_ms / 1000
    encoder = RowEncoder(producer, options.compression, options.topic, start)
    sender = portal.log.sender(options.acks, producer.transaction)
    task = TaskSender(portal.log, portal.nursery, sender, explain_end(timeout_s) if transaction else "")
    portal.run(task.use_producer, producer)
    if transaction is not None:
        renewing = partial(keep_open, transaction, timeout_s, lambda: encoder.rows + task.acked)
        portal.soon(partial(portal.nursery.start_soon, renewing))
    for table in tables:
        if options.keyed and table.column("key").null_count:
            raise SourceError("TIDELOG_MODE", "outputMode complete takes rows with keys, and a key is null")
        for topic in encoder.topics_of(table):
            encoder.set_limits(topic, portal.run(task.fetch_limits, topic, options.keyed))
        for batch in encoder.add(table):
            portal.run(task.put, batch)
    for batch in encoder.finish():
        portal.run(task.put, batch)
    portal.run(task.finish)
    return encoder.rows
