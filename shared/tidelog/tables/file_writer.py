"""What a task does: it writes rows to Parquet files that no reader of the table knows before the driver commits
them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidelog.tables.columns import PartitionField

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 16 << 20
"""Size in memory at which collected rows are written to a file."""
FILE_BYTES = 128 << 20
"""Size of a file at which the next one is begun."""
MAX_OPEN_FILES = 100
"""So many partitions a task writes to at a time. Before a further one it closes all its files."""
NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""Stands in a path for a partition value that is null."""
_OWN = re.compile(r"[0-9a-f]{32}\.parquet")
Value = str | int | bool | date | None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that a task has written and closed."""

    name: str
    """Path below the folder of the table's data."""
    size: int
    rows: int
    partition: tuple[Value, ...]
    """One value for each partition field; a day is a date."""
    footer: bytes
    """The file's Parquet metadata, serialised, for the statistics that formats keep."""
    with_nan: tuple[str, ...] = ()
    """Columns that have a NaN, which the bounds in the metadata do not cover."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What a task has to know of a table, made on the driver."""

    folder: str
    """Folder or URL of the table's data."""
    schema: bytes
    """Arrow schema of the files, serialised. Columns that the rows do not have are null."""
    partition: tuple[PartitionField, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the storage."""
    hidden: tuple[str, ...] = ()
    """Columns that stand in the paths only, and not in the files."""
    with_iceberg: bool = False
    """Whether files are opened by pyiceberg, with the properties of its catalog as ``options``."""
    layout: str = ""
    """Iceberg: ids of the schema and the partition fields."""


def is_own_name(name: str) -> bool:
    """Whether a file has a name as ``FileWriter`` makes them."""
    return _OWN.fullmatch(name.rpartition("/")[2]) is not None


def partition_path(fields: tuple[PartitionField, ...], values: tuple[Value, ...]) -> str:
    """Return the folder of a partition, such as ``at_day=2026-01-31/``; "" without partitions."""
    parts = (
        f"{field.name}={NULL_NAME if value is None else quote(as_text(value), safe='')}/"
        for field, value in zip(fields, values, strict=True)
    )
    return "".join(parts)


def as_text(value: Value) -> str:
    """Return a partition value as Hive and Delta write it; null is ""."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


class FileWriter:
    """The files of one task attempt. ``add`` rows, then ``finish``. ``open_file`` opens a new file by its name below
    the folder of the data."""

    def __init__(self, plan: WritePlan, open_file: Callable[[str], Any]) -> None:
        import pyarrow as pa

        self._schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
        self._file_schema = pa.schema([one for one in self._schema if one.name not in plan.hidden])
        self._fields = plan.partition
        self._open_file = open_file
        self._open: dict[tuple[Value, ...], _OpenFile] = {}
        self._written: list[WrittenFile] = []

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, with the metadata that the format wants."""
        return self._schema

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. They are written when enough of a partition have come. Raises ``pyarrow.ArrowInvalid`` for a
        value that the column cannot have."""
        import pyarrow as pa

        table = self._fitted(pa.Table.from_batches([batch]))
        for values, rows in self._split(table):
            if values not in self._open and len(self._open) == MAX_OPEN_FILES:
                self._close_all()
            file = self._open.get(values)
            if file is None:
                name = f"{partition_path(self._fields, values)}{secrets.token_hex(16)}.parquet"
                file = self._open[values] = _OpenFile(name, self._file_schema, self._open_file)
            file.add(rows.select(self._file_schema.names))
            if file.size >= FILE_BYTES:
                self._written.append(self._open.pop(values).close(values))

    def finish(self) -> list[WrittenFile]:
        """Close all files, and return them."""
        self._close_all()
        return self._written

    def _close_all(self) -> None:
        for values, file in self._open.items():
            self._written.append(file.close(values))
        self._open.clear()

    def _fitted(self, table: pa.Table) -> pa.Table:
        """Return rows with the columns and types of the files, and a column for each day that is a column."""
        import pyarrow as pa

        days = {one.name: one.column for one in self._fields if one.by_day}
        columns = []
        for one in self._schema:
            if one.name in table.column_names:
                columns.append(table.column(one.name).cast(one.type))
            elif one.name in days:
                columns.append(_days(table.column(days[one.name])))
            else:
                columns.append(pa.nulls(table.num_rows, one.type))
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _split(self, table: pa.Table) -> Iterable[tuple[tuple[Value, ...], pa.Table]]:
        """Yield the rows of each partition, with the partition's values. The rows keep their order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._fields or not table.num_rows:
            if table.num_rows:
                yield (), table
            return
        keys = [_days(table.column(one.column)) if one.by_day else table.column(one.column) for one in self._fields]
        names = [f"k{n}" for n in range(len(keys))]
        keyed = pa.Table.from_arrays([*keys, pa.array(range(table.num_rows))], names=[*names, "row"])
        groups = keyed.group_by(names, use_threads=False).aggregate([("row", "list")])
        for group in groups.to_pylist():
            rows = pa.array(group["row_list"])
            yield tuple(group[name] for name in names), table.take(rows.take(pc.array_sort_indices(rows)))


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, name: str, schema: pa.Schema, open_file: Callable[[str], Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._name = name
        self._file = _Counted(open_file(name))
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", metadata_collector=self._footers, store_schema=False
        )
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._rows = 0
        self._floats = [field.name for field in schema if pa.types.is_floating(field.type)]
        self._with_nan: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes that were written so far."""
        return self._file.written

    def add(self, rows: pa.Table) -> None:
        """Add rows of the file's columns."""
        import pyarrow.compute as pc

        self._waiting.append(rows)
        self._with_nan |= {name for name in self._floats if pc.any(pc.is_nan(rows.column(name))).as_py()}
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=1 << 20)
        self._waiting, self._waiting_bytes = [], 0

    def close(self, values: tuple[Value, ...]) -> WrittenFile:
        """Close the file, and return what was written. ``values`` are those of its partition."""
        import pyarrow as pa

        self._write()
        self._writer.close()
        self._file.close()
        footer = pa.BufferOutputStream()
        self._footers[0].write_metadata_file(footer)
        data = footer.getvalue().to_pybytes()
        return WrittenFile(self._name, self._file.written, self._rows, values, data, tuple(sorted(self._with_nan)))


class _Counted:
    """A file for writing that counts its bytes, since not every store tells the position."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self.written += memoryview(data).nbytes
        self._file.write(data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Do nothing: the file is complete when it is closed."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()


def footer_of(file: WrittenFile) -> Any:
    """Return the Parquet metadata of a written file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_metadata(pa.BufferReader(file.footer))


def _days(column: Any) -> Any:
    """Return the dates of a column of times or dates, in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_timestamp(column.type) and column.type.tz not in (None, "UTC"):
        column = pc.cast(column, pa.timestamp(column.type.unit, "UTC"))
    return (
        pc.cast(pc.floor_temporal(column, unit="day"), pa.date32())
        if pa.types.is_timestamp(column.type)
        else (column.cast(pa.date32()))
    )
