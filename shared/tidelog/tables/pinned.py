"""A table as it was at one moment, for readers of its files."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tidelog.errors import ConfigError
from tidelog.tables.commit_protocol import Marker
from tidelog.tables.storage import TableFolder

FOOTERS_AT_A_TIME = 16
"""So many footers of files are read at the same time."""


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """The files of a table and the marker of the application that has written them, from the same metadata."""

    files: tuple[str, ...]
    """Paths or URLs."""
    options: Mapping[str, str] = field(repr=False)
    """Options of the storage."""
    marker: Marker


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a Parquet file, and the bounds of its rows: both ends are included. None: not known."""

    path: str
    number: int
    rows: int
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Footer:
    """What the end of a Parquet file tells: its columns, and its parts."""

    columns: tuple[str, ...]
    groups: tuple[RowGroup, ...]


def the_archive(apps: Mapping[str, Marker], app: str) -> Marker:
    """Return the marker of a table's only application. Raises ``ConfigError`` if there is none or several, or it is
    another than ``app``, unless that is ""."""
    named = ", ".join(sorted(apps)) or "none"
    if app and app not in apps:
        raise ConfigError(f"the table has no application {app}; it has {named}")
    if len(apps) != 1:
        raise ConfigError(f"one application writes the whole of such a table, and this one has {named}")
    return next(iter(apps.values()))


def open_data(path: str, options: Mapping[str, str]) -> Any:
    """Open a data file of a table for reading, and return the file object."""
    folder, _, name = path.rpartition("/")
    return TableFolder(folder, options).open_read(name)


def read_footers(table: PinnedTable, known: Mapping[str, Footer]) -> dict[str, Footer]:
    """Return the footers of all files of a table, by path, in the order of the files. Those that are ``known`` are
    not read again, since a file is never changed. Raises ``OSError``, and ``ValueError`` if a file is not Parquet."""
    new = [path for path in table.files if path not in known]
    with ThreadPoolExecutor(FOOTERS_AT_A_TIME) as pool:
        read = dict(zip(new, pool.map(lambda path: _footer(path, table.options), new), strict=True))
    return {path: known[path] if path in known else read[path] for path in table.files}


def _bounds(statistics: Any) -> tuple[int, int] | None:
    """Return the least and the greatest value of a column of integers; None if its Parquet statistics lack them."""
    known = statistics is not None and statistics.has_min_max
    return (int(statistics.min), int(statistics.max)) if known else None


def _footer(path: str, options: Mapping[str, str]) -> Footer:
    import pyarrow.parquet as pq

    with open_data(path, options) as file:
        found = pq.read_metadata(file)
    groups = []
    for number in range(found.num_row_groups):
        group = found.row_group(number)
        parts = {one.path_in_schema: one.statistics for one in (group.column(n) for n in range(group.num_columns))}
        partitions, offsets = _bounds(parts.get("partition")), _bounds(parts.get("offset"))
        groups.append(RowGroup(path, number, group.num_rows, partitions, offsets))
    return Footer(tuple(found.schema.to_arrow_schema().names), tuple(groups))
