"""Reads a topic as a table: record batches of pyarrow instead of records."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.client.consumer import Consumer
from tidelog.client.core.consumer import Fetched
from tidelog.errors import ConfigError, CorruptBatch, TidelogError
from tidelog.extras import install_hint

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.arrow.layout import Layout


def layout_of(
    topic: str, columns: Sequence[str], values: str, keys: str, schema: pa.Schema | None, on_invalid: str
) -> Layout:
    """Return the layout of a table with these columns. Raises ``ConfigError`` if pyarrow or numpy is missing, or the
    arguments contradict each other."""
    try:
        from tidelog.arrow.layout import Layout
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("pyarrow", "numpy"):
            raise
        raise ConfigError(f"read_arrow needs {missing}: {install_hint('arrow')}") from error
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    return Layout(topic, names, values, keys, schema, on_invalid)


class ArrowReader:
    """An asynchronous iterator over the records of a topic as record batches of pyarrow. Made by ``Log.read_arrow``.
    Rows come in order per partition. Entering its ``async with`` block, or the first batch, looks up start and end;
    ``schema`` and ``total`` are known from then on. A reader without references is closed by itself."""

    def __init__(self, consumer: Consumer, layout: Layout, *, endless: bool) -> None:
        self._consumer = consumer
        self._layout = layout
        self._endless = endless
        self._rows = layout.row_buffer()
        self._schema: pa.Schema | None = None
        self._first: pa.RecordBatch | None = None
        self._failure: TidelogError | None = None
        self._total: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of every record batch. Raises ``ConfigError`` if the reader is not open."""
        if self._schema is None:
            raise ConfigError("the schema is known when the reader is open: async with log.read_arrow(…) as reader")
        return self._schema

    @property
    def total(self) -> int | None:
        """The number of offsets between start and end; None without an end, or if the reader is not open. A compacted
        topic, or one with transactions, has fewer records than offsets."""
        return self._total

    @property
    def remaining(self) -> int | None:
        """The number of offsets that are still to be read; None without an end, or if the reader is not open.
        ``total`` minus this is the progress."""
        return None if self._total is None else self._consumer.remaining

    @property
    def skipped_batches(self) -> int:
        """Number of batches of the log that were skipped because they cannot be decoded."""
        return self._consumer.skipped_batches

    async def next_batch(self) -> pa.RecordBatch | None:
        """Return the next record batch, which has at least one row, after waiting for it. Returns None when every
        partition has reached its end. Raises what a consumer raises (``Log.consume``) behind the rows before the
        failure, ``InvalidValue`` for a key or value that does not have the form that was asked for, and
        ``ConfigError`` if the schema is to be inferred and the first values have none in common."""
        await self._open()
        rows, self._first = self._first, None
        if rows is None:
            rows = await self._take()
        return None if rows is None else self._layout.finish(rows, self.schema)

    async def _open(self) -> None:
        """Look up start and end, and find out the schema; does nothing if the reader is open."""
        if self._schema is not None:
            return
        await self._consumer.__aenter__()
        self._total = None if self._endless else self._consumer.remaining
        inferred = None
        if self._layout.infers:
            self._first = await self._take()
            inferred = self._layout.infer(self._first)
        self._schema = self._layout.result(inferred)

    async def _take(self) -> pa.RecordBatch | None:
        """Return the next rows, after waiting for enough of them; None at the end. Without an end, wait for one batch
        of the log at most. If the reading fails, return the rows before the failure first."""
        while True:
            is_ended = await self._fill()
            try:
                rows = self._rows.take()
            except CorruptBatch as error:
                self._pass_over(error)
                continue
            if rows is None and self._failure is not None:
                raise self._failure
            if rows is not None or is_ended:
                return rows

    async def _fill(self) -> bool:
        """Wait for batches of the log until there are enough. Return whether there will be no more. A failure is kept
        for later."""
        while self._failure is None and not self._rows.is_enough():
            if self._endless and self._rows.count and not self._consumer.buffered_bytes:
                return False
            try:
                fetched = self._consumer._take_arrived() if self._rows.count else None
                fetched = fetched or await self._consumer.next_batch()  # other tasks run once for each record batch
                if fetched is None:
                    return True
                try:
                    self._rows.add(fetched.partition, fetched.data, fetched.first, fetched.end)
                except CorruptBatch as error:
                    self._consumer._pass_over(fetched, fetched.unreadable(self._consumer.topic, error))
            except TidelogError as error:
                self._failure = error
        return self._failure is not None

    def _pass_over(self, error: CorruptBatch) -> None:
        """Skip the batch that the buffer has refused, or keep its error as the failure, behind which nothing is
        read."""
        refused = self._rows.refused
        assert refused is not None
        fetched = Fetched(refused.partition, refused.header, memoryview(refused.data), refused.first, refused.end)
        try:
            self._consumer._pass_over(fetched, fetched.unreadable(self._consumer.topic, error))
        except TidelogError as failure:
            self._failure = failure
            self._rows.clear()

    async def aclose(self) -> None:
        """Stop reading for good."""
        await self._consumer.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
