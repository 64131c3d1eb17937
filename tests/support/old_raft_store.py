"""A Raft store as releases before the count of commits wrote it: format 2 without the columns of the chain."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path
from typing import Any

import cbor2
from tidelog_controller.raft.log import PersistentState
from tidelog_controller.raft.membership import encode_members

SCHEMA = """
CREATE TABLE identity (format INTEGER NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL, store TEXT NOT NULL,
  lost INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE hard_state (term INTEGER NOT NULL, voted_for TEXT, base_index INTEGER NOT NULL,
  base_term INTEGER NOT NULL, base_members BLOB NOT NULL, last_index INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE entries (idx INTEGER PRIMARY KEY, term INTEGER NOT NULL, data BLOB NOT NULL,
  is_members INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE snapshot (idx INTEGER NOT NULL, term INTEGER NOT NULL, members BLOB NOT NULL, data BLOB NOT NULL,
  crc INTEGER NOT NULL);
"""


def _with_crc(*values: Any) -> tuple[Any, ...]:
    return (*values, zlib.crc32(cbor2.dumps(values)))


class OldStore:
    """An open database of an older release; it is created if it does not exist."""

    def __init__(self, path: Path) -> None:
        new = not path.exists()
        path.parent.mkdir(exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if new:
            self._db.executescript(SCHEMA)
            self.identify("s")
            empty = (0, None, 0, 0, encode_members(PersistentState().base.members), 0)
            self._db.execute("INSERT INTO hard_state VALUES (?, ?, ?, ?, ?, ?, ?)", _with_crc(*empty))

    def identify(self, store: str) -> None:
        """Store the name of the store."""
        self._db.execute("INSERT INTO identity VALUES (?, ?, ?, ?, ?, ?)", _with_crc(2, "harbour", "c1", store, 0))

    def write(self, stored: PersistentState) -> None:
        """Replace the content by this state."""
        base, taken = stored.base, stored.snapshot
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("DELETE FROM entries")
        self._db.execute("DELETE FROM snapshot")
        for e in stored.entries:
            row = _with_crc(e.index, e.term, e.data, int(e.is_members))
            self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
        if taken is not None:
            row = _with_crc(taken.index, taken.term, encode_members(taken.members), taken.data)
            self._db.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?, ?)", row)
        last = base.index + len(stored.entries)
        state = (stored.term, stored.voted_for, base.index, base.term, encode_members(base.members), last)
        columns = "term, voted_for, base_index, base_term, base_members, last_index, crc"
        self._db.execute(f"UPDATE hard_state SET ({columns}) = (?, ?, ?, ?, ?, ?, ?)", _with_crc(*state))
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._db.close()
