"""Which files of a table are rewritten as one. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tidelog.tables.file_writer import WrittenFile

SMALL_SHARE = 0.75
"""A file is small if it has less than this share of the target size."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, as far as a compaction looks at it."""

    name: str
    size: int
    partition: Hashable


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    removed: int
    added: int


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry deleted: snapshots of the table, and files that no snapshot names any more."""

    snapshots: int
    files: int


def check_rows(before: int, added: Iterable[WrittenFile]) -> None:
    """Raise ``OSError`` if rewritten files do not have as many rows as those that they replace."""
    after = sum(one.rows for one in added)
    if after != before:
        raise OSError(f"the files have {before} rows, and {after} when they were rewritten: nothing was changed")


def plan(files: Iterable[TableFile], target_bytes: int) -> list[list[TableFile]]:
    """Return groups of small files to rewrite as one file each. A group has two files at least, all of one partition,
    in the order of the table, and about ``target_bytes`` at most."""
    groups: list[list[TableFile]] = []
    open_groups: dict[Hashable, list[TableFile]] = {}
    sizes: dict[Hashable, int] = {}
    for file in files:
        if file.size >= SMALL_SHARE * target_bytes:
            continue
        if file.partition in open_groups and sizes[file.partition] + file.size > target_bytes:
            groups.append(open_groups.pop(file.partition))
        if file.partition not in open_groups:
            open_groups[file.partition], sizes[file.partition] = [], 0
        open_groups[file.partition].append(file)
        sizes[file.partition] += file.size
    groups += open_groups.values()
    return [group for group in groups if len(group) > 1]
