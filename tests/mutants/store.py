"""Rules of a controller's store (decision 18), broken. The power losses of ``crash_points.store`` notice those about
an honest crash, the tests of damaged files the others."""

from __future__ import annotations

import inspect
import os
from typing import Any

from tidelog_controller import last_commit, storage
from tidelog_controller.last_commit import SLOT_BYTES, LastCommitFile, sync_path
from tidelog_controller.storage import RaftStorage

from mutants.rules import Patch, breaks

ROT = ("unit.controller.test_storage_damage",)


def _change(patch: Patch, method: str, *changes: tuple[str, str]) -> None:
    """Compile a method of the store with some of its words replaced."""
    lines = inspect.getsource(getattr(RaftStorage, method)).splitlines()
    source = "\n".join(line[4:] for line in lines)
    for old, new in changes:
        assert source.count(old) == 1, f"{method} has changed: {old}"
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(source, vars(storage), made)
    patch.setattr(RaftStorage, method, made[method])


NEXT = "(number, previous) != (last.number + 1, last.checksum)"
LAST = "(number, checksum) != (last.number, last.checksum)"


@breaks("decision 18", "A store that is behind its last commit is damaged.", tests=ROT)
def open_an_older_store(patch: Patch) -> None:
    """Only a store that is ahead of its last commit counts as damaged."""
    _change(
        patch,
        "_check_last_commit",
        ("if number < last.number:", "if number < last.number: return\n        if False:"),
    )


@breaks("decision 18", "A store is at most one commit ahead of the last one that is known.", tests=ROT)
def open_a_store_that_is_far_ahead(patch: Patch) -> None:
    """Any number of commits may have been in flight."""
    _change(patch, "_check_last_commit", (NEXT, "number < last.number"))


@breaks("decision 18", "The commit in flight follows the last one that is known, by its checksum.", tests=ROT)
def ignore_the_chain(patch: Patch) -> None:
    """The numbers decide alone."""
    _change(patch, "_check_last_commit", (NEXT, "number != last.number + 1"), (LAST, "number != last.number"))


@breaks("decision 18", "The entries and the snapshot are those of the last commit, together.", tests=ROT)
def ignore_the_contents(patch: Patch) -> None:
    """That each row is whole is enough."""
    _change(patch, "load", ("if contents != _xor(row[-1] for row in (*rows, *snapshots)):", "if False:"))


@breaks("decision 18", "A store whose file of the last commit is missing is damaged.", tests=ROT)
def open_a_store_that_says_nothing_of_its_end(patch: Patch) -> None:
    """The file is made anew from what the database holds."""
    _change(patch, "_last_commit", ("if number > 0:", "if False:"))
    _change(patch, "_check_last_commit", (NEXT, "last.number > 0"))


@breaks("decision 18", "The database is synced before the file of the last commit.", store=True)
def write_the_last_commit_first(patch: Patch) -> None:
    """The number is durable before the commit is."""
    first = 'self._commits.write(commit); self._db.execute("COMMIT")'
    _change(patch, "_commit", ("self._commits.write(commit)", "pass"), ('self._db.execute("COMMIT")', first))


@breaks("decision 18", "The file of the last commit is synced before the commit counts.", store=True)
def never_sync_the_last_commit(patch: Patch) -> None:
    """The file is written, and synced at some later time."""

    def write(self, commit):
        os.pwrite(self._descriptor, self._encode(commit), commit.number % 2 * SLOT_BYTES)

    patch.setattr(LastCommitFile, "write", write)


@breaks(
    "decision 18",
    "A commit of an earlier process that is only in the page cache is synced before it is believed.",
    store=True,
)
def believe_the_page_cache_of_the_dead(patch: Patch) -> None:
    """The WAL that a killed process left is read, and not synced."""
    _change(patch, "_sync_leftovers", ("if wal.exists():", "if False:"))


@breaks("decision 18", "A commit that was in flight and is believed is the last commit from then on.", store=True)
def leave_the_last_commit_behind(patch: Patch) -> None:
    """The number of such a commit is not written when the store is opened."""
    _change(patch, "_check_last_commit", ("self._commits.write(LastCommit(number, checksum))", "pass"))


def _never_sync(patch: Patch, directory: str) -> None:
    for module in (storage, last_commit):
        patch.setattr(module, "sync_path", lambda path: None if path.name == directory else sync_path(path))


@breaks("POSIX", "The names of a store's files are durable before its first commit counts.", store=True)
def leave_the_directory_of_a_store_unsynced(patch: Patch) -> None:
    """The directory of ``raft.db`` is not synced, but for what SQLite does."""
    _never_sync(patch, "c1")


@breaks("POSIX", "The name of a store's directory is durable before its first commit counts.", store=True)
def leave_the_name_of_a_store_unsynced(patch: Patch) -> None:
    """The directory above that of ``raft.db`` is not synced."""
    _never_sync(patch, "data")


@breaks("SQLite", "Each commit of the database is synced.", store=True)
def sync_the_database_at_checkpoints_only(patch: Patch) -> None:
    """``synchronous = NORMAL``: the WAL is synced when it is moved into the database."""
    _change(patch, "__init__", ("PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL"))
