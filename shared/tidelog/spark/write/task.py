"""A task of a write: it encodes rows as batches and sends them to many partitions at a time, in order for each
partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from tidelog.client import trio_loop
from tidelog.client.batch_sender import BatchSender
from tidelog.client.clock import wall_ms
from tidelog.client.log import Log
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import TASK_PRODUCERS
from tidelog.spark.errors import SourceError, translated_errors
from tidelog.spark.read import extents
from tidelog.spark.write.log_copies import LogCopies
from tidelog.spark.write.options import WriteOptions
from tidelog.spark.write.row_encoder import (
    NumberedBatch,
    Reserved,
    RowEncoder,
    Task,
    TaskIdentity,
    TopicLimits,
    WriteTarget,
)
from tidelog.sync.portal import Portal
from tidelog.types import MAX_TASKS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.wire.messages import TopicInfo

SEND_TIMEOUT_S = 120.0
"""Seconds that a batch may take to be acknowledged, failovers included, before the task fails, and Spark tries it
again."""
OTHER_ROWS = (
    ". An earlier attempt of this task wrote other rows, or wrote them in another order or cut into other batches; "
    "delivery=exactly-once allows that"
)
"""Explanation of ``SEQUENCE_CONFLICT``, which is appended to the error's text."""
UNVERIFIED = ("UNVERIFIED_SEQUENCE", "DUPLICATE_SEQUENCE")
"""Errors by which a leader says that it does not remember what was written under a sequence number."""
QUEUED_BATCHES = 4
"""Batches of a partition that may wait for earlier ones. When there are more, the task waits before it encodes
further rows."""


def reserve(options: WriteOptions) -> Reserved:
    """Ask the cluster for ``MAX_TASKS`` producer ids for one batch write, and return them. The driver calls this
    before there are tasks. Raises ``SourceError``."""
    with _connected(options) as portal, _advised():
        given = portal.run(portal.log.producer_ids, MAX_TASKS)
        return Reserved(given.producer_id, wall_ms(), given.ticket)


def write(
    options: WriteOptions, who: Task | TaskIdentity | None, start: int, tables: Iterator[pa.RecordBatch]
) -> int:
    """Write a task's rows, and return their number when all are acknowledged. ``who`` is a task, whose producer the
    cluster is asked for; or a known producer; or None for a new one. ``start`` is the first partition for records
    without key and partition. Raises ``SourceError``, such as ``TIDELOG_NOT_WRITTEN``."""
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
    acknowledged. The rows become visible to readers when ``commit`` names the transaction. Raises ``SourceError``;
    the transaction is then aborted, at the latest by its time-out."""
    with _connected(options) as portal:
        staging = portal.log.stage(app, name=name, timeout_s=options.transaction_timeout_ms / 1000)
        with portal.entered(staging) as transaction:
            _, id, epoch = transaction.identity
            return _send(portal, options, TaskIdentity(id, epoch, wall_ms(), app), start, tables)


def commit(options: WriteOptions, app: str, batch: int, names: list[str]) -> None:
    """Commit the named staged transactions of an application together, as batch number ``batch``, and abort all
    others that it has staged. If that batch number was committed before, nothing is committed and the staged
    transactions are dropped. Raises ``SourceError``."""
    with _connected(options) as portal:
        portal.run(partial(portal.log.commit, app, batch, names, alone=True))


def abort(options: WriteOptions, app: str, names: list[str]) -> None:
    """Abort the named staged transactions of an application; those that are committed stay committed. Raises
    ``SourceError``."""
    with _connected(options) as portal:
        portal.run(portal.log.abort, app, names)


@contextmanager
def _advised() -> Iterator[None]:
    """Return a context manager that adds advice to the error of a cluster whose feature level does not have the
    producer ids of an idempotent write. Other errors pass unchanged."""
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
    portal: Portal, options: WriteOptions, producer: TaskIdentity, start: int, tables: Iterator[pa.RecordBatch]
) -> int:
    """Encode the tables as batches of one producer, send them, and return the number of rows when all are
    acknowledged."""
    encoder = RowEncoder(producer, options.compression, options.topic, start)
    sender = portal.log.sender(options.acks, producer.transaction)
    task = _TaskSender(portal.log, portal.nursery, sender, producer.timestamp_ms)
    portal.run(task.use_producer, producer)
    for table in tables:
        for topic in encoder.topics_of(table):
            encoder.set_limits(topic, portal.run(task.fetch_limits, topic))
        for batch in encoder.add(table):
            portal.run(task.put, batch)
    for batch in encoder.finish():
        portal.run(task.put, batch)
    portal.run(task.finish)
    return encoder.rows


class _TaskSender:
    """The part of a task's write that runs in the client's thread. It has a queue for each partition: partitions are
    written at the same time, the batches of one partition in order. It remembers a failure, after which nothing more
    is sent."""

    def __init__(self, log: Log, nursery: trio.Nursery, sender: BatchSender, timestamp_ms: int) -> None:
        self._log = log
        self._nursery = nursery
        self._sender = sender
        self._timestamp_ms = timestamp_ms
        self._topics: dict[str, TopicInfo] = {}
        self._copies: dict[WriteTarget, LogCopies] = {}
        self._queues: dict[WriteTarget, trio.MemorySendChannel[NumberedBatch]] = {}
        self._running = 0
        self._over = trio.Event()
        self._error: SourceError | None = None

    async def use_producer(self, producer: TaskIdentity) -> None:
        """Make the connection send under this producer's id, epoch and ticket."""
        self._log.use_producer(producer.id, producer.epoch, producer.ticket)

    async def fetch_limits(self, topic: str) -> TopicLimits:
        """Look up a topic, remember it for sending, and return its limits."""
        found = await self._log.topics.describe(topic)
        self._topics[topic] = found
        return TopicLimits(len(found.partitions), int(found.config.get("max_batch_bytes", 1 << 20)))

    async def put(self, batch: NumberedBatch) -> None:
        """Queue a batch for its partition; waits while ``QUEUED_BATCHES`` batches of that partition are queued.
        Raises the ``SourceError`` of an earlier batch that failed."""
        self._raise()
        queue = self._queues.get(batch.target)
        if queue is None:
            queue, waiting = trio.open_memory_channel[NumberedBatch](QUEUED_BATCHES)
            self._queues[batch.target] = queue
            self._running += 1
            self._nursery.start_soon(self._run, waiting)
        await queue.send(batch)

    async def _run(self, waiting: trio.MemoryReceiveChannel[NumberedBatch]) -> None:
        """Send the batches of one partition's queue, one after the other, until the queue is closed and empty."""
        try:
            async with waiting:
                async for batch in waiting:
                    await self._send(batch)
        finally:
            self._running -= 1
            if not self._running:
                self._over.set()

    async def _send(self, batch: NumberedBatch) -> None:
        """Send a batch and wait for its acknowledgement. A failure is remembered; if the leader does not know what is
        written under the batch's sequence, the log is compared. Does nothing after a failure."""
        if self._error is not None:
            return
        topic, partition = batch.target
        try:
            await self._sender.send(self._topics[topic].topic_id, partition, batch.data, SEND_TIMEOUT_S)
        except TidelogError as error:
            if error.code not in UNVERIFIED:
                self._fail(batch, error)
            else:
                await self._compare(batch, error)

    async def _compare(self, batch: NumberedBatch, unverified: TidelogError) -> None:
        """Look the batch up in the log, because an earlier attempt has used its sequence and the leader does not know
        for which bytes. An equal batch counts as written; another batch, none, or a failed read is remembered as a
        failure."""
        topic, partition = batch.target
        if batch.target not in self._copies:
            self._copies[batch.target] = LogCopies(self._log, self._topics[topic], partition, self._timestamp_ms)
        try:
            same = await self._copies[batch.target].has(batch.data)
        except TidelogError as error:
            text = f"{unverified.message}; and the log cannot be read to compare: {error.message}"
            self._fail(batch, refuse(error.code, text, unknown_outcome=True))
            return
        if same is None:
            self._fail(batch, unverified)
        elif not same:
            self._fail(batch, refuse("SEQUENCE_CONFLICT", "the log has other bytes under their sequence"))

    def _fail(self, batch: NumberedBatch, error: TidelogError) -> None:
        """Remember that a batch failed, with an error that says whether its records may be in the log."""
        topic, partition = batch.target
        outcome = "may not be in the log" if error.unknown_outcome else "are not in the log"
        self._error = SourceError(
            "TIDELOG_NOT_WRITTEN",
            f"{topic}/{partition}: {batch.count} records {outcome}: {error.message} ({error.code})"
            f"{OTHER_ROWS if error.code == 'SEQUENCE_CONFLICT' else ''}",
        )

    async def finish(self) -> None:
        """Close the queues and wait until every batch is acknowledged or has failed. Raises the ``SourceError`` of a
        batch that failed."""
        for queue in self._queues.values():
            queue.close()
        if self._running:
            await self._over.wait()
        self._raise()

    def _raise(self) -> None:
        """Raise the remembered failure, if there is one."""
        if self._error is not None:
            raise self._error
