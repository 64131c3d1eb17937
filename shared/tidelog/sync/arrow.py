"""A topic as a table in blocking programs: a ``pyarrow.RecordBatchReader``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.client.arrow_reader import ArrowReader
from tidelog.sync.portal import Portal

if TYPE_CHECKING:
    import pyarrow as pa


def record_batch_reader(portal: Portal, inner: ArrowReader, progress: bool) -> pa.RecordBatchReader:
    """Open the asynchronous reader ``inner`` in the background thread, and return the reader of its record batches.
    ``progress``: show a progress bar on stderr while they are read."""
    import pyarrow as pa

    portal.run(inner.__aenter__)
    batches = _batches(portal, inner)
    return pa.RecordBatchReader.from_batches(inner.schema, _with_bar(inner, batches) if progress else batches)


def _batches(portal: Portal, inner: ArrowReader) -> Iterator[pa.RecordBatch]:
    while (batch := portal.run(inner.next_batch)) is not None:
        yield batch


def _with_bar(inner: ArrowReader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the record batches, and show on stderr how many offsets were read, of how many if there is an end."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("offsets", total=inner.total)
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            left = inner.remaining
            done = rows if inner.total is None or left is None else inner.total - left
            bar.update(task, completed=done)
            yield batch
        bar.update(task, completed=rows if inner.total is None else inner.total)
