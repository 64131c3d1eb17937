"""A table of Apache Iceberg, through pyiceberg and its catalogs.

The marker of an application is a property of the table, and a tag of its own, ``tidelog-APP``, points at the snapshot
that the application's last commit has made. A commit appends a snapshot, moves the branch ``main`` and the tag to it,
and sets the property, all in one change of the table's metadata. The change requires that ``main`` and the tag are
where they were when the marker was read. The properties of Iceberg cannot be required to have a value; a tag can. No
rollback moves the tag back, so a driver that read an old marker never succeeds.

pyiceberg's own retry of a commit is not used: it would append the files again after a conflict without looking at the
marker.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.tables.columns import (
    PartitionField,
    SchemaConflict,
    check_partition_fields,
    new_columns,
    nullable,
)
from tidelog.tables.commit_protocol import (
    Answer,
    TableState,
    after_batch,
    marker_from_json,
    marker_to_json,
)
from tidelog.tables.compaction import Compacted, Expired, TableFile, check_rows, plan
from tidelog.tables.file_writer import FileWriter, WritePlan, WrittenFile, footer_of, is_own_name
from tidelog.tables.pinned import PinnedTable, the_archive
from tidelog.tables.upsert import last_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction

    from tidelog.tables.committer import Append

PROPERTY = "tidelog.app."
TAG = "tidelog-"
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/+")
ATTEMPTS = 20
"""How often a compaction or an expiry is tried again after a conflict."""
CREATED_WITH = {"write.metadata.delete-after-commit.enabled": "true"}
"""Properties of a new table: each commit writes a file of metadata, and only the latest are kept."""


class IcebergTable:
    """A table in a catalog. ``name`` is ``NAMESPACE.TABLE``; ``catalog`` has the properties of the catalog for
    pyiceberg, and may name one of pyiceberg's configuration as ``name``."""

    def __init__(self, name: str, catalog: Mapping[str, str], options: Mapping[str, str]) -> None:
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise ConfigError(f"Iceberg needs pyiceberg: {install_hint('iceberg')}") from None
        self._name = name
        properties = {**catalog, **options}
        self._catalog: Catalog = load_catalog(properties.pop("name", "tidelog"), **properties)

    # --- what every table does -----------------------------------------------------------------------------

    def prepare(self, rows: pa.Schema, partition: tuple[PartitionField, ...]) -> WritePlan:
        """Create the table or add new columns to it, and return what tasks have to know. Raises ``SchemaConflict``,
        and ``OSError`` if that may succeed later."""
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

        rows = nullable(rows)
        check_partition_fields(rows, partition)
        try:
            table = self._loaded()
        except NoSuchTableError:
            table = self._created(rows, partition)
        if (found := _partition_of(table)) != partition:
            raise SchemaConflict(f"the table is divided by {_words(found)}, not by {_words(partition)}")
        added = new_columns(table.schema().as_arrow(), rows)
        if added:
            import pyarrow as pa

            try:
                with _unknown(), table.update_schema() as update:
                    update.union_by_name(pa.schema(added))
            except CommitFailedException as error:
                raise OSError(f"{self._name}: {error}") from error
        return self._plan(table, partition)

    def load(self, app: str) -> TableState:
        """Return the table's state with the marker of an application. Raises ``OSError``."""
        table = self._loaded()
        found = table.properties.get(PROPERTY + app)
        return TableState(None if found is None else marker_from_json(json.loads(found)), table)

    def replace(self, state: TableState, change: Append) -> Answer:
        """Append files and set the application's marker, if ``main`` and the application's tag are where they were
        in ``state``. Raises ``SchemaConflict`` if the table is divided in another way since the files were written,
        and ``OSError`` if the outcome is unknown."""
        from pyiceberg.table import Transaction
        from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

        table: Table = state.handle
        marker = after_batch(state.marker, change.marker)
        schema_id, _, spec_id = change.layout.partition("/")
        if change.files and int(spec_id) != table.metadata.default_spec_id:
            raise SchemaConflict("the table was divided in another way meanwhile: start the query again")
        transaction = Transaction(table)
        if change.key and change.files:
            self._merge(transaction, change)
        snapshot = transaction.update_snapshot().fast_append()
        with snapshot:
            for file in () if change.key else change.files:
                snapshot.append_data_file(_data_file(table, file, int(schema_id)))
        transaction.set_properties({PROPERTY + change.app: json.dumps(marker_to_json(marker), sort_keys=True)})
        tag = TAG + change.app
        at = table.metadata.refs.get(tag)
        moved = SetSnapshotRefUpdate(ref_name=tag, type="tag", snapshot_id=snapshot.snapshot_id)
        unmoved = AssertRefSnapshotId(ref=tag, snapshot_id=None if at is None else at.snapshot_id)
        is_empty = not table.metadata.snapshots  # then pyiceberg takes requirements for main alone, and they suffice
        return self._commit(transaction, snapshot, (moved,), () if is_empty else (unmoved,))

    def discard(self, names: list[str]) -> None:
        """Delete data files that were never committed."""
        table = self._loaded()
        folder = self._plan(table, ()).folder
        for name in names:
            with suppress(FileNotFoundError):
                table.io.delete(f"{folder}/{name}")

    def files(self) -> list[str]:
        """Return the paths of all files of the table, the latest first."""
        return [str(file.file_path).removeprefix("file://") for file in _live(self._loaded())]

    def pin(self, app: str, partitions: Iterable[tuple[str, int]]) -> PinnedTable:
        """Return the table's present state for readers (``LogTable.pin``)."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._loaded()
        except NoSuchTableError:
            raise ConfigError(f"there is no table {self._name}") from None
        if _has_deletes(table):
            raise ConfigError(f"{self._name} has delete files, which are not applied: compact it with another engine")
        apps = {
            name.removeprefix(PROPERTY): marker_from_json(json.loads(text))
            for name, text in table.properties.items()
            if name.startswith(PROPERTY)
        }
        files = [str(file.file_path).removeprefix("file://") for file in _live(table)]
        return PinnedTable(tuple(files), dict(table.io.properties), the_archive(apps, app))

    def compact(self, target_bytes: int) -> Compacted:
        """Rewrite small files of a partition as one, and return how many were removed and added. Only files that
        have the table's present partition fields are rewritten. Raises ``ConfigError`` for a table that has delete
        files or a later version of the format."""
        table = self._loaded()
        if table.current_snapshot() is None:
            return Compacted(0, 0)
        if table.metadata.format_version > 2 or _has_deletes(table):
            raise ConfigError(f"{self._name} has delete files, or version 3 of the format: use another engine")
        spec_id = table.metadata.default_spec_id
        found = {file.file_path: file for file in _live(table) if file.spec_id == spec_id}
        listed = [TableFile(path, file.file_size_in_bytes, _values(file)) for path, file in reversed(found.items())]
        groups = plan(listed, target_bytes)
        writes = self._plan(table, _partition_of(table))
        removed = [found[file.name] for group in groups for file in group]
        added = [one for group in groups for one in self._rewritten(table, writes, group)]
        check_rows(sum(file.record_count for file in removed), added)
        for _ in range(ATTEMPTS if removed else 0):
            here = {file.file_path for file in _live(table)}
            if not {file.file_path for file in removed} <= here or table.metadata.default_spec_id != spec_id:
                break
            schema_id = int(writes.layout.partition("/")[0])
            if self._swap(table, removed, [_data_file(table, one, schema_id) for one in added]):
                return Compacted(len(removed), len(added))
            table = self._loaded()
        self.discard([one.name for one in added])
        return Compacted(0, 0)

    def expire(self, older_than_s: float) -> Expired:
        """Remove snapshots that are older than so many seconds from the table, except those that a branch or tag
        points at. Delete files that only these snapshots had, and files that Tidelog has written and nobody has
        committed since so many seconds. Files that other engines are about to commit are never touched, nor those
        outside of the table's location. Raises ``ConfigError`` if the table forbids it (``gc.enabled``)."""
        before_ms = time.time_ns() // 10**6 - int(older_than_s * 1000)
        for _ in range(ATTEMPTS):
            table = self._loaded()
            if table.properties.get("gc.enabled", "true").lower() == "false":
                raise ConfigError(f"{self._name} has gc.enabled=false: other tables may have its files, too")
            old = _expired(table, before_ms)
            gone = _files_of(table, old)
            if self._without(table, old):
                break
        else:
            raise OSError(f"{self._name}: {ATTEMPTS} conflicts in a row")
        table = self._loaded()
        kept = _files_of(table, table.snapshots())
        location = _plain(table.location())
        stale = {path for name, path in gone.items() if name not in kept and _is_below(location, _plain(path))}
        stale |= {path for name, path in self._written(table, before_ms).items() if name not in kept}
        for path in stale:
            with suppress(FileNotFoundError):
                table.io.delete(path)
        return Expired(len(old), len(stale))

    def close(self) -> None:
        """Close the connections to the catalog."""
        self._catalog.close()

    # --- steps ---------------------------------------------------------------------------------------------

    def _loaded(self) -> Table:
        """Return the table as the catalog has it. Raises ``OSError`` if the catalog does not answer."""
        with _unknown():
            return self._catalog.load_table(self._name)

    def _created(self, rows: pa.Schema, partition: tuple[PartitionField, ...]) -> Table:
        """Create the table in its namespace and return it; or return the one that another has created meanwhile.
        Raises ``OSError`` if the catalog does not answer."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, IdentityTransform

        with _unknown():
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with _unknown(), suppress(TableAlreadyExistsError, CommitFailedException):  # another has created it
            created = self._catalog.create_table_transaction(self._name, rows, properties=CREATED_WITH)
            with created as transaction, transaction.update_spec() as update:
                for one in partition:
                    update.add_field(one.column, DayTransform() if one.by_day else IdentityTransform(), one.name)
        return self._loaded()

    def _plan(self, table: Table, partition: tuple[PartitionField, ...]) -> WritePlan:
        """Return what tasks have to know to write files for the table as it is now."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = schema_to_pyarrow(table.schema())
        return WritePlan(
            f"{table.location().rstrip('/')}/data",
            schema.serialize().to_pybytes(),
            partition,
            dict(table.io.properties),
            with_iceberg=True,
            layout=f"{table.metadata.current_schema_id}/{table.metadata.default_spec_id}",
        )

    def _commit(
        self, transaction: Transaction, snapshot: Any, updates: tuple[Any, ...] = (), required: tuple[Any, ...] = ()
    ) -> Answer:
        """Ask the catalog once to carry out a transaction that has made ``snapshot``, with further updates and
        requirements. After a conflict the snapshot's manifests are deleted. Raises ``OSError`` if the outcome is
        unknown."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import AssertTableUUID

        same = AssertTableUUID(uuid=transaction.table_metadata.table_uuid)
        try:
            with _unknown():
                self._catalog.commit_table(
                    transaction._table,
                    (*transaction._requirements, *required, same),
                    (*transaction._updates, *updates),
                )
        except CommitFailedException:
            # a request that was sent twice on the way conflicts with itself
            if self._loaded().metadata.snapshot_by_id(snapshot.snapshot_id) is None:
                snapshot._clean_all_uncommitted()
                return Answer.CONFLICT
        return Answer.COMMITTED

    def _rewritten(self, table: Table, writes: WritePlan, group: list[TableFile]) -> list[WrittenFile]:
        """Write the rows of some files to new files, and return these."""
        import pyarrow.parquet as pq

        writer = FileWriter(writes, lambda name: table.io.new_output(f"{writes.folder}/{name}").create())
        for file in group:
            with table.io.new_input(file.name).open() as source:
                for batch in _by_field_ids(pq.ParquetFile(source), writer.schema):
                    writer.add(batch)
        return writer.finish()

    def _merge(self, transaction: Transaction, change: Append) -> None:
        """Let the rows of a batch replace those with the same key, in the transaction."""
        io = transaction._table.io
        folder = self._plan(transaction._table, ()).folder
        rows = last_rows(change.files, lambda name: io.new_input(f"{folder}/{name}").open(), change.key, change.order)
        try:
            transaction.upsert(rows, join_cols=[change.key])
        except ValueError as error:
            raise SchemaConflict(str(error)) from error

    def _swap(self, table: Table, removed: list[DataFile], added: list[DataFile]) -> bool:
        """Replace files of the table by others with the same rows. Returns False after a conflict."""
        from pyiceberg.exceptions import ValidationException
        from pyiceberg.table import Transaction

        transaction = Transaction(table)
        try:
            with transaction.update_snapshot().overwrite() as snapshot:
                for file in removed:
                    snapshot.delete_data_file(file)
                for file in added:
                    snapshot.append_data_file(file)
        except ValidationException:
            return False
        return self._commit(transaction, snapshot) is Answer.COMMITTED

    def _without(self, table: Table, old: list[Any]) -> bool:
        """Remove snapshots from the table, if no branch or tag has moved. Returns False after a conflict."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

        if not old:
            return True
        refs = table.metadata.refs.items()
        unmoved = tuple(AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in refs)
        removed = RemoveSnapshotsUpdate(snapshot_ids=[one.snapshot_id for one in old])
        try:
            with _unknown():
                self._catalog.commit_table(table, unmoved, (removed,))
        except CommitFailedException:
            return False
        return True

    def _written(self, table: Table, before_ms: int) -> dict[str, str]:
        """Return the files of Tidelog's writers below the table's folder of data that are older than a time: the path
        of each by its last part, which is unique."""
        from tidelog.tables.storage import TableFolder

        location = table.location().rstrip("/")
        folder = TableFolder(location.removeprefix("file://"), table.io.properties)
        return {
            name.rpartition("/")[2]: f"{location}/{name}"
            for name, changed in folder.names("data").items()
            if changed * 1000 < before_ms and is_own_name(name)
        }


@contextmanager
def _unknown() -> Iterator[None]:
    """Return a context manager that raises the errors of a catalog as ``OSError``, but for conflicts. Whether the
    catalog has done what it was asked for is then not known."""
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, RESTError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except CommitFailedException:
        raise
    except (CommitStateUnknownException, RESTError, DBAPIError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _expired(table: Table, before_ms: int) -> list[Any]:
    """Return the snapshots that are older than a time, and that no branch or tag points at."""
    needed = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [one for one in table.snapshots() if one.timestamp_ms < before_ms and one.snapshot_id not in needed]


def _files_of(table: Table, snapshots: Iterable[Any]) -> dict[str, str]:
    """Return the files that snapshots have: the path of each by its last part, since engines write the scheme of one
    location in different ways."""
    found = {}
    for snapshot in snapshots:
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                path = entry.data_file.file_path
                found[path.rpartition("/")[2]] = path
    return found


def _plain(location: str) -> str:
    """Return a path or URL without its scheme, which engines write in different ways."""
    return _SCHEME.sub("/", location)


def _is_below(folder: str, path: str) -> bool:
    """Whether a path is below a folder, both without scheme (``_plain``)."""
    return path.startswith(f"{folder.rstrip('/')}/") and ".." not in path.split("/")


def _live(table: Table) -> Iterator[DataFile]:
    """Yield the data files of the table's current snapshot, the latest first."""
    snapshot = table.current_snapshot()
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content.value == 0:
                yield entry.data_file


def _has_deletes(table: Table) -> bool:
    """Whether the table has delete files, which name rows of data files that do not count."""
    snapshot = table.current_snapshot()
    return snapshot is not None and any(one.content.value != 0 for one in snapshot.manifests(table.io))


def _data_file(table: Table, file: WrittenFile, schema_id: int) -> DataFile:
    """Return what Iceberg's manifests say of a written file: its statistics and its partition."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = table.schemas()[schema_id]
    statistics = data_file_statistics_from_parquet_metadata(
        footer_of(file), compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location().rstrip('/')}/data/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=Record(*map(_stored, file.partition)),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _values(file: DataFile) -> tuple[Any, ...]:
    """Return the partition values of a file."""
    return tuple(file.partition[n] for n in range(len(file.partition)))


def _stored(value: Any) -> Any:
    """Return a partition value as Iceberg stores it: a date as days since 1970."""
    from datetime import date

    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def _partition_of(table: Table) -> tuple[PartitionField, ...]:
    """Return the partition fields of a table. Raises ``SchemaConflict`` if it has one that Tidelog does not write."""
    found = []
    for field in table.spec().fields:
        transform = str(field.transform)
        column = table.schema().find_column_name(field.source_id) or ""
        if transform not in ("day", "identity"):
            raise SchemaConflict(f"the table is divided by {transform}({column}), which Tidelog does not write")
        found.append(PartitionField(column, by_day=transform == "day"))
    return tuple(found)


def _words(fields: tuple[PartitionField, ...]) -> str:
    return ", ".join(map(str, fields)) or "nothing"


def _by_field_ids(file: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file with the columns of ``schema`` that it has, matched by Iceberg's field ids, so
    that columns that were renamed since keep their values. Raises ``ConfigError`` if the file has no such ids."""
    import pyarrow as pa

    key = b"PARQUET:field_id"
    ids = {one.metadata[key]: one.name for one in schema}
    if any(key not in (one.metadata or {}) for one in file.schema_arrow):
        raise ConfigError(
            "a file of the table has no field ids, as those that add_files has added: use another engine"
        )
    for batch in file.iter_batches():
        names = [ids.get(one.metadata[key]) for one in file.schema_arrow]
        kept = [n for n, name in enumerate(names) if name is not None]
        yield pa.RecordBatch.from_arrays([batch.column(n) for n in kept], names=[str(names[n]) for n in kept])
