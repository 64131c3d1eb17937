"""Upserts: the rows of a batch replace those of the table that have the same key.

Tasks write the rows to files, as for a batch that is appended. The driver reads these files, keeps the last row of
each key, and merges them into the table in the same step that sets the marker. So a batch must fit into the driver's
memory, and has ``MAX_ROWS`` rows at most. Rows of a key are in the order of their offsets, which holds if all records
of a key are in one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidelog.tables.columns import SchemaConflict
from tidelog.tables.file_writer import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 100_000
"""Rows of a batch that is merged, at most."""


class BatchTooLarge(Exception):
    """The batch has more rows than a merge takes. The argument is their number."""


def last_rows(files: Iterable[WrittenFile], open_file: Callable[[str], Any], key: str, order: str) -> pa.Table:
    """Return the row of each key that has the highest value of the column ``order``. ``open_file`` opens a file for
    reading by its name. Raises ``BatchTooLarge``, and ``SchemaConflict`` for a row whose key is null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = list(files)
    if (rows := sum(file.rows for file in files)) > MAX_ROWS:
        raise BatchTooLarge(rows)
    parts = []
    for file in files:
        with open_file(file.name) as source:
            parts.append(pq.ParquetFile(source).read())
    table = pa.concat_tables(parts)
    if table.column(key).null_count:
        raise SchemaConflict(f"a row has no {key} (null), by which rows replace each other")
    places = pa.table({"key": table.column(key), "order": table.column(order), "at": pa.array(range(len(table)))})
    places = places.sort_by([("order", "ascending")])
    last = places.group_by("key", use_threads=False).aggregate([("at", "last")])
    return table.take(last.column("at_last"))
