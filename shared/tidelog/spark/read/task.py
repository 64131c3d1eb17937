"""A task of a read: it reads one range as Arrow record batches, and reports exactly which offsets are gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.errors import CorruptBatch, TidelogError
from tidelog.spark.errors import SourceError, translated_errors, unreadable
from tidelog.spark.options import ReadOptions
from tidelog.spark.read import extents
from tidelog.spark.read.data_loss import PartitionExtent, find_loss
from tidelog.spark.read.ranges import Range
from tidelog.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.rows import RowBuffer
    from tidelog.client.core.consumer import Fetched
    from tidelog.sync import Log

READ_TIMEOUT_S = 120.0
"""Seconds that a task waits for the next records of its range before it fails, and Spark tries it again."""

log = logging.getLogger("tidelog.spark")


def read(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as Arrow record batches, in order of their offsets, over a connection that is
    closed at the end. Offsets that are gone are skipped with a warning, or raise ``TIDELOG_DATA_LOSS`` with
    ``failOnDataLoss``. Batches that cannot be decoded are skipped with a warning if ``onUnreadable`` is ``skip``, or
    raise ``TIDELOG_CORRUPT``. Every other failure raises ``SourceError``."""
    with extents.connect(options) as client, translated_errors():
        yield from _RangeRead(client, options, wanted).batches()


class _RangeRead:
    """One attempt of a task to read a range. It keeps the position that the attempt has reached, and counts the
    batches that it skipped."""

    def __init__(self, client: Log, options: ReadOptions, wanted: Range) -> None:
        self._client = client
        self._options = options
        self._wanted = wanted
        self._at = Position(wanted.start_epoch, wanted.start)
        self._rewritten = False
        self._skipped = self._skipped_offsets = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range as Arrow record batches. Offsets that are gone are passed over if
        ``failOnDataLoss`` is not set. Logs at the end how many offsets were in batches that could not be decoded, if
        there were any."""
        from tidelog.spark.read.arrow import row_buffer

        wanted = self._wanted
        rows = row_buffer(wanted.topic, self._options.include_headers)
        while self._at.offset < wanted.end:
            try:
                for batch in self._fetch():
                    self._check_epoch(batch)
                    self._add(rows, batch)
                    self._at = Position(batch.header.leader_epoch, batch.end)
                    if rows.is_enough():
                        yield from self._take(rows)
            except TidelogError as error:
                if error.code not in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
                    raise
                self._pass_over(error)
        yield from self._take(rows)
        if self._skipped:
            where = f"{wanted.topic}/{wanted.partition}"
            text = "%s: skipped %d offsets in %d batches that cannot be decoded"
            log.warning(text, where, self._skipped_offsets, self._skipped)

    def _add(self, rows: RowBuffer, batch: Fetched) -> None:
        """Add a log batch to ``rows``, or skip it (``_skip``) if its CRC is wrong or it does not decompress."""
        try:
            rows.add(batch.partition, batch.data, batch.first, batch.end)
        except CorruptBatch as error:
            self._skip(batch, error)

    def _take(self, rows: RowBuffer) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the buffer as record batches. Log batches that cannot be decoded are skipped
        (``_skip``)."""
        from tidelog.client.core.consumer import Fetched
        from tidelog.spark.read.arrow import take_tables

        while rows.count:
            try:
                yield from take_tables(rows)
            except CorruptBatch as error:
                refused = rows.refused
                assert refused is not None
                place = refused.partition, refused.header, memoryview(refused.data), refused.first, refused.end
                self._skip(Fetched(*place), error)

    def _skip(self, batch: Fetched, error: CorruptBatch) -> None:
        """Skip a batch that cannot be decoded with a warning, if ``onUnreadable`` is ``skip`` and its bytes were not
        damaged on the way to this client; otherwise raise ``TIDELOG_CORRUPT``."""
        found = batch.unreadable(self._wanted.topic, error)
        if self._options.on_unreadable == "raise" or found.is_damaged:
            raise unreadable(found) from None
        self._skipped += 1
        self._skipped_offsets += batch.end - batch.first
        log.warning("skipped: %s: %s", found.place, found.why)

    def _fetch(self) -> Iterator[Fetched]:
        """Read the log from the present position on, and yield its batches up to the end of the range. Raises
        ``TIDELOG_TOPIC_CHANGED`` if the topic was deleted and created again, and the errors of the client, also if no
        batch arrives within ``READ_TIMEOUT_S``."""
        from tidelog.client.options import ConsumerOptions

        wanted, size = self._wanted, self._options.fetch_max_bytes
        with self._client.consume(
            wanted.topic,
            start={wanted.partition: self._at},
            end=wanted.end,
            partitions=[wanted.partition],
            options=ConsumerOptions(buffer_bytes=size, partition_bytes=size),
        ) as consumer:
            if consumer.topic_id != wanted.topic_id:
                raise topic_changed(wanted.topic)
            while batches := consumer.next_batches(READ_TIMEOUT_S):
                yield from batches

    def _check_epoch(self, batch: Fetched) -> None:
        """Raise or log a data loss (``_handle_loss``) if the batch has a later leader epoch than the range's end,
        since its records have then replaced the planned ones. Only the first such batch is looked at."""
        if self._rewritten or self._wanted.end_epoch < 0 or batch.header.leader_epoch <= self._wanted.end_epoch:
            return
        self._handle_loss(self._extent(), batch.first)
        self._rewritten = True

    def _pass_over(self, error: TidelogError) -> None:
        """Move the position behind the offsets that are gone: to the log start, or to the end of the range if the log
        ends below the position. The loss is logged; with ``failOnDataLoss`` it raises ``TIDELOG_DATA_LOSS`` instead.
        ``error`` is the client's error for the last read."""
        extent = self._extent()
        cut_at = error.detail.get("end_offset") if error.code == "LOG_TRUNCATED" else None
        self._handle_loss(extent, int(cut_at) if cut_at is not None else None)
        there = self._at.offset < extent.end
        after = max(self._at.offset, extent.start) if there else self._wanted.end
        self._at = Position(-1, min(after, self._wanted.end))

    def _handle_loss(self, extent: PartitionExtent, cut_at: int | None) -> None:
        """Find out which offsets between the present position and the end of the range are gone. If some are, raise
        ``TIDELOG_DATA_LOSS`` with ``failOnDataLoss``, otherwise log a warning. ``cut_at`` is the offset at which the
        log was truncated, or None."""
        start, end = self._at.offset, self._wanted.end
        loss = find_loss(extent, start, end, seen=True, cut_at=cut_at)
        if loss is not None:
            if self._options.fail_on_data_loss:
                raise loss
            log.warning("%s", loss)

    def _extent(self) -> PartitionExtent:
        """Look up the present extent of the range's partition, and return it. Raises ``TIDELOG_TOPIC_CHANGED`` if the
        topic was deleted and created again, and the errors of the client."""
        wanted = self._wanted
        topic = self._client.topics.describe(wanted.topic)
        if topic.topic_id != wanted.topic_id:
            raise topic_changed(wanted.topic)
        return extents.look_up_partitions(self._client, topic, [wanted.partition])[0]


def topic_changed(topic: str) -> SourceError:
    """Return the ``TIDELOG_TOPIC_CHANGED`` error for a topic that was deleted and created again since the read was
    planned."""
    return SourceError(
        "TIDELOG_TOPIC_CHANGED",
        f"{topic} was deleted and created again: its offsets are those of another log. Begin a new query (a new "
        "checkpoint), or read from the earliest offset",
    )
