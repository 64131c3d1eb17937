"""The durable side of Raft: one SQLite database per controller, ``<directory>/raft.db``.

WAL mode with ``synchronous=FULL``: a commit is on stable storage (fsync of the WAL) when ``perform`` returns, and
is there entirely or not at all. The database is locked exclusively while it is open, since two processes with one
vote would break Raft. It is made under another name and renamed when complete: an empty or half-made ``raft.db``
is therefore damage and never taken for a new controller, which would forget its vote.

SQLite has no checksums over its pages; every row carries a CRC-32 of its own, and rows must be contiguous with
terms that never go back, so that a flipped bit is refused and not replicated. What is not noticed: a damaged WAL
tail, which SQLite takes for a commit that never finished.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cbor2
from tidelog.errors import ConfigError
from tidelog.types import NodeId

from tidelog_controller.core.raft_log import Entry, Persist, Stored

FORMAT = 1

_SCHEMA = """
CREATE TABLE identity (format INTEGER NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL);
CREATE TABLE hard_state (term INTEGER NOT NULL, voted_for TEXT, last_index INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE entries (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, data BLOB NOT NULL, crc INTEGER NOT NULL);
"""


class RaftStorage:
    """Holds the database open until ``close``. Calls may come from any thread, one at a time."""

    def __init__(self, directory: str | Path, cluster: str, node_id: NodeId) -> None:
        """Open the database, or make it if there is none. ConfigError if it belongs to another cluster or node,
        is in use by another process, or is damaged."""
        self.path = Path(directory) / "raft.db"
        self._failed = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            _create(self.path, cluster, node_id)
        if self.path.stat().st_size == 0:
            raise self._damaged("the file is empty")
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            with self._explained():
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.execute("BEGIN IMMEDIATE")  # takes the lock now, not at the first write
                self._db.execute("COMMIT")
                self._check_identity(cluster, node_id)
        except BaseException:
            self._db.close()
            raise

    def load(self) -> Stored:
        """What was made durable by all ``perform`` so far. ConfigError if the database is damaged."""
        with self._explained():
            for (fault,) in self._db.execute("PRAGMA quick_check(1)"):
                if fault != "ok":
                    raise self._damaged(str(fault))
            states = self._db.execute("SELECT term, voted_for, last_index, crc FROM hard_state").fetchall()
            rows = self._db.execute("SELECT idx, term, data, crc FROM entries ORDER BY idx").fetchall()
        if len(states) != 1 or states[0][3] != _crc(*states[0][:3]):
            raise self._damaged("term and vote do not match their checksum")
        term, voted_for, last_index, _ = states[0]
        if len(rows) != last_index:
            raise self._damaged(f"the log has {len(rows)} entries instead of {last_index}")
        entries: list[Entry] = []
        last_term = 1
        for position, (index, entry_term, data, crc) in enumerate(rows, start=1):
            if index != position or crc != _crc(index, entry_term, data) or not last_term <= entry_term <= term:
                raise self._damaged(f"entry {position} of the log is missing or damaged")
            last_term = entry_term
            entries.append(Entry(index, entry_term, data))
        return Stored(term, voted_for, entries)

    def perform(self, persist: Persist) -> None:
        """Make it durable, all or nothing. Any sqlite3.Error (full disk, failed write or fsync) is final: the
        core is then ahead of the disk, so the process must end; every later call is refused too."""
        assert not self._failed, "a failed write is never tried again: restart from what the disk holds"
        self._failed = True
        rows = [(e.index, e.term, e.data, _crc(e.index, e.term, e.data)) for e in persist.entries]
        self._db.execute("BEGIN IMMEDIATE")
        if persist.truncate_from is not None:
            self._db.execute("DELETE FROM entries WHERE idx >= ?", (persist.truncate_from,))
        self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        ((last_index,),) = self._db.execute("SELECT coalesce(max(idx), 0) FROM entries")
        state = (persist.term, persist.voted_for, last_index)
        self._db.execute(
            "UPDATE hard_state SET (term, voted_for, last_index, crc) = (?, ?, ?, ?)", (*state, _crc(*state))
        )
        self._db.execute("COMMIT")
        self._failed = False

    def close(self) -> None:
        """Release the database. Nothing is lost by not calling it."""
        self._db.close()

    def _check_identity(self, cluster: str, node_id: NodeId) -> None:
        rows = self._db.execute("SELECT format, cluster, node FROM identity").fetchall()
        if len(rows) != 1:
            raise self._damaged("it does not say whose it is")
        if rows[0] != (FORMAT, cluster, node_id):
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

    def _damaged(self, fault: str) -> ConfigError:
        return ConfigError(
            f"{self.path} is damaged: {fault}. Do not start this node id with an older copy or an empty directory"
            " while its cluster lives: it would forget its vote. Replace this controller by one with a new node id"
        )


def _create(path: Path, cluster: str, node_id: NodeId) -> None:
    """A complete database of a new controller under its final name, or nothing there."""
    unfinished = path.with_name(path.name + ".new")
    for leftover in (unfinished, unfinished.with_name(unfinished.name + "-journal")):
        leftover.unlink(missing_ok=True)
    db = sqlite3.connect(unfinished, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
        db.execute("INSERT INTO identity VALUES (?, ?, ?)", (FORMAT, cluster, node_id))
        db.execute("INSERT INTO hard_state VALUES (0, NULL, 0, ?)", (_crc(0, None, 0),))
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
