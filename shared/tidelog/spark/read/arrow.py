"""The columns of the source: their Arrow schema and their Spark types, with exactly the types, names and nullability
that Spark expects."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.extras import install_hint

try:
    import pyarrow as pa

    from tidelog.arrow.rows import RowBuffer, row_schema
except ImportError as error:
    if error.name not in ("pyarrow", "numpy"):
        raise
    raise ImportError(f"Tidelog's source for Spark needs {error.name}: {install_hint('spark')}") from error

ROWS = 4096
"""A record batch is closed when it has this many rows."""
MAX_ROWS = 10_000
"""Most rows of a record batch."""
_COLUMNS = ("key", "value", "topic", "partition", "offset", "leader_epoch", "timestamp")

DDL = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, leader_epoch BIGINT, timestamp TIMESTAMP"
DDL_HEADERS = DDL + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def schema(include_headers: bool) -> pa.Schema:
    """Return the Arrow schema of every record batch of the source; it has the column ``headers`` only if
    ``include_headers``."""
    return row_schema((*_COLUMNS, "headers") if include_headers else _COLUMNS, "us")


def row_buffer(topic: str, include_headers: bool) -> RowBuffer:
    """Return a new buffer for the rows of a topic, with the source's columns, that has enough with ``ROWS`` rows."""
    return RowBuffer(topic, schema(include_headers), ROWS)


def take_tables(rows: RowBuffer) -> Iterator[pa.RecordBatch]:
    """Empty the buffer, and yield its rows as record batches of at most ``MAX_ROWS`` rows. Yields nothing if the
    buffer has no rows."""
    whole = rows.take()
    if whole is not None:
        for at in range(0, whole.num_rows, MAX_ROWS):
            yield whole.slice(at, MAX_ROWS)
