"""The durable side of Raft: one SQLite database per controller, ``<directory>/raft.db``, and beside it
``raft.db-commits``, which says how many commits the database must hold.

WAL mode with ``synchronous=FULL``: a commit is on stable storage (sync of the WAL, then of ``raft.db-commits``) when
``perform`` returns, and is there entirely or not at all. ``fullfsync`` has SQLite sync with ``F_FULLFSYNC`` where
there is such a call, that is on macOS. The database is locked exclusively while it is open, since two processes with
one vote would break Raft. It is made under another name and renamed when complete: an empty or half-made ``raft.db``
is therefore damage and never taken for a new controller, which would forget its vote.

Damage is noticed when the store is opened (decision 18). SQLite has no checksums over its pages and ends a WAL at the
first bad frame, so the content of the database says by itself whether it is whole and which commit it is:

- every row carries a CRC-32 of its own;
- ``contents`` is the XOR of the CRCs of all entries and of the snapshot: a missing or an older row changes it;
- ``commits`` counts the commits, and ``checksum`` covers the row of the hard state with ``rolled_back``,
  ``contents``, ``commits`` and ``previous``, the checksum of the commit before.

The database must be at the commit that ``raft.db-commits`` names, or at the one after it, which was in flight. An
older one is ``Damaged``. An honest crash never leaves it older, whatever of the unsynced writes reached the disk.

A release that does not know these five columns leaves them as they are; the checksum then no longer fits a row whose
own CRC is right. Such a store is taken over as it is by a commit of its own, as is a new one.

The column ``rolled_back`` says whether the disk is an old copy that is not refilled yet (``raft/old_copies.py``).

Each database has a random name, its *store*, from when it is made: by that name the group knows it and gives it a
vote (``raft/membership.py``). ``set_aside`` puts a damaged one out of the way; what is then made anew is marked
``lost``."""

from __future__ import annotations

import operator
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import cbor2
from tidelog.errors import ConfigError
from tidelog.private import make_file, own_directory, write_file
from tidelog.types import NodeId

from tidelog_controller.last_commit import NO_COMMIT, LastCommit, LastCommitFile, sync_path
from tidelog_controller.raft.effects import Persist
from tidelog_controller.raft.log import Base, Entry, PersistentState, Snapshot
from tidelog_controller.raft.membership import NOBODY, Configuration, decode_members, encode_members

FORMAT = 2
"""The version of the database's format. A database of another version is refused."""

_SCHEMA = """
CREATE TABLE identity (format INTEGER NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL, store TEXT NOT NULL,
  lost INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE hard_state (term INTEGER NOT NULL, voted_for TEXT, base_index INTEGER NOT NULL,
  base_term INTEGER NOT NULL, base_members BLOB NOT NULL, last_index INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE entries (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, data BLOB NOT NULL,
  is_members INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE snapshot (idx INTEGER NOT NULL, term INTEGER NOT NULL, members BLOB NOT NULL, data BLOB NOT NULL,
  crc INTEGER NOT NULL);
"""
_STATE = "term, voted_for, base_index, base_term, base_members, last_index"
_CHAIN = ("rolled_back", "commits", "previous", "contents", "checksum")
_ROLLED_BACK = 0x0DD15C
"""The value of the column ``rolled_back`` in an old copy of a disk; otherwise the value is 0. No flipped bit turns
one into the other."""
_UNWRITABLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
"""Error codes of SQLite that show that the database cannot be written, and say nothing about its content."""
_FILES = ("", "-journal", "-wal", "-shm", "-commits")
"""The suffixes that the files of a store add to the name ``raft.db``."""


class Damaged(ConfigError):
    """The error that a controller's database cannot be read, or does not hold what was written to it."""


class RaftStorage:
    """The Raft database of one controller. It is open and locked from the constructor until ``close``. Its methods
    block on the disk. They may be called from any thread, one at a time."""

    def __init__(
        self, directory: str | Path, cluster: str, node_id: NodeId, store: str, *, lost: bool = False
    ) -> None:
        """Open and lock the database in ``directory``. If there is none, make one with the store name ``store``,
        marked ``lost`` if an earlier store was lost. Syncs what an earlier process may have left unsynced. Raises
        ``ConfigError`` if the database belongs to another cluster or node, is in use by another process or cannot be
        written, and ``Damaged`` if it is damaged, gone, or at an older commit than it must be."""
        self.path = Path(directory) / "raft.db"
        self._failed = False
        self._commits = LastCommitFile(self._beside("-commits"))
        own_directory(self.path.parent)
        if not self.path.exists():
            if self._commits.count():
                raise self._damaged(
                    f"it is gone, and {self._commits.path.name} tells of {self._commits.count()} commits"
                )
            _create(self.path, cluster, node_id, store, lost)
        if self.path.stat().st_size == 0:
            raise self._damaged("the file is empty")
        self._sync_leftovers()
        wal = self._beside("-wal")
        found = wal.read_bytes() if wal.exists() else b""
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._explained():
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("PRAGMA fullfsync = ON")
                self._db.execute("BEGIN IMMEDIATE")  # takes the lock now, not at the first write
                self._db.execute("COMMIT")
                self._check_identity(cluster, node_id)
                self._check_last_commit()
        except BaseException as error:
            self.close()
            if isinstance(error, Damaged) and found:
                write_file(wal, found)  # SQLite has removed it with all that it took for a torn tail
            raise

    def load(self) -> PersistentState:
        """Read the whole database and return its state: that after the last call of ``perform``, by this process or
        an earlier one. Raises ``Damaged`` if a part is missing or does not match its checksum."""
        with self._explained():
            for (fault,) in self._db.execute("PRAGMA quick_check(1)"):
                if fault != "ok":
                    raise self._damaged(str(fault))
            ((store, lost),) = self._db.execute("SELECT store, lost FROM identity").fetchall()
            *state, rolled_back, _, _, contents, _ = self._hard_state(chained=True)
            rows = self._db.execute("SELECT idx, term, data, is_members, crc FROM entries ORDER BY idx").fetchall()
            snapshots = self._db.execute("SELECT idx, term, members, data, crc FROM snapshot").fetchall()
        term, voted_for, base_index, base_term, base_members, last_index = state
        base = Base(base_index, base_term, self._members(base_members))
        entries = self._entries(rows, base, last_index, term)
        snapshot = self._snapshot(snapshots, base)
        if contents != _xor(row[-1] for row in (*rows, *snapshots)):
            raise self._damaged("the log and the snapshot are not those of the last commit")
        return PersistentState(term, voted_for, entries, base, snapshot, store, bool(lost), bool(rolled_back))

    def _entries(self, rows: list[Any], base: Base, last_index: int, term: int) -> list[Entry]:
        """Return the log entries in these rows. Raises ``Damaged`` unless they are all entries from the base to
        ``last_index``, each with the right checksum and with terms that never decrease or exceed ``term``."""
        if len(rows) != last_index - base.index:
            raise self._damaged(f"the log has {len(rows)} entries instead of {last_index - base.index}")
        entries: list[Entry] = []
        last_term = max(base.term, 1)
        for position, (index, entry_term, data, is_members, crc) in enumerate(rows, base.index + 1):
            whole = index == position and crc == _crc(index, entry_term, data, is_members)
            if not whole or not last_term <= entry_term <= term:
                raise self._damaged(f"entry {position} of the log is missing or damaged")
            last_term = entry_term
            if is_members:
                self._members(data)
            entries.append(Entry(index, entry_term, data, bool(is_members)))
        return entries

    def _snapshot(self, rows: list[Any], base: Base) -> Snapshot | None:
        """Return the snapshot in these rows; None if there is none and the log is complete. Raises ``Damaged`` if it
        is missing, does not match its checksum or ends before the base."""
        if not rows and base.index == 0:
            return None
        if len(rows) != 1 or rows[0][-1] != _crc(*rows[0][:-1]) or rows[0][0] < base.index:
            raise self._damaged("the snapshot is missing or does not match its checksum")
        index, term, members, data, _ = rows[0]
        return Snapshot(index, term, self._members(members), data)

    def _members(self, data: bytes) -> Configuration:
        """Return the configuration in these bytes. Raises ``Damaged`` if they encode none."""
        try:
            return decode_members(data)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def perform(self, persist: Persist) -> None:
        """Write a change to the database in one transaction, and return when it is on stable storage. A
        ``sqlite3.Error`` or ``OSError`` (full disk, failed write or sync) is final: Raft is then ahead of the disk,
        so the process must end, and every later call fails an assertion."""
        assert not self._failed, "a failed write is never tried again: restart from what the disk holds"
        self._failed = True
        self._db.execute("BEGIN IMMEDIATE")
        ((base_index, base_term, base_members, commits, contents, checksum),) = self._db.execute(
            "SELECT base_index, base_term, base_members, commits, contents, checksum FROM hard_state"
        )
        if persist.base is not None:
            base_index, base_term = persist.base.index, persist.base.term
            base_members = encode_members(persist.base.members)
        if persist.truncate_from is not None:
            contents ^= self._delete("entries WHERE idx >= ?", persist.truncate_from)
        contents ^= self._delete("entries WHERE idx <= ?", base_index)
        new = [(e.index, e.term, e.data, int(e.is_members)) for e in persist.entries if e.index > base_index]
        contents ^= self._insert("entries", new)
        if persist.snapshot is not None:
            taken = persist.snapshot
            contents ^= self._delete("snapshot")
            contents ^= self._insert(
                "snapshot", [(taken.index, taken.term, encode_members(taken.members), taken.data)]
            )
        ((last_index,),) = self._db.execute("SELECT coalesce(max(idx), ?) FROM entries", (base_index,))
        state = (persist.term, persist.voted_for, base_index, base_term, base_members, last_index)
        self._commit(state, _ROLLED_BACK if persist.rolled_back else 0, LastCommit(commits, checksum), contents)
        self._failed = False

    def _delete(self, rows: str, *values: int) -> int:
        """Delete the rows that ``rows`` selects (a table with an SQL condition), and return the XOR of their CRCs, 0
        if there are none."""
        gone = _xor(crc for (crc,) in self._db.execute(f"SELECT crc FROM {rows}", values))
        self._db.execute(f"DELETE FROM {rows}", values)
        return gone

    def _insert(self, table: str, rows: list[Any]) -> int:
        """Insert rows into a table, each with its CRC as the last column, and return the XOR of the CRCs, 0 if there
        are none."""
        complete = [(*row, _crc(*row)) for row in rows]
        if complete:
            places = ", ".join("?" * len(complete[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({places})", complete)
        return _xor(row[-1] for row in complete)

    def _commit(self, state: tuple[Any, ...], rolled_back: int, last: LastCommit, contents: int) -> None:
        """End the transaction as the commit after ``last``: write the row of the hard state with its checksums,
        commit, and then write number and checksum of the commit to ``raft.db-commits``. All is synced when this
        returns."""
        number = last.number + 1
        covered = rolled_back, number, last.checksum, contents
        commit = LastCommit(number, _crc(*state, *covered))
        self._db.execute(
            f"UPDATE hard_state SET ({_STATE}, crc, {', '.join(_CHAIN)}) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*state, _crc(*state), *covered, commit.checksum),
        )
        self._db.execute("COMMIT")
        self._commits.write(commit)  # only now: an honest crash never leaves the database behind this file

    def close(self) -> None:
        """Close and unlock the database and the file of its last commit. Whatever ``perform`` wrote is durable
        already."""
        self._db.close()
        self._commits.close()

    def _sync_leftovers(self) -> None:
        """Sync the write-ahead log, if there is one, and the directories. An earlier process may have left its last
        commit, which is about to be read, only in the operating system's cache."""
        wal = self._beside("-wal")
        if wal.exists():
            sync_path(wal)
        for directory in (self.path.parent, self.path.parent.parent):
            sync_path(directory)

    def _check_last_commit(self) -> None:
        """Compare the database with ``raft.db-commits``. It must be at the commit that the file names, or at the next
        one, which is then written to the file; otherwise raise ``Damaged``. The content of a store that is new, or
        that an older release wrote to, becomes a commit of its own."""
        ((store,),) = self._db.execute("SELECT store FROM identity")
        columns = {column[1] for column in self._db.execute("PRAGMA table_info(hard_state)")}
        chained = columns.issuperset(_CHAIN)
        *state, rolled_back, number, previous, contents, checksum = self._hard_state(chained)
        last = self._last_commit(store, number)
        if (number, checksum) != (last.number, last.checksum):
            if number < last.number:
                raise self._damaged(f"it holds {number} of {last.number} commits")
            if (number, previous) != (last.number + 1, last.checksum):
                raise self._damaged(f"it is not what followed commit {last.number}")
            self._commits.write(LastCommit(number, checksum))
        if checksum != _crc(*state, rolled_back, number, previous, contents):
            self._take_over(tuple(state), rolled_back, LastCommit(number, checksum), chained)

    def _hard_state(self, chained: bool) -> list[Any]:
        """Return the values of the row of the hard state and of the commit chain, without the CRC of the row, which
        is checked. The columns of the commit chain are 0 if the database does not have them yet (``chained`` is
        false). Raises ``Damaged`` if the row is missing or invalid."""
        chain = ", ".join(_CHAIN if chained else "0" * len(_CHAIN))
        rows = self._db.execute(f"SELECT {_STATE}, {chain}, crc FROM hard_state").fetchall()
        if len(rows) != 1 or rows[0][-1] != _crc(*rows[0][: -1 - len(_CHAIN)]):
            raise self._damaged("term and vote do not match their checksum")
        if not all(isinstance(value, int) for value in rows[0][-1 - len(_CHAIN) : -1]):
            raise self._damaged("it does not say which commit it is")
        if rows[0][len(_STATE.split(", "))] not in (0, _ROLLED_BACK):
            raise self._damaged("it does not say whether it is an old copy")
        return list(rows[0][:-1])

    def _last_commit(self, store: str, number: int) -> LastCommit:
        """Open ``raft.db-commits`` and return the last commit that it names for this store. If the database is at
        commit 0 (``number``), a missing file is made. Otherwise raise ``Damaged`` if the file is missing; raise it
        always if the file is damaged."""
        try:
            last = self._commits.read(store)
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if last is None:
            if number > 0:
                raise self._damaged(f"{self._commits.path.name}, which belongs to it, is missing")
            self._commits.create(store)
            return NO_COMMIT
        return last

    def _take_over(self, state: tuple[Any, ...], rolled_back: int, last: LastCommit, chained: bool) -> None:
        """Make the present content of the database a commit of its own, since the store is new or an older release
        wrote to it. Adds the columns of the commit chain if they are missing. The rows themselves are checked by
        ``load``; raises ``Damaged`` only if a row has no checksum."""
        self._db.execute("BEGIN IMMEDIATE")
        for column in () if chained else _CHAIN:
            self._db.execute(f"ALTER TABLE hard_state ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
        crcs = self._db.execute("SELECT crc FROM entries UNION ALL SELECT crc FROM snapshot").fetchall()
        if not all(isinstance(crc, int) for (crc,) in crcs):
            raise self._damaged("a checksum of a row is none")
        self._commit(state, rolled_back, last, _xor(crc for (crc,) in crcs))

    def _check_identity(self, cluster: str, node_id: NodeId) -> None:
        """Raise ``ConfigError`` if the database belongs to another cluster or node or has another format, and
        ``Damaged`` if the record of this is missing or does not match its checksum."""
        rows = self._db.execute("SELECT * FROM identity").fetchall()
        if len(rows) != 1:
            raise self._damaged("it does not say whose it is")
        if rows[0][-1] != _crc(*rows[0][:-1]):
            raise self._damaged("whose it is does not match its checksum")
        if rows[0][:3] != (FORMAT, cluster, node_id):
            raise ConfigError(
                f"{self.path} belongs to node {rows[0][2]!r} of cluster {rows[0][1]!r} (format {rows[0][0]}), not to"
                f" {node_id!r} of {cluster!r} (format {FORMAT}): check the node id, the cluster and the directory"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Return a context in which errors of SQLite become ``ConfigError`` (the database is in use, or cannot be
        written) or ``Damaged`` (all others)."""
        try:
            yield
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_BUSY:
                raise ConfigError(f"{self.path} is in use by another process: stop that controller first") from error
            if code in _UNWRITABLE:
                raise ConfigError(f"{self.path} cannot be written: {error}") from error
            raise self._damaged(str(error)) from error
        except (sqlite3.Error, OverflowError, UnicodeDecodeError, struct.error) as error:
            raise self._damaged(str(error)) from error

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _damaged(self, fault: str) -> Damaged:
        return Damaged(f"{self.path} is damaged: {fault}")


def set_aside(directory: str | Path) -> Path:
    """Rename the files of the damaged store in ``directory`` to ``raft.db.damaged-1`` (or the next free number), so
    that an operator can look at them, and sync the directory. Return the new path of the database."""
    path = Path(directory) / "raft.db"
    number = 1
    while was_set_aside(directory, number):
        number += 1
    aside = path.with_name(f"raft.db.damaged-{number}")
    for suffix in _FILES:
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    sync_path(path.parent)
    return aside


def was_set_aside(directory: str | Path, number: int = 1) -> bool:
    """Return whether ``directory`` holds files that ``set_aside`` renamed with this number."""
    return any((Path(directory) / f"raft.db.damaged-{number}{suffix}").exists() for suffix in _FILES)


def _create(path: Path, cluster: str, node_id: NodeId, store: str, lost: bool) -> None:
    """Make a complete database of a new controller, with term 0 and an empty log, under another name, and rename it
    to ``path`` as the last step. Deletes leftovers of an earlier store. The new name is not durable before the caller
    has synced the directory."""
    unfinished = path.with_name(path.name + ".new")
    for leftover in (unfinished, *(path.with_name(path.name + suffix) for suffix in _FILES)):
        leftover.unlink(missing_ok=True)
        leftover.with_name(leftover.name + "-journal").unlink(missing_ok=True)
    sync_path(path.parent)  # or a crash may bring the old WAL back beside the new database
    make_file(unfinished)  # SQLite gives its other files the same mode
    db = sqlite3.connect(unfinished, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA fullfsync = ON")
        db.executescript(_SCHEMA)
        identity = (FORMAT, cluster, node_id, store, int(lost))
        db.execute("INSERT INTO identity VALUES (?, ?, ?, ?, ?, ?)", (*identity, _crc(*identity)))
        state = (0, None, 0, 0, encode_members(NOBODY), 0)
        db.execute("INSERT INTO hard_state VALUES (?, ?, ?, ?, ?, ?, ?)", (*state, _crc(*state)))
    finally:
        db.close()
    unfinished.replace(path)


def _crc(*values: int | str | bytes | None) -> int:
    """Return the CRC-32 of the values of a row. The values are encoded as CBOR, so that values of different types or
    lengths never give the same bytes."""
    return zlib.crc32(cbor2.dumps(values))


def _xor(values: Iterable[int]) -> int:
    return reduce(operator.xor, values, 0)
