"""The delivery of a task's encoded batches: each is written exactly once by a producer, also if an earlier attempt of
the task has written some of them.

A leader recognises a batch that is sent again by its producer's sequence number, and acknowledges the copy. But a
leader remembers only the last five batches of a producer in a partition. Of an earlier one it knows only that the
sequence was written. A second attempt gets that answer for all but the last of its batches, so it reads the log and
compares. It begins at the first record of the log that has the timestamp of the first record of the batch, or a later
one: the batch of the earlier attempt, which has the same timestamps, is there or behind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import trio

from tidelog.batch.format import HEADER_BYTES, THINNED, BatchHeader, read_header
from tidelog.client.batch_sender import BatchSender
from tidelog.client.log import Log
from tidelog.errors import TidelogError, refuse
from tidelog.spark.errors import SourceError
from tidelog.spark.write.renewal import ENDED
from tidelog.spark.write.task_data import NumberedBatch, TaskIdentity, TopicLimits, WriteTarget
from tidelog.types import Position
from tidelog.wire.messages import TopicInfo

SEND_TIMEOUT_S = 120.0
"""Seconds that a batch may take to be acknowledged, failovers included, before the task fails, and Spark tries it
again."""
OTHER_ROWS = (
    ". An earlier attempt of this task wrote other rows, or wrote them in another order or cut into other batches; "
    "delivery=exactly-once allows that"
)
"""Explanation that is appended to the text of the error ``SEQUENCE_CONFLICT``."""
UNVERIFIED = ("UNVERIFIED_SEQUENCE", "DUPLICATE_SEQUENCE")
"""Errors by which a leader says that it no longer knows which bytes were written under a sequence number."""
QUEUED_BATCHES = 4
"""Batches of a partition that may wait for earlier ones. When there are more, the task waits before it encodes
further rows."""


class TaskSender:
    """The part of a task's write that runs in the client's thread, for one task attempt. It has a queue for each
    partition: the queues are sent at the same time, the batches of one queue in order. After a batch has failed, no
    further batch is sent."""

    def __init__(self, log: Log, nursery: trio.Nursery, sender: BatchSender, ended: str = "") -> None:
        """``ended`` is added to the text of an error which says that the transaction of the batches has ended."""
        self.acked = 0
        """Number of batches that are acknowledged."""
        self._ended = ended
        self._log = log
        self._nursery = nursery
        self._sender = sender
        self._topics: dict[str, TopicInfo] = {}
        self._copies: dict[WriteTarget, LogCopies] = {}
        self._queues: dict[WriteTarget, trio.MemorySendChannel[NumberedBatch]] = {}
        self._running = 0
        self._over = trio.Event()
        self._error: SourceError | None = None

    async def use_producer(self, producer: TaskIdentity) -> None:
        """Make the connection send under the id, epoch and ticket of this producer."""
        self._log.use_producer(producer.id, producer.epoch, producer.ticket)

    async def fetch_limits(self, topic: str, keyed: bool) -> TopicLimits:
        """Look up a topic, remember its id for sending, and return its limits. Raises the errors of the client, and
        ``TIDELOG_MODE`` if the rows replace each other by key (``keyed``) and the topic is not compacted."""
        found = await self._log.topics.describe(topic)
        cleanup = found.config.get("cleanup", "delete")
        if keyed and "compact" not in cleanup:
            text = f"outputMode complete takes compacted topics, and {topic} has cleanup={cleanup}"
            raise SourceError("TIDELOG_MODE", f"{text}: tidelog topics configure {topic} cleanup=compact")
        self._topics[topic] = found
        return TopicLimits(len(found.partitions), int(found.config.get("max_batch_bytes", 1 << 20)))

    async def put(self, batch: NumberedBatch) -> None:
        """Put a batch into the queue of its partition; waits while ``QUEUED_BATCHES`` batches are in that queue.
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
        """Send the batches of one partition's queue, one after the other, until the queue is closed and empty. The
        last queue that ends wakes ``finish``."""
        try:
            async with waiting:
                async for batch in waiting:
                    await self._send(batch)
        finally:
            self._running -= 1
            if not self._running:
                self._over.set()

    async def _send(self, batch: NumberedBatch) -> None:
        """Send a batch and wait for its acknowledgement, or remember its failure. If the leader does not know which
        bytes were written under the batch's sequence, compare the batch with the log. Does nothing if an earlier
        batch has failed."""
        if self._error is not None:
            return
        topic, partition = batch.target
        try:
            await self._sender.send(self._topics[topic].topic_id, partition, batch.data, SEND_TIMEOUT_S)
            self.acked += 1
        except TidelogError as error:
            if error.code not in UNVERIFIED:
                self._fail(batch, error)
            else:
                await self._compare(batch, error)

    async def _compare(self, batch: NumberedBatch, unverified: TidelogError) -> None:
        """Look the batch up in the log, because an earlier attempt has used its sequence and the leader does not know
        for which bytes. If the log has the same batch, this batch counts as written. If the log has another batch or
        none under the sequence, or cannot be read, remember that as a failure."""
        topic, partition = batch.target
        if batch.target not in self._copies:
            self._copies[batch.target] = LogCopies(self._log, self._topics[topic], partition)
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
        """Remember that a batch failed, as a ``TIDELOG_NOT_WRITTEN`` error that says whether its records may be in
        the log."""
        topic, partition = batch.target
        advice = OTHER_ROWS if error.code == "SEQUENCE_CONFLICT" else ""
        if self._ended and error.code in ENDED:
            advice = f". {self._ended}"
        outcome = "may not be in the log" if error.unknown_outcome else "are not in the log"
        self._error = SourceError(
            "TIDELOG_NOT_WRITTEN",
            f"{topic}/{partition}: {batch.count} records {outcome}: {error.message} ({error.code}){advice}",
        )

    async def finish(self) -> None:
        """Close the queues, and wait until every queued batch is acknowledged or has failed. Raises the
        ``SourceError`` of a batch that failed."""
        for queue in self._queues.values():
            queue.close()
        if self._running:
            await self._over.wait()
        self._raise()

    def _raise(self) -> None:
        """Raise the remembered failure of a batch, if there is one."""
        if self._error is not None:
            raise self._error


class _LogCopy(NamedTuple):
    """The properties by which a batch in the log is compared with one that is to be sent: its number of records, and
    the CRC that the producer sent."""

    record_count: int
    sent_crc: int
    """The CRC that the producer sent. Compaction changes the CRC of the batch in the log, and keeps this one."""


class LogCopies:
    """The batches of one producer that are already in the log of one partition. The log is read from the time of the
    first batch that is looked up on, and only as far as the calls of ``has`` need. Batches must be looked up in the
    order of their sequences."""

    def __init__(self, log: Log, topic: TopicInfo, partition: int) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._offset = -1
        """Offset up to which the log was read, exclusive; -1: nothing was read yet."""
        self._found: dict[int, _LogCopy] = {}
        """The batches that were read, by base sequence."""

    async def has(self, batch: bytes) -> bool | None:
        """Return True if the log has exactly this encoded batch of the producer, False if it has another batch under
        the same base sequence, and None if it has none. Reads more of the log as needed, and raises the errors of
        reading, such as ``FORBIDDEN``."""
        header = read_header(batch)
        while header.base_sequence not in self._found:
            if not await self._read_more(header):
                return None
        copy = self._found[header.base_sequence]
        return copy == _LogCopy(header.record_count, header.crc32c)

    async def _read_more(self, wanted: BatchHeader) -> bool:
        """Read the next batches of the log from the cluster, and remember those of the producer of ``wanted``. Return
        whether there were any batches: False at the end of the committed records."""
        topic, partition = self._topic, self._partition
        if self._offset < 0:
            since = datetime.fromtimestamp(wanted.first_timestamp / 1000, UTC)
            self._offset = (await self._log.partitions.list_offsets(topic, since, [partition]))[partition].offset
        at = Position(-1, self._offset)
        _, batches = await self._log.read_batches(topic.topic_id, partition, at, isolation="uncommitted")
        for header, data in batches:
            self._offset = header.end_offset
            if (header.producer_id, header.producer_epoch) == (wanted.producer_id, wanted.producer_epoch):
                crc = THINNED.unpack_from(data, HEADER_BYTES)[0] if header.is_sparse else header.crc32c
                self._found[header.base_sequence] = _LogCopy(header.record_count, crc)
        return bool(batches)
