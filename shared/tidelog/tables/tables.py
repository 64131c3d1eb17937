"""The way in: the table that options describe, and the files that a task writes for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.errors import ConfigError
from tidelog.tables.columns import PartitionField
from tidelog.tables.committer import Commits
from tidelog.tables.compaction import Compacted, Expired
from tidelog.tables.file_writer import FileWriter, WritePlan
from tidelog.tables.pinned import PinnedTable

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("iceberg", "delta", "parquet")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where a table is, and in which format."""

    format: str
    place: str
    """Iceberg: ``NAMESPACE.TABLE``; Delta and Parquet: a folder or a URL."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Iceberg: properties of the catalog, in pyiceberg's words; ``name`` is one of pyiceberg's configuration."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the storage, such as ``s3.endpoint``."""


class LogTable(Commits, Protocol):
    """What the sink and the command need of a table."""

    def prepare(self, rows: pa.Schema, partition: tuple[PartitionField, ...]) -> WritePlan:
        """Create the table for these columns, or add those that it does not have, and return what tasks have to
        know. Raises ``SchemaConflict`` if the table cannot have these rows."""

    def pin(self, app: str, partitions: Iterable[tuple[str, int]]) -> PinnedTable:
        """Return the table's present state for readers, all of it from the same metadata: the files, and what the
        marker of the table's only application says of these partitions. ``app`` is the name of that application; ""
        finds it, but not in Delta, which cannot list names. Raises ``ConfigError`` if there is no such table or
        application, or if the files alone do not have the table's rows, and ``OSError``."""

    def compact(self, target_bytes: int) -> Compacted:
        """Rewrite small files as files of about ``target_bytes``. Rows and markers stay as they are."""

    def expire(self, older_than_s: float) -> Expired:
        """Delete old snapshots, and files that no remaining one has."""

    def close(self) -> None:
        """Close connections to a catalog."""


def open_table(address: TableAddress) -> LogTable:
    """Return the table at an address, which need not exist yet. Raises ``ConfigError`` if the address is not valid,
    or a package is missing."""
    if address.format == "iceberg":
        from tidelog.tables.iceberg import IcebergTable

        if "." not in address.place:
            raise ConfigError(f"a table of Iceberg is NAMESPACE.TABLE, not {address.place!r}")
        return IcebergTable(address.place, address.catalog, address.options)
    if address.catalog:
        raise ConfigError("a catalog goes with format iceberg")
    if address.format == "delta":
        from tidelog.tables.delta import DeltaTable

        return DeltaTable(address.place, address.options)
    if address.format == "parquet":
        from tidelog.tables.manifest import ManifestTable

        return ManifestTable(address.place, address.options)
    raise ConfigError(f"format is one of {', '.join(FORMATS)}; not {address.format!r}")


def open_writer(plan: WritePlan) -> FileWriter:
    """Return the writer of a task's files."""
    if plan.with_iceberg:
        from pyiceberg.io import load_file_io

        io = load_file_io(dict(plan.options), plan.folder)
        return FileWriter(plan, lambda name: io.new_output(f"{plan.folder}/{name}").create())
    from tidelog.tables.storage import TableFolder

    folder = TableFolder(plan.folder, plan.options)
    return FileWriter(plan, folder.open_new)


def read_offset(table: Any, app: str, topic: str, partition: int) -> int | None:
    """Return the offset before which a table has every record that an application read from a partition; None if it
    has none."""
    if hasattr(table, "offset"):
        found: int | None = table.offset(app, topic, partition)
        return found
    marker = table.load(app).marker
    return None if marker is None else marker.offsets.get(topic, {}).get(partition)
