"""A Delta table, through deltalake (delta-rs).

Delta's log keeps, for each application id, the version of its last transaction (``txn``), and a commit conflicts with
one that has written a transaction of the same id meanwhile. The marker of an application is several transactions,
since each has only a number:

==============================  ======================================================
id                              version
==============================  ======================================================
APP                             the batch
APP#attempt                     the attempt
APP#owner                       the hash of the query's id
APP#offset/TOPIC/PARTITION      the offset before which the table has every record
APP#archive                     the rows of an archive (``Archive``); -1: it is none
APP#start/TOPIC/PARTITION       an archive's first offset
APP#epoch/TOPIC/PARTITION       the leader epoch of its last record
APP#topic/TOPIC                 the hash of the topic's id
==============================  ======================================================

Transactions stay when the table is restored to an earlier version, compacted or vacuumed, and in checkpoints of the
log.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
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
from tidelog.tables.commit_protocol import Answer, Archive, Marker, TableState, merged_archive
from tidelog.tables.compaction import Compacted, Expired
from tidelog.tables.file_writer import WritePlan, WrittenFile, as_text, footer_of
from tidelog.tables.pinned import PinnedTable, the_archive
from tidelog.tables.storage import TableFolder
from tidelog.tables.upsert import last_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable as Opened

    from tidelog.tables.committer import Append

_NOT_KEPT = ("delta.constraints.", "delta.columnMapping.mode")
"""Settings of a table that ask more of a writer than to add files."""
LONGEST_TEXT = 32
"""Characters of a text in statistics."""
LAST_CHARACTER = "\U0010ffff"


class DeltaTable:
    """A Delta table in a folder or at a URL."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise ConfigError(f"Delta needs deltalake: {install_hint('delta')}") from None
        self._url = url
        self._options = dict(options)
        self._storage = _of_delta(options)

    # --- what every table does -----------------------------------------------------------------------------

    def prepare(self, rows: pa.Schema, partition: tuple[PartitionField, ...]) -> WritePlan:
        """Create the table or add new columns to it, and return what tasks have to know. Raises
        ``SchemaConflict``, and ``OSError`` if that may succeed later."""
        import pyarrow as pa
        from deltalake import DeltaTable, Schema

        rows = nullable(rows)
        check_partition_fields(rows, partition)
        days = [pa.field(one.name, pa.date32()) for one in partition if one.by_day]
        names = [one.name for one in partition]
        with self._reached():
            created = Schema.from_arrow(pa.schema([*rows, *days]))
            DeltaTable.create(self._url, created, mode="ignore", partition_by=names, storage_options=self._storage)
            table = self._opened()
            if refused := [name for name in table.metadata().configuration if name.startswith(_NOT_KEPT)]:
                raise SchemaConflict(f"the table has {', '.join(refused)}, which Tidelog does not keep to")
            if (found := list(table.metadata().partition_columns)) != names:
                raise SchemaConflict(f"the table is divided by {found}, not by {names}")
            known = {one.name for one in days}
            added = [one for one in new_columns(_arrow(table), rows) if one.name not in known]
            if added:
                fields = Schema.from_arrow(pa.schema(added)).fields
                table.alter.add_columns(list(fields))
                table = self._opened()
        folder = TableFolder(self._url, self._options)
        text = _arrow(table).serialize().to_pybytes()
        return WritePlan(folder.path("").rstrip("/"), text, partition, self._options, hidden=tuple(names))

    def load(self, app: str) -> TableState:
        """Return the table's state with the marker of an application, without its offsets. Raises ``OSError``."""
        with self._reached():
            table = self._opened()
            batch, attempt, owner = (table.transaction_version(id) for id in (app, f"{app}#attempt", f"{app}#owner"))
        if batch is None or attempt is None or owner is None:
            return TableState(None, table)
        return TableState(Marker(batch, attempt, owner), table)

    def offset(self, app: str, topic: str, partition: int) -> int | None:
        """Return the offset before which the table has every record of a partition; None if it has none."""
        version: int | None = self._opened().transaction_version(_offset_id(app, topic, partition))
        return version

    def replace(self, state: TableState, change: Append) -> Answer:
        """Append files and set the application's marker, if nobody has set it since ``state`` was loaded. Raises
        ``OSError`` if the outcome is unknown."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction

        table: Opened = state.handle
        names = list(table.metadata().partition_columns)
        actions = [
            AddAction(
                file.name,
                file.size,
                {name: as_text(value) or None for name, value in zip(names, file.partition, strict=True)},
                time.time_ns() // 10**6,
                True,
                _statistics(file),
            )
            for file in change.files
        ]
        marker, app = change.marker, change.app
        versions = {app: marker.batch, f"{app}#attempt": marker.attempt, f"{app}#owner": marker.owner}
        old = state.marker
        try:
            for topic, partitions in marker.offsets.items():
                for partition, offset in partitions.items():
                    id = _offset_id(app, topic, partition)
                    versions[id] = max(offset, table.transaction_version(id) or 0)
            if old is not None:
                old = replace(old, archive=_archive(table, app, _places(marker)))
            versions |= _of_archive(app, merged_archive(old, marker.archive))
            properties = CommitProperties(
                custom_metadata={"tidelog.app": app, "tidelog.query": marker.query, "tidelog.batch": marker.batch},
                app_transactions=[Transaction(id, version) for id, version in versions.items()],
            )
            if change.key and change.files:
                self._merge(table, change, properties)
            else:
                table.create_write_transaction(actions, "append", table.schema(), names, commit_properties=properties)
        except CommitFailedError:
            return Answer.CONFLICT
        except DeltaError as error:
            raise OSError(f"{self._url}: {error}") from error
        return Answer.COMMITTED

    def discard(self, names: list[str]) -> None:
        """Delete data files that were never committed."""
        folder = TableFolder(self._url, self._options)
        for name in names:
            folder.remove(name)

    def files(self) -> list[str]:
        """Return the paths of all files of the table. Raises ``OSError``."""
        with self._reached():
            return _paths(self._opened())

    def pin(self, app: str, partitions: Iterable[tuple[str, int]]) -> PinnedTable:
        """Return the table's present state for readers (``LogTable.pin``). Delta lists no transactions, so the
        application must be given. Raises ``ConfigError`` also for tables that may have deletion vectors, and
        ``OSError``."""
        from deltalake.exceptions import TableNotFoundError

        if not app:
            raise ConfigError(
                "Delta does not list the applications of a table: history.appId names the one that has written it"
            )
        with self._reached():
            try:
                table = self._opened()
            except TableNotFoundError:
                raise ConfigError(f"there is no Delta table in {self._url}") from None
        if "deletionVectors" in (table.protocol().reader_features or []):
            raise ConfigError(f"{self._url} may have deletion vectors, which are not applied")
        places = list(partitions)
        ends: dict[str, dict[int, int]] = {}
        for topic, partition in places:
            end = table.transaction_version(_offset_id(app, topic, partition))
            if end is not None:
                ends.setdefault(topic, {})[partition] = end
        batch = table.transaction_version(app)
        apps = {} if batch is None else {app: Marker(batch, 0, 0, "", ends, _archive(table, app, places))}
        return PinnedTable(tuple(_paths(table)), self._options, the_archive(apps, app))

    def compact(self, target_bytes: int) -> Compacted:
        """Rewrite small files of a partition as one, and return how many were removed and added."""
        done = self._opened().optimize.compact(target_size=target_bytes)
        return Compacted(int(done["numFilesRemoved"]), int(done["numFilesAdded"]))

    def expire(self, older_than_s: float) -> Expired:
        """Write a checkpoint of the log, remove log entries that are older than the table's
        ``delta.logRetentionDuration``, and delete files that are no longer in the table, or never were, if they are
        older than so many seconds. Raises ``ConfigError`` if a folder of the table is a symbolic link: delta-rs would
        delete the files behind it."""
        table = self._opened()
        folder = TableFolder(self._url, self._options)
        if linked := folder.linked():
            raise ConfigError(
                f"{self._url}: {linked} is a symbolic link to a folder, in which all files would be deleted"
            )
        before = len(_entries(folder))
        table.create_checkpoint()
        table.cleanup_metadata()
        hours = math.ceil(older_than_s / 3600)  # Delta counts whole ones: no file goes too early
        gone = table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
        return Expired(before - len(_entries(TableFolder(self._url, self._options))), len(gone))

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _merge(self, table: Opened, change: Append, properties: Any) -> None:
        """Let the rows of a batch replace those with the same key."""
        folder = TableFolder(self._url, self._options)
        rows = last_rows(change.files, folder.open_read, change.key, change.order)
        name = change.key.replace("`", "``")
        merge = table.merge(rows, f"t.`{name}` = s.`{name}`", "s", "t", commit_properties=properties)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _opened(self) -> Opened:
        from deltalake import DeltaTable

        return DeltaTable(self._url, storage_options=self._storage)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Return a context manager that raises the errors of delta-rs as ``OSError``."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except DeltaError as error:
            raise OSError(f"{self._url}: {error}") from error


def _paths(table: Opened) -> list[str]:
    """Return the paths or URLs of all files of a table."""
    return [str(uri).removeprefix("file://") for uri in table.file_uris()]


def _offset_id(app: str, topic: str, partition: int) -> str:
    return f"{app}#offset/{topic}/{partition}"


def _places(marker: Marker) -> list[tuple[str, int]]:
    """Return the (topic, partition) that a marker has offsets of."""
    return [(topic, partition) for topic, partitions in marker.offsets.items() for partition in partitions]


def _archive(table: Opened, app: str, places: Iterable[tuple[str, int]]) -> Archive | None:
    """Return the archive that an application's transactions tell, with these partitions; None if it is none."""
    rows = table.transaction_version(f"{app}#archive")
    if rows is None or rows < 0:
        return None
    starts: dict[str, dict[int, int]] = {}
    epochs: dict[str, dict[int, int]] = {}
    topics: dict[str, int] = {}
    for topic, partition in places:
        start = table.transaction_version(f"{app}#start/{topic}/{partition}")
        if start is not None:
            starts.setdefault(topic, {})[partition] = start
            epoch = table.transaction_version(f"{app}#epoch/{topic}/{partition}")
            epochs.setdefault(topic, {})[partition] = -1 if epoch is None else epoch
        id = table.transaction_version(f"{app}#topic/{topic}")
        if id is not None:
            topics[topic] = id
    return Archive(rows, starts, epochs, topics)


def _of_archive(app: str, archive: Archive | None) -> dict[str, int]:
    """Return the transactions that keep an archive, with their versions."""
    if archive is None:
        return {f"{app}#archive": -1}
    versions = {f"{app}#archive": archive.rows} | {f"{app}#topic/{t}": id for t, id in archive.topics.items()}
    for what, offsets in (("start", archive.starts), ("epoch", archive.epochs)):
        for topic, partitions in offsets.items():
            versions |= {f"{app}#{what}/{topic}/{partition}": at for partition, at in partitions.items()}
    return versions


def _arrow(table: Opened) -> pa.Schema:
    """Return the columns of a table as pyarrow has them."""
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _entries(folder: TableFolder) -> list[str]:
    return [name for name in folder.names("_delta_log") if name.endswith(".json")]


def _statistics(file: WrittenFile) -> str:
    """Return what Delta's log says of a file, for readers that skip files: rows, and by column bounds of its values
    and the number of nulls. There are bounds for all columns that Delta has bounds for, or for none: delta-rs takes a
    column without bounds, beside others, to mean that no row has a value."""
    counted = {"numRecords": file.rows}
    schema = footer_of(file).schema.to_arrow_schema()
    columns = _columns(footer_of(file))
    least: list[str] = []
    greatest: list[str] = []
    nulls: dict[str, int] = {}
    for field in schema:
        if _has_no_bounds(field.type):
            continue
        found = columns.get(field.name)
        bounds = None if found is None or field.name in file.with_nan else _bounds(found, file.rows)
        if found is None or bounds is None:
            return json.dumps(counted)
        nulls[field.name] = found.nulls
        if found.nulls < file.rows:
            least.append(f"{json.dumps(field.name)}: {bounds[0]}")
            greatest.append(f"{json.dumps(field.name)}: {bounds[1]}")
    both = f'"minValues": {{{", ".join(least)}}}, "maxValues": {{{", ".join(greatest)}}}'
    return f'{{"numRecords": {file.rows}, {both}, "nullCount": {json.dumps(nulls)}}}'


@dataclass(slots=True)
class _Column:
    """The values of a column in a file, as Parquet's metadata tells."""

    nulls: int = 0
    least: Any = None
    greatest: Any = None
    is_known: bool = True
    """Whether every part of the file that has values also has bounds."""


def _columns(footer: Any) -> dict[str, _Column]:
    """Return the columns of a file that Parquet's metadata counts the nulls of."""
    columns: dict[str, _Column] = {}
    uncounted = set()
    for group in (footer.row_group(n) for n in range(footer.num_row_groups)):
        for part in (group.column(n) for n in range(group.num_columns)):
            name, found = part.path_in_schema, part.statistics
            if found is None or not found.has_null_count:
                uncounted.add(name)
                continue
            column = columns.setdefault(name, _Column())
            column.nulls += found.null_count
            if found.has_min_max:
                column.least = found.min if column.least is None else min(found.min, column.least)
                column.greatest = found.max if column.greatest is None else max(found.max, column.greatest)
            elif found.null_count < group.num_rows:
                column.is_known = False
    return {name: column for name, column in columns.items() if name not in uncounted}


def _has_no_bounds(kind: pa.DataType) -> bool:
    """Whether Delta has no bounds for columns of a type."""
    import pyarrow as pa

    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _bounds(column: _Column, rows: int) -> tuple[str, str] | None:
    """Return bounds of a column's values, each as JSON; None if they are not known, or JSON cannot have them."""
    if column.nulls == rows:
        return "null", "null"
    if not column.is_known or column.least is None:
        return None
    least, greatest = _stated(column.least, up=False), _stated(column.greatest, up=True)
    return None if least is None or greatest is None else (least, greatest)


def _stated(value: Any, *, up: bool) -> str | None:
    """Return a bound as Delta's statistics have it. Times have milliseconds, and texts ``LONGEST_TEXT`` characters;
    what has more is rounded ``up`` or down."""
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return json.dumps(value) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str):
        is_short = len(value) <= LONGEST_TEXT or (up and LAST_CHARACTER in value)
        return json.dumps(value if is_short else value[:LONGEST_TEXT] + (LAST_CHARACTER if up else ""))
    if isinstance(value, datetime):
        if up and value.microsecond % 1000:
            value += timedelta(milliseconds=1)
        zone = "Z" if value.tzinfo is not None else ""
        return json.dumps(f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}{zone}")
    return json.dumps(value.isoformat()) if isinstance(value, date) else None


def _of_delta(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of an S3 store, which are in Iceberg's words, in those of delta-rs."""
    words = {
        "s3.endpoint": "AWS_ENDPOINT_URL",
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.session-token": "AWS_SESSION_TOKEN",
        "s3.region": "AWS_REGION",
    }
    known = {word: options[name] for name, word in words.items() if name in options}
    if options.get("s3.endpoint", "").startswith("http://"):
        known["AWS_ALLOW_HTTP"] = "true"
    return known
