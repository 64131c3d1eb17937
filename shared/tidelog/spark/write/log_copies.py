"""Looks up in the log what an earlier attempt wrote under a sequence number that its leader no longer remembers.

A leader remembers the last five batches of a producer in a partition. Of an earlier one it only knows that the
sequence was written. A replayed task gets that answer for all but the last of its batches, so it reads the log. All
its records have the timestamp of the micro-batch, so the batches of an earlier attempt are behind the first record of
that time or later."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from tidelog.batch.format import HEADER_BYTES, THINNED, BatchHeader, read_header
from tidelog.client.log import Log
from tidelog.types import Position
from tidelog.wire.messages import TopicInfo


class _LogCopy(NamedTuple):
    """The properties that identify a batch of the producer in the log: its number of records and the CRC that was
    sent."""

    record_count: int
    sent_crc: int
    """The CRC that the producer sent. Compaction changes the CRC of the batch in the log, and keeps this one."""


class LogCopies:
    """The batches of one producer that are in the log of one partition. The log is read from the time of the
    producer's records on, and only as far as the questions need."""

    def __init__(self, log: Log, topic: TopicInfo, partition: int, since_ms: int) -> None:
        """``since_ms`` is the timestamp of the producer's records, in milliseconds since 1970."""
        self._log = log
        self._topic = topic
        self._partition = partition
        self._since_ms = since_ms
        self._offset = -1
        """Offset up to which the log was read, exclusive; -1: nothing was read yet."""
        self._found: dict[int, _LogCopy] = {}
        """The batches that were read, by base sequence."""

    async def has(self, batch: bytes) -> bool | None:
        """Return whether the log has exactly this batch of the producer: True; False if another batch has its base
        sequence; None if no batch has it. Reads more of the log as needed, and raises the errors of reading, such as
        ``FORBIDDEN``."""
        header = read_header(batch)
        while header.base_sequence not in self._found:
            if not await self._read_more(header):
                return None
        copy = self._found[header.base_sequence]
        return copy == _LogCopy(header.record_count, header.crc32c)

    async def _read_more(self, wanted: BatchHeader) -> bool:
        """Read the next batches of the log, and remember those of the producer of ``wanted``. Return False at the end
        of the committed records."""
        topic, partition = self._topic, self._partition
        if self._offset < 0:
            since = datetime.fromtimestamp(self._since_ms / 1000, UTC)
            self._offset = (await self._log.partitions.list_offsets(topic, since, [partition]))[partition].offset
        at = Position(-1, self._offset)
        _, batches = await self._log.read_batches(topic.topic_id, partition, at, isolation="uncommitted")
        for header, data in batches:
            self._offset = header.end_offset
            if (header.producer_id, header.producer_epoch) == (wanted.producer_id, wanted.producer_epoch):
                crc = THINNED.unpack_from(data, HEADER_BYTES)[0] if header.is_sparse else header.crc32c
                self._found[header.base_sequence] = _LogCopy(header.record_count, crc)
        return bool(batches)
