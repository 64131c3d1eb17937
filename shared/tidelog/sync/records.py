"""The part that all blocking consumers share: an iterator over records."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

import trio

from tidelog.batch.format import Record
from tidelog.client.core.consumer import Fetched
from tidelog.client.record_stream import RecordStream
from tidelog.errors import TimedOut
from tidelog.sync.portal import Portal

S = TypeVar("S", bound=RecordStream)
T = TypeVar("T")


class Records(Generic[S]):
    """A blocking iterator over the records of a consumer, for one thread at a time. It runs the asynchronous consumer
    ``inner`` in the background thread, and hands out the records of one batch after the other."""

    def __init__(self, portal: Portal, inner: S) -> None:
        self.topic = inner.topic
        self._portal = portal
        self._inner = inner
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        record = next(self._records, None)
        if record is None:
            self._records = iter(self.next_records())
            record = next(self._records)  # StopIteration at the end
        self._last = record
        return record

    def next_records(self) -> list[Record]:
        """Return all records of the next batch that has any, after waiting for it; an empty list if the requested end
        is reached. If the iteration has returned only a part of the present batch, the rest of that batch is dropped.
        Raises ``UnreadableBatch`` for a batch that cannot be decoded and must not be skipped, and what the
        asynchronous consumer's ``next_batch`` raises: ``Closed`` after ``close``, ``Unreachable``, or the error that
        ended a partition or a membership."""
        self._records, self._last = iter(()), None
        return self._portal.run(self._inner.next_records)

    def next_batch(self, timeout_s: float = math.inf) -> Fetched | None:
        """Return the next batch, not decoded, after waiting for it; control batches too. Returns None at the end. If
        the iteration has returned only a part of the present batch, the rest of that batch is dropped. Raises
        ``TimedOut`` if no batch comes within ``timeout_s`` seconds."""
        self._records, self._last = iter(()), None
        return self._portal.run(lambda: self._within(timeout_s, self._inner.next_batch))

    def next_batches(self, timeout_s: float = math.inf) -> list[Fetched]:
        """Return the next batches, not decoded, after waiting for at least one; an empty list at the end. These are
        all batches that have arrived if a ``Consumer`` reads, otherwise one. The rest is as with ``next_batch``, but
        faster for small batches, since the thread changes once for all of them."""
        self._records, self._last = iter(()), None
        return self._portal.run(lambda: self._within(timeout_s, self._inner.next_batches))

    async def _within(self, timeout_s: float, call: Callable[[], Awaitable[T]]) -> T:
        """Return what ``call`` returns. Raises ``TimedOut`` if that takes longer than ``timeout_s`` seconds."""
        try:
            with trio.fail_after(timeout_s):
                return await call()
        except trio.TooSlowError:
            raise TimedOut(f"{self.topic}: no records within {timeout_s:g} s") from None

    @property
    def topic_id(self) -> str:
        """Id of the topic that is read; "" before the first record or the ``with`` block."""
        return self._inner.topic_id

    @property
    def skipped_batches(self) -> int:
        """Number of batches that were skipped because they cannot be decoded (``on_unreadable="skip"``)."""
        return self._inner.skipped_batches

    @property
    def skipped_offsets(self) -> int:
        """Number of offsets in all batches that were skipped because they cannot be decoded
        (``on_unreadable="skip"``), counting only the offsets that were to be read; 0 if none was skipped. Batches
        with a wrong CRC are never skipped: they raise ``UnreadableBatch``."""
        return self._inner.skipped_offsets

    def _current(self) -> S:
        """Return the asynchronous consumer, after passing on to it the last record that this iterator has returned,
        on which its positions depend."""
        self._inner.last = self._last
        return self._inner

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a method of the consumer in the background thread and return its result. If the method has dropped the
        present batch (``pause`` and ``seek`` do), this iterator drops the rest of that batch, too."""
        result = self._portal.run(call)
        if self._inner.last is None:
            self._records, self._last = iter(()), None
        return result

    def close(self) -> None:
        """Stop reading for good. Does nothing in a fork of the process that connected."""
        if not self._portal.is_foreign:
            self._portal.run(self._inner.aclose)

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
