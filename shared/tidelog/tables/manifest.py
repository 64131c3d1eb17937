"""Parquet files with a manifest: a folder of data files, and a list of those that are committed.

``_tidelog/manifest-N.json`` is the N-th state of the table. A commit creates the file of the next number, which
succeeds for one of those who try (``TableFolder.put_new``). A manifest has the markers of all applications, and
the files that it adds and removes. Every ``FULL_EVERY``-th one, a ``base``, has all files of the table, so that a
reader needs only the manifests from the last base on.

Numbers are never used again in the chain, but an expired manifest leaves a gap in which a late commit can still
create a file. So a commit looks afterwards whether its manifest lies before the base of the newest. If so nobody
reads it, and the commit is a conflict.

Programs that read the folder without the manifest also see files that are not committed yet, or never will be.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidelog.errors import ConfigError
from tidelog.tables.columns import (
    PartitionField,
    SchemaConflict,
    check_partition_fields,
    new_columns,
    nullable,
    parse_partition_field,
)
from tidelog.tables.commit_protocol import (
    Answer,
    Marker,
    TableState,
    after_batch,
    marker_from_json,
    marker_to_json,
)
from tidelog.tables.compaction import Compacted, Expired, TableFile, check_rows, plan
from tidelog.tables.file_writer import FileWriter, Value, WritePlan, WrittenFile, is_own_name
from tidelog.tables.pinned import PinnedTable, the_archive
from tidelog.tables.storage import DRAFT, TableFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.tables.committer import Append

FOLDER = "_tidelog"
DATA = "data"
FULL_EVERY = 20
"""So many manifests from one that has all files to the next."""
ATTEMPTS = 20
"""How often a change that is no commit of a batch is tried again after a conflict."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A committed file: its name below the folder ``data`` of the table."""

    name: str
    size: int
    rows: int
    partition: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of a table. ``added`` has all files of the table if ``base`` is ``number``."""

    number: int
    base: int
    schema: str
    """Arrow schema of the rows, serialised, in base64."""
    partition: tuple[str, ...]
    apps: Mapping[str, Marker] = field(default_factory=dict)
    added: tuple[ListedFile, ...] = ()
    removed: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON."""
        document = {
            "version": 1,
            "number": self.number,
            "base": self.base,
            "schema": self.schema,
            "partition": list(self.partition),
            "apps": {app: marker_to_json(marker) for app, marker in sorted(self.apps.items())},
            "added": [asdict(file) for file in self.added],
            "removed": list(self.removed),
        }
        return json.dumps(document, indent=1, default=str).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest that JSON has. Raises ``ConfigError`` for a later version."""
        found = json.loads(data)
        if found["version"] != 1:
            raise ConfigError(f"the manifest has version {found['version']}, which this release does not know")
        return cls(
            found["number"],
            found["base"],
            found["schema"],
            tuple(found["partition"]),
            {app: marker_from_json(marker) for app, marker in found["apps"].items()},
            tuple(_listed(file) for file in found["added"]),
            tuple(found["removed"]),
        )


class ManifestTable:
    """A table of Parquet files with a manifest, in a folder or at a URL."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._folder = TableFolder(url, options)
        self._options = dict(options)

    # --- what every table does -----------------------------------------------------------------------------

    def prepare(self, rows: pa.Schema, partition: tuple[PartitionField, ...]) -> WritePlan:
        """Create the table or add new columns to it, and return what tasks have to know. Raises
        ``SchemaConflict``."""
        rows = nullable(rows)
        check_partition_fields(rows, partition)
        names = tuple(map(str, partition))
        for _ in range(ATTEMPTS):
            latest = self.latest()
            if latest is None:
                schema = _with_days(rows, partition)
                made = Manifest(0, 0, _schema_text(schema), names)
            else:
                schema = _schema(latest)
                if latest.partition != names:
                    raise SchemaConflict(f"the table is divided by {list(latest.partition)}, not by {list(names)}")
                known = [one.name for one in partition if one.by_day]
                added = [one for one in new_columns(schema, rows) if one.name not in known]
                if not added:
                    return self._plan(schema, partition)
                schema = _with_columns(schema, added)
                made = replace(self._after(latest), schema=_schema_text(schema))
            if self._put(made):
                return self._plan(schema, partition)
        raise OSError(f"{self._folder.url}: {ATTEMPTS} conflicts in a row")

    def load(self, app: str) -> TableState:
        """Return the table's state with the marker of an application."""
        latest = self.latest()
        if latest is None:
            raise FileNotFoundError(f"{self._folder.url} has no manifest")
        return TableState(latest.apps.get(app), latest)

    def replace(self, state: TableState, change: Append) -> Answer:
        """Append files and set the application's marker, if ``state`` is the newest."""
        marker = after_batch(state.marker, change.marker)
        latest: Manifest = state.handle
        added = tuple(ListedFile(one.name, one.size, one.rows, one.partition) for one in change.files)
        made = self._after(latest, added)
        done = self._put(replace(made, apps={**latest.apps, change.app: marker}))
        return Answer.COMMITTED if done else Answer.CONFLICT

    def discard(self, names: list[str]) -> None:
        """Delete data files that were never committed."""
        for name in names:
            self._folder.remove(f"{DATA}/{name}")

    def files(self) -> list[str]:
        """Return the paths of all files of the table, in the order in which they were committed."""
        latest = self.latest()
        return [] if latest is None else [self._folder.path(f"{DATA}/{one.name}") for one in self.listed(latest)]

    def pin(self, app: str, partitions: Iterable[tuple[str, int]]) -> PinnedTable:
        """Return the table's present state for readers (``LogTable.pin``)."""
        latest = self.latest()
        if latest is None:
            raise ConfigError(f"{self._folder.url} has no manifest: no such table")
        files = [self._folder.path(f"{DATA}/{one.name}") for one in self.listed(latest)]
        return PinnedTable(tuple(files), self._options, the_archive(latest.apps, app))

    def compact(self, target_bytes: int) -> Compacted:
        """Rewrite small files of a partition as one, and return how many were removed and added."""
        latest = self.latest()
        if latest is None:
            raise FileNotFoundError(f"{self._folder.url} has no manifest")
        fields = tuple(map(parse_partition_field, latest.partition))
        writes = self._plan(_schema(latest), fields)
        removed: list[str] = []
        added: list[ListedFile] = []
        listed = self.listed(latest)
        rows = {one.name: one.rows for one in listed}
        for group in plan((TableFile(one.name, one.size, one.partition) for one in listed), target_bytes):
            made = self._rewritten(writes, [file.name for file in group])
            check_rows(sum(rows[file.name] for file in group), made)
            added += [ListedFile(one.name, one.size, one.rows, one.partition) for one in made]
            removed += [file.name for file in group]
        for _ in range(ATTEMPTS if removed else 0):
            if not set(removed) <= {one.name for one in self.listed(latest)}:
                break
            if self._put(self._after(latest, tuple(added), tuple(removed))):
                return Compacted(len(removed), len(added))
            latest = self.latest() or latest
        self.discard([one.name for one in added])
        return Compacted(0, 0)

    def expire(self, older_than_s: float) -> Expired:
        """Delete manifests that no reader of the newest needs, drafts of manifests, files that a compaction has
        replaced, and files that were never committed, if they are older than so many seconds. Files that Tidelog has
        not written stay: the folder of the data may be a link to another one."""
        latest = self.latest()
        if latest is None:
            return Expired(0, 0)
        before = time.time_ns() / 1e9 - older_than_s
        names = self._folder.names(FOLDER)
        old: list[str] = []
        kept: list[str] = []
        for number, name in sorted((_number(name), name) for name in names if _number(name) >= 0):
            (old if number < latest.base and names[name] < before else kept).append(name)
        drafts = [name for name, changed in names.items() if changed < before and _is_draft(name)]
        needed = {one.name for one in self.listed(latest)}
        for name in kept:
            data = self._folder.read(name)
            manifest = None if data is None else Manifest.from_bytes(data)
            if manifest is not None:
                needed |= {one.name for one in manifest.added} | set(manifest.removed)
        stale = [
            name
            for name, changed in self._folder.names(DATA).items()
            if changed < before and is_own_name(name) and name.removeprefix(f"{DATA}/") not in needed
        ]
        for name in [*stale, *old, *drafts]:
            self._folder.remove(name)
        return Expired(len(old), len(stale))

    def close(self) -> None:
        """Do nothing: there is no connection."""

    # --- the chain of manifests ----------------------------------------------------------------------------

    def latest(self) -> Manifest | None:
        """Return the newest manifest, or None if the table does not exist."""
        while True:
            numbers = [_number(name) for name in self._folder.names(FOLDER)]
            if not numbers or max(numbers) < 0:
                return None
            data = self._folder.read(_name(max(numbers)))
            if data is not None:  # else it has been expired since
                return Manifest.from_bytes(data)

    def listed(self, latest: Manifest) -> list[ListedFile]:
        """Return all files of the table in a manifest's state, in the order in which they were committed."""
        found: dict[str, ListedFile] = {}
        for number in range(latest.base, latest.number + 1):
            manifest = latest
            if number != latest.number:
                data = self._folder.read(_name(number))
                if data is None:
                    raise FileNotFoundError(f"{self._folder.url}/{_name(number)} is missing")
                manifest = Manifest.from_bytes(data)
            at = [name for name in manifest.removed if name in found]
            if at and number != manifest.base:
                found = _substituted(found, set(at), manifest.added)
                continue
            found |= {file.name: file for file in manifest.added}
        return list(found.values())

    def _after(self, latest: Manifest, added: tuple[ListedFile, ...] = (), removed: tuple[str, ...] = ()) -> Manifest:
        """Return the manifest that follows another, with files added and removed."""
        number = latest.number + 1
        if number - latest.base < FULL_EVERY:
            return replace(latest, number=number, added=added, removed=removed)
        before = {one.name: one for one in self.listed(latest)}
        files = _substituted(before, set(removed), added) if removed else before | {one.name: one for one in added}
        return replace(latest, number=number, base=number, added=tuple(files.values()), removed=removed)

    def _put(self, made: Manifest) -> bool:
        """Create a manifest. Returns False if another has its number, or if it lies where nobody looks any more."""
        data = made.to_bytes()
        if not self._folder.put_new(_name(made.number), data) and self._folder.read(_name(made.number)) != data:
            return False  # else a put that was sent twice on the way has met itself
        latest = self.latest()
        return latest is not None and latest.base <= made.number

    def _plan(self, schema: pa.Schema, partition: tuple[PartitionField, ...]) -> WritePlan:
        text = schema.serialize().to_pybytes()
        return WritePlan(self._folder.path(DATA), text, partition, self._options)

    def _rewritten(self, writes: WritePlan, names: list[str]) -> list[WrittenFile]:
        """Write the rows of some files to new files, and return these."""
        import pyarrow.parquet as pq

        writer = FileWriter(writes, lambda name: self._folder.open_new(f"{DATA}/{name}"))
        for name in names:
            with self._folder.open_read(f"{DATA}/{name}") as file:
                for batch in pq.ParquetFile(file).iter_batches():
                    writer.add(batch)
        return writer.finish()


@dataclass(frozen=True, slots=True)
class CommittedFiles:
    """The committed files of a table, as ``read_manifest`` returns them."""

    paths: list[str]
    """For ``read_parquet`` of DuckDB, ``scan_parquet`` of Polars and ``spark.read.parquet``."""
    rows: int
    apps: Mapping[str, Marker]
    """By application, the last batch, and the offsets before which the table has every record."""


def read_manifest(url: str, options: Mapping[str, str] | None = None) -> CommittedFiles:
    """Return the committed files of a table with a manifest, in a folder or at a URL. ``options`` are those of the
    storage (``s3.endpoint``, …). Raises ``FileNotFoundError`` if there is no such table."""
    table = ManifestTable(url, options or {})
    latest = table.latest()
    if latest is None:
        raise FileNotFoundError(f"{url} has no manifest")
    files = table.listed(latest)
    folder = TableFolder(url, options or {})
    return CommittedFiles(
        [folder.path(f"{DATA}/{one.name}") for one in files], sum(one.rows for one in files), latest.apps
    )


def _name(number: int) -> str:
    return f"{FOLDER}/manifest-{number:020}.json"


def _number(name: str) -> int:
    """Return the number of a manifest, or -1 for the name of another file."""
    last = name.rpartition("/")[2]
    text = last.removeprefix("manifest-").removesuffix(".json")
    return int(text) if last == f"manifest-{text}.json" and text.isascii() and text.isdigit() else -1


def _is_draft(name: str) -> bool:
    """Return whether a file is a draft of a manifest, as a process leaves it that is killed while it commits."""
    draft = name.rpartition("/")[2]
    return draft.startswith(DRAFT) and _number(draft.removeprefix(DRAFT).rpartition(".")[0]) >= 0


def _substituted(
    found: Mapping[str, ListedFile], removed: set[str], added: tuple[ListedFile, ...]
) -> dict[str, ListedFile]:
    """Return files with those that are added in the place of the first that is removed."""
    after: dict[str, ListedFile] = {}
    waiting = list(added)
    for name, file in found.items():
        if name in removed:
            after |= {one.name: one for one in waiting}
            waiting = []
        else:
            after[name] = file
    return after | {one.name: one for one in waiting}


def _listed(found: Mapping[str, Any]) -> ListedFile:
    """Return a file that a manifest has. Raises ``ConfigError`` if it is outside of the table's folder: a compaction
    would copy rows from there."""
    name = str(found["name"])
    if name.startswith("/") or ".." in name.split("/"):
        raise ConfigError(f"the manifest has the file {name!r}, which is outside of the table's folder")
    return ListedFile(name, found["size"], found["rows"], tuple(found["partition"]))


def _with_days(schema: pa.Schema, partition: tuple[PartitionField, ...]) -> pa.Schema:
    """Return a schema with a column of dates for each partition field that is a day."""
    import pyarrow as pa

    return _with_columns(schema, [pa.field(one.name, pa.date32()) for one in partition if one.by_day])


def _with_columns(schema: pa.Schema, added: list[pa.Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([*schema, *added])


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(manifest: Manifest) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.schema)))
