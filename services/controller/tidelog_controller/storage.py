"""The durable side of Raft: one SQLite database per controller, ``<directory>/raft.db``.

WAL mode with ``synchronous=FULL``: a commit is on stable storage (fsync of the WAL) when ``perform`` returns, and
is there entirely or not at all. The database is locked exclusively while it is open, since two processes with one
vote would break Raft. It is made under another name and renamed when complete: an empty or half-made ``raft.db``
is therefore damage and never taken for a new controller, which would forget its vote.

SQLite has no checksums over its pages; every row carries a CRC-32 of its own, and rows must be contiguous with
terms that never go back, so that a flipped bit is refused and not replicated. What is not noticed: a damaged WAL
tail, which SQLite takes for a commit that never finished.

The table ``copy`` says whether the disk is an old copy that is not refilled yet (``core/old_copies.py``). A database
of a release that knows no such table gets it when it is opened; such a release passes over it.

Each database has a random name, its *store*, from when it is made: by that name the group knows it and gives it a
vote (``core/members.py``). ``set_aside`` puts a damaged one out of the way; what is then made anew is marked
``lost``."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
from tidelog.errors import ConfigError
from tidelog.types import NodeId

from tidelog_controller.core.members import NOBODY, Members, decode_members, encode_members
from tidelog_controller.core.raft_log import Base, Entry, Persist, Snapshot, Stored

FORMAT = 2

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


class Damaged(ConfigError):
    """The database cannot be read, or does not hold what was written."""


class RaftStorage:
    """Holds the database open until ``close``. Calls may come from any thread, one at a time."""

    def __init__(
        self, directory: str | Path, cluster: str, node_id: NodeId, store: str, *, lost: bool = False
    ) -> None:
        """Open the database, or make it if there is none, under the name ``store`` (a random one if that is ""), and
        as one whose predecessor was ``lost``. ConfigError if it belongs to another cluster or node or is in use by
        another process, ``Damaged`` if it is damaged."""
        self.path = Path(directory) / "raft.db"
        self._failed = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            _create(self.path, cluster, node_id, store, lost)
        if self.path.stat().st_size == 0:
            raise self._damaged("the file is empty")
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._explained():
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("BEGIN IMMEDIATE")  # takes the lock now, not at the first write
                self._add_copy_table()
                self._db.execute("COMMIT")
                self._check_identity(cluster, node_id)
        except BaseException:
            self._db.close()
            raise

    def load(self) -> Stored:
        """What was made durable by all ``perform`` so far. ``Damaged`` if it is not all there."""
        with self._explained():
            for (fault,) in self._db.execute("PRAGMA quick_check(1)"):
                if fault != "ok":
                    raise self._damaged(str(fault))
            ((store, lost),) = self._db.execute("SELECT store, lost FROM identity").fetchall()
            states = self._db.execute(f"SELECT {_STATE}, crc FROM hard_state").fetchall()
            rows = self._db.execute("SELECT idx, term, data, is_members, crc FROM entries ORDER BY idx").fetchall()
            snapshots = self._db.execute("SELECT idx, term, members, data, crc FROM snapshot").fetchall()
            copies = self._db.execute("SELECT rolled_back, crc FROM copy").fetchall()
        if len(states) != 1 or states[0][-1] != _crc(*states[0][:-1]):
            raise self._damaged("term and vote do not match their checksum")
        if len(copies) != 1 or copies[0][-1] != _crc(*copies[0][:-1]):
            raise self._damaged("whether it is an old copy does not match its checksum")
        term, voted_for, base_index, base_term, base_members, last_index, _ = states[0]
        base = Base(base_index, base_term, self._members(base_members))
        entries = self._entries(rows, base, last_index, term)
        taken = self._snapshot(snapshots, base)
        return Stored(term, voted_for, entries, base, taken, store, bool(lost), bool(copies[0][0]))

    def _entries(self, rows: list[Any], base: Base, last_index: int, term: int) -> list[Entry]:
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
        if not rows and base.index == 0:
            return None
        if len(rows) != 1 or rows[0][-1] != _crc(*rows[0][:-1]) or rows[0][0] < base.index:
            raise self._damaged("the snapshot is missing or does not match its checksum")
        index, term, members, data, _ = rows[0]
        return Snapshot(index, term, self._members(members), data)

    def _members(self, data: bytes) -> Members:
        try:
            return decode_members(data)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def perform(self, persist: Persist) -> None:
        """Make it durable, all or nothing. Any sqlite3.Error (full disk, failed write or fsync) is final: the
        core is then ahead of the disk, so the process must end; every later call is refused too."""
        assert not self._failed, "a failed write is never tried again: restart from what the disk holds"
        self._failed = True
        self._db.execute("BEGIN IMMEDIATE")
        ((base_index, base_term, base_members),) = self._db.execute(
            "SELECT base_index, base_term, base_members FROM hard_state"
        )
        if persist.base is not None:
            base_index, base_term = persist.base.index, persist.base.term
            base_members = encode_members(persist.base.members)
        if persist.truncate_from is not None:
            self._db.execute("DELETE FROM entries WHERE idx >= ?", (persist.truncate_from,))
        self._db.execute("DELETE FROM entries WHERE idx <= ?", (base_index,))
        new = [(e.index, e.term, e.data, int(e.is_members)) for e in persist.entries if e.index > base_index]
        self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", [(*row, _crc(*row)) for row in new])
        if persist.snapshot is not None:
            taken = persist.snapshot
            row = (taken.index, taken.term, encode_members(taken.members), taken.data)
            self._db.execute("DELETE FROM snapshot")
            self._db.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?)", (*row, _crc(*row)))
        ((last_index,),) = self._db.execute("SELECT coalesce(max(idx), ?) FROM entries", (base_index,))
        state = (persist.term, persist.voted_for, base_index, base_term, base_members, last_index)
        copy = int(persist.rolled_back)
        self._db.execute(
            "UPDATE copy SET (rolled_back, crc) = (?, ?) WHERE rolled_back != ?", (copy, _crc(copy), copy)
        )
        self._db.execute(f"UPDATE hard_state SET ({_STATE}, crc) = (?, ?, ?, ?, ?, ?, ?)", (*state, _crc(*state)))
        self._db.execute("COMMIT")
        self._failed = False

    def close(self) -> None:
        """Release the database. Nothing is lost by not calling it."""
        self._db.close()

    def _add_copy_table(self) -> None:
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'copy'").fetchall():
            self._db.execute("CREATE TABLE copy (rolled_back INTEGER NOT NULL, crc INTEGER NOT NULL)")
            self._db.execute("INSERT INTO copy VALUES (0, ?)", (_crc(0),))

    def _check_identity(self, cluster: str, node_id: NodeId) -> None:
        rows = self._db.execute("SELECT * FROM identity").fetchall()
        if len(rows) != 1:
            raise self._damaged("it does not say whose it is")
        if rows[0][0] == FORMAT and rows[0][-1] != _crc(*rows[0][:-1]):
            raise self._damaged("whose it is does not match its checksum")
        if rows[0][:3] != (FORMAT, cluster, node_id):
            raise ConfigError(
                f"{self.path} belongs to node {rows[0][2]!r} of cluster {rows[0][1]!r} (format {rows[0][0]}), not to"
                f" {node_id!r} of {cluster!r} (format {FORMAT}): check the node id, the cluster and the directory"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                raise self._damaged(str(error)) from error
            raise ConfigError(f"{self.path} is in use by another process: stop that controller first") from error
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, fault: str) -> Damaged:
        return Damaged(f"{self.path} is damaged: {fault}")


def set_aside(directory: str | Path) -> Path:
    """Put a damaged database out of the way, under a name of its own, for whoever wants to look at it."""
    path = Path(directory) / "raft.db"
    number = 1
    while (aside := path.with_name(f"raft.db.damaged-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm"):  # without the first the others are nothing
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    return aside


def _create(path: Path, cluster: str, node_id: NodeId, store: str, lost: bool) -> None:
    """A complete database of a new controller under its final name, or nothing there."""
    unfinished = path.with_name(path.name + ".new")
    for leftover in ("raft.db.new", "raft.db.new-journal", "raft.db-wal", "raft.db-shm"):
        path.with_name(leftover).unlink(missing_ok=True)
    db = sqlite3.connect(unfinished, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
        identity = (FORMAT, cluster, node_id, store, int(lost))
        db.execute("INSERT INTO identity VALUES (?, ?, ?, ?, ?, ?)", (*identity, _crc(*identity)))
        state = (0, None, 0, 0, encode_members(NOBODY), 0)
        db.execute("INSERT INTO hard_state VALUES (?, ?, ?, ?, ?, ?, ?)", (*state, _crc(*state)))
    finally:
        db.close()
    unfinished.replace(path)
    for directory in (path.parent, path.parent.parent):  # the new names in them must be durable as well
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _crc(*values: int | str | bytes | None) -> int:
    """CRC-32 over the values of a row; CBOR keeps types and borders apart."""
    return zlib.crc32(cbor2.dumps(values))
