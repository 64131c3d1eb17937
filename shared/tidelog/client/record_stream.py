"""The part that all kinds of consumer share: an asynchronous iterator over records."""

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
    """The base class of every consumer: an asynchronous iterator over records. Records come in order per partition;
    ``next_records`` returns the records of a whole batch at a time.

    A batch that cannot be decoded raises ``UnreadableBatch``, and its partition stops before the batch. With
    ``on_unreadable="skip"`` the batch is passed over, counted (``skipped_batches``, ``skipped_offsets``) and logged
    as a warning of the logger ``tidelog.client``. A batch with a wrong CRC (its bytes were damaged) raises in both
    cases.
    """

    topic_id = ""
    """Id of the topic that is read; "" until the consumer is open."""
    skipped_batches = 0
    """Number of batches that were skipped because they cannot be decoded."""
    skipped_offsets = 0
    """Number of offsets in the skipped batches, counting only those that were to be read."""

    def __init__(self, topic: str, on_unreadable: str) -> None:
        self.topic = topic
        self._on_unreadable = on_unreadable
        self.current: Fetched | None = None
        """The batch whose records ``next_records`` returned last; None before the first batch and while the next one
        is fetched."""
        self.last: Record | None = None
        """The record of ``current`` that the iteration returned last; None if ``next_records`` returned the batch as
        a whole."""
        self._records: Iterator[Record] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record, after waiting for a batch if all records of the present one were returned. Raises
        ``StopAsyncIteration`` if a requested end is reached, and what ``next_records`` raises."""
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
        """Return all records of the next batch that has any, after waiting for it; an empty list if the requested end
        is reached. Raises ``UnreadableBatch`` for a batch that cannot be decoded and must not be skipped. If the
        iteration has returned only a part of the present batch, the rest of that batch is dropped."""
        while (fetched := await self.next_batch()) is not None:
            records = self._decoded(fetched)
            if records:
                self.current = fetched
                return records
        return []

    def _decoded(self, fetched: Fetched) -> list[Record]:
        """Return the records of the batch that ``next_batch`` returned last; an empty list if it cannot be decoded
        and is skipped (``_pass_over``)."""
        try:
            return fetched.records(self.topic)
        except UnreadableBatch as error:
            self._pass_over(fetched, error)
            return []

    def _pass_over(self, fetched: Fetched, error: UnreadableBatch) -> None:
        """Count and log the batch that ``next_batch`` returned last as skipped, because ``error`` shows that it
        cannot be decoded. If it must not be skipped (``on_unreadable`` is ``raise``, or its CRC is wrong), reading
        stops before the batch and ``error`` is raised."""
        if self._on_unreadable == "raise" or error.is_damaged:
            self._stop_before(fetched, error)
            raise error
        self.skipped_batches += 1
        self.skipped_offsets += fetched.end - fetched.first
        log.warning("skipped: %s: %s", error.place, error.why)

    @abstractmethod
    def _stop_before(self, fetched: Fetched, error: UnreadableBatch) -> None:
        """Stop reading before the batch that ``next_batch`` returned last, because ``error`` shows that it cannot be
        decoded. The partition goes on only after ``seek``."""

    @abstractmethod
    async def next_batch(self) -> Fetched | None:
        """Return the next batch, not decoded, after waiting for it; control batches too. Returns None if the
        requested end is reached."""

    async def next_batches(self) -> list[Fetched]:
        """Return the next batches, not decoded, after waiting for at least one; an empty list if the requested end is
        reached. These are all batches that have arrived if a ``Consumer`` reads, otherwise one. Raises what
        ``next_batch`` raises, after the batches before the failure were returned."""
        fetched = await self.next_batch()
        return [] if fetched is None else [fetched]

    def _begin_batch(self) -> None:
        """Forget the present batch, including its records that were not returned, because the application asks for
        the next batch."""
        self.current = self.last = None
        self._records = iter(())

    @property
    def reached(self) -> Position | None:
        """The position after the record of the current batch that the iteration returned last; None if the batch was
        returned as a whole."""
        return None if self.last is None else Position(self.last.leader_epoch, self.last.offset + 1)

    @abstractmethod
    async def aclose(self) -> None:
        """Stop reading for good. Later calls that read raise ``Closed``."""

    @abstractmethod
    async def _open(self) -> object:
        """Look up the positions to read at, and begin to read; does nothing if the consumer is open. Raises
        ``Closed`` after ``aclose``."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
