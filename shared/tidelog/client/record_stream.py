"""What all kinds of consumer have in common: an asynchronous iterator over records."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from tidelog.batch.format import Record
from tidelog.client.core.consumer import Fetched
from tidelog.errors import UnreadableBatch
from tidelog.types import Position

log = logging.getLogger("tidelog.client")


class RecordStream(ABC):
    """Iterate over it for records, in order per partition; ``next_records`` returns a whole batch at a time.

    A batch that cannot be decoded raises ``UnreadableBatch``, and the partition stands before it. With
    ``on_unreadable="skip"`` it is passed over, counted (``skipped_batches``, ``skipped_offsets``) and logged as a
    warning of the logger ``tidelog.client``.
    """

    topic_id = ""
    """Id of the topic that is read; known when the consumer is open."""
    skipped_batches = 0
    """Number of batches that were passed over because they cannot be decoded."""
    skipped_offsets = 0
    """Number of offsets in those batches that were to be read."""

    def __init__(self, topic: str, on_unreadable: str) -> None:
        self.topic = topic
        self._on_unreadable = on_unreadable
        self.current: Fetched | None = None
        """The batch that ``next_records`` opened last."""
        self.last: Record | None = None
        """The record of ``current`` that was handed out last, if records are handed out one by one."""
        self._records: Iterator[Record] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record. Raises ``StopAsyncIteration`` at the end, if an end was requested."""
        record = next(self._records, None)
        if record is None:
            records = await self.next_records()
            if not records:
                raise StopAsyncIteration
            self._records = iter(records)
            record = next(self._records)
        self.last = record
        return record

    async def next_records(self) -> list[Record]:
        """Return the records of the next batch; empty at the end. Do not mix with iteration in the middle of a
        batch."""
        while (fetched := await self.next_batch()) is not None:
            records = self._decoded(fetched)
            if records:
                self.current = fetched
                return records
        return []

    def _decoded(self, fetched: Fetched) -> list[Record]:
        """Return the records of the batch that ``next_batch`` returned last; none if it is skipped. Raises
        ``UnreadableBatch``: then the partition stands before the batch."""
        try:
            return fetched.records(self.topic)
        except UnreadableBatch as error:
            if self._on_unreadable == "raise" or error.is_damaged:
                self._stop_before(fetched, error)
                raise
            self.skipped_batches += 1
            self.skipped_offsets += fetched.end - fetched.first
            log.warning("skipped: %s: %s", error.place, error.why)
            return []

    @abstractmethod
    def _stop_before(self, fetched: Fetched, error: UnreadableBatch) -> None:
        """Stop reading before the batch that was returned last, because it cannot be decoded."""

    @abstractmethod
    async def next_batch(self) -> Fetched | None:
        """Return the next batch, not decoded (control batches too); None at the end."""

    def _begin_batch(self) -> None:
        """Finish the batch before and open this one."""
        self.current = self.last = None
        self._records = iter(())

    @property
    def reached(self) -> Position | None:
        """The end of what was handed out of the current batch; None if it was handed out whole."""
        return None if self.last is None else Position(self.last.leader_epoch, self.last.offset + 1)

    @abstractmethod
    async def aclose(self) -> None:
        """Stop reading for good."""

    @abstractmethod
    async def _open(self) -> object:
        """Look up where to read; once."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
