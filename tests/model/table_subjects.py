"""Real tables in a folder, as subjects of the simulation and of the tests of each format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tidelog.tables.columns import PartitionField
from tidelog.tables.commit_protocol import Marker, owner_of
from tidelog.tables.committer import Append
from tidelog.tables.file_writer import WrittenFile
from tidelog.tables.tables import LogTable, TableAddress, open_table, open_writer

FORMATS = ("iceberg", "delta", "parquet")
SCHEMA = pa.schema([("app", pa.string()), ("batch", pa.int64()), ("attempt", pa.int64()), ("n", pa.int64())])


def address_of(format: str, folder: Path | str, **options: str) -> TableAddress:
    """Return the address of a table of a format below a folder."""
    if format != "iceberg":
        return TableAddress(format, f"{folder}/{format}", {}, options)
    local = options.pop("local", str(folder))
    catalog = {"type": "sql", "uri": f"sqlite:///{local}/catalog.db", "warehouse": f"{folder}/iceberg"}
    return TableAddress(format, "shop.rows", catalog, options)


def read(address: TableAddress) -> pa.Table:
    """Return the rows of a table, read with the library of its format."""
    if address.format == "iceberg":
        from pyiceberg.catalog import load_catalog

        with load_catalog("tidelog", **address.catalog, **address.options) as catalog:
            return catalog.load_table(address.place).scan().to_arrow()
    if address.format == "delta":
        from deltalake import DeltaTable
        from tidelog.tables.delta import _of_delta

        return pa.table(DeltaTable(address.place, storage_options=_of_delta(address.options)).to_pyarrow_table())
    files = open_table(address).files()
    return pa.concat_tables(map(pq.read_table, files), promote_options="default") if files else SCHEMA.empty_table()


class RealSubject:
    """A real table under the simulation, without rollbacks and expiry, whose times are real ones."""

    def __init__(self, address: TableAddress) -> None:
        self._address = address
        self.table: LogTable = open_table(address)
        self.table.prepare(SCHEMA, ())

    def write(self, app: str, batch: int, attempt: int, hour: int) -> tuple[list[WrittenFile], str]:
        files, layout = [], ""
        for n in range(2):
            made, layout = written(self.table, [(app, batch, attempt, n)])
            files += made
        return files, layout

    def rows(self) -> list[tuple[str, int, int, int]]:
        return [(row["app"], row["batch"], row["attempt"], row["n"]) for row in read(self._address).to_pylist()]

    def compact(self) -> None:
        self.table.compact(1 << 20)

    def expire(self, hour: int) -> None:
        raise NotImplementedError

    def roll_back(self) -> None:
        raise NotImplementedError


def written(
    table: LogTable,
    rows: list[tuple[Any, ...]],
    schema: pa.Schema = SCHEMA,
    partition: tuple[PartitionField, ...] = (),
) -> tuple[list[WrittenFile], str]:
    """Write rows to files of a table, without a commit. Return the files and their layout."""
    plan = table.prepare(schema, partition)
    writer = open_writer(plan)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    writer.add(pa.RecordBatch.from_arrays(columns, schema=schema))
    return writer.finish(), plan.layout


def append_of(
    table: LogTable,
    batch: int,
    attempt: int,
    rows: list[tuple[Any, ...]] | None = None,
    query: str = "q",
    **more: Any,
) -> Append:
    """Write the files of an attempt at a batch, and return what commits them."""
    files, layout = written(table, rows or [("a", batch, attempt, 0)], **more)
    offsets = {"events": {0: 10 * (batch + 1)}}
    return Append("a", Marker(batch, attempt, owner_of(query), query, offsets), tuple(files), layout)
