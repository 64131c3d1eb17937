"""What every kind of consumer is for the application: an asynchronous iterator over records."""

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
    """Iterate over it for records, in order per partition; ``next_records`` gives a whole batch at a time.

    A batch that cannot be decoded is an ``UnreadableBatch`` error, and the partition stands before it. With
    ``on_unreadable="skip"`` it is passed over, counted (``skipped_batches``, ``skipped_offsets``) and logged as a
    warning of the logger ``tidelog.client``."""

    topic_id = ""
    """Which topic of that name it is; known when the consumer is open."""
    skipped_batches = 0
    """Batches that were passed over since they cannot be decoded."""
    skipped_offsets = 0
    """Offsets of these batches that were to be read."""

    def __init__(self, topic: str, on_unreadable: str) -> None:
        self.topic = topic
        self._on_unreadable = on_unreadable
        self.current: Fetched | None = None
        """The batch that ``next_records`` opened last."""
        self.last: Record | None = None
        """The record of it that was handed out last, where they are handed out one by one."""
        self._records: Iterator[Record] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. Raises ``StopAsyncIteration`` at the end, if one was asked for."""
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
        """The records of the next batch; empty at the end. Do not mix with iteration in the middle of a batch."""
        while (fetched := await self.next_batch()) is not None:
            records = self._decoded(fetched)
            if records:
                self.current = fetched
                return records
        return []

    def _decoded(self, fetched: Fetched) -> list[Record]:
        """The records of the batch that ``next_batch`` gave last; none where it is skipped. Raises
        ``UnreadableBatch``: then the partition stands before it."""
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
        """The batch that was given last cannot be used: read no further there."""

    @abstractmethod
    async def next_batch(self) -> Fetched | None:
        """The next batch as it came, not decoded (control batches too); None at the end."""

    def _begin_batch(self) -> None:
        """The application is done with the batch before."""
        self.current = self.last = None
        self._records = iter(())

    @property
    def reached(self) -> Position | None:
        """The end of what was handed out of the current batch, if that was not all of it at once."""
        return None if self.last is None else Position(self.last.leader_epoch, self.last.offset + 1)

    @abstractmethod
    async def aclose(self) -> None:
        """Stop reading for good."""

    @abstractmethod
    async def _open(self) -> object:
        """Find out where to read; once."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
