"""A task of a read with ``history``: it reads one range from the files of a table, in order of the offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidelog.spark.errors import SourceError
from tidelog.spark.options import ReadOptions
from tidelog.spark.read.ranges import Range
from tidelog.tables.pinned import RowGroup, open_data

if TYPE_CHECKING:
    import pyarrow as pa


def read(
    options: ReadOptions, wanted: Range, groups: list[list[RowGroup]], storage: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as Arrow record batches with the source's columns. ``groups`` are those of
    ``history.prune``; one of them is in memory at a time. Raises ``TIDELOG_HISTORY`` if a file cannot be read, or an
    offset is there twice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.spark.read import arrow

    schema = arrow.schema(options.include_headers)
    for group in groups:
        try:
            rows = pa.concat_tables([_rows(one, wanted, schema, storage) for one in group])
        except (OSError, pa.ArrowException, KeyError) as error:
            raise SourceError("TIDELOG_HISTORY", f"the table cannot be read: {error}") from error
        rows = rows.take(pc.sort_indices(rows, [("offset", "ascending")])).combine_chunks()
        found = rows.column("offset")
        if len(found) > 1 and pc.any(pc.equal(found.slice(1), found.slice(0, len(found) - 1))).as_py():
            raise SourceError("TIDELOG_HISTORY", f"{wanted.topic}/{wanted.partition}: the table has an offset twice")
        yield from rows.to_batches(max_chunksize=arrow.MAX_ROWS)


def _rows(group: RowGroup, wanted: Range, schema: pa.Schema, storage: Mapping[str, str]) -> pa.Table:
    """Return the records of a range that a part of a file has."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with open_data(group.path, storage) as file:
        rows = pq.ParquetFile(file).read_row_group(group.number, columns=schema.names)
    offset = rows.column("offset")
    chosen = pc.and_(
        pc.equal(rows.column("topic"), wanted.topic), pc.equal(rows.column("partition"), wanted.partition)
    )
    chosen = pc.and_(chosen, pc.and_(pc.greater_equal(offset, wanted.start), pc.less(offset, wanted.end)))
    rows = rows.filter(chosen).select(schema.names)
    return pa.table([rows.column(one.name).cast(one.type) for one in schema], schema=schema)
