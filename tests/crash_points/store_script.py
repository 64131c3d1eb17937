"""One run of a controller's store, to be recorded: ``python -m crash_points.store_script FOLDER PROMISES SEED LIFE
END [MUTANT]``.

It opens the store in FOLDER/c1 by ``RaftStorage`` and makes ``COMMITS`` more of the commits that follow from SEED.
Each line that it writes to the file PROMISES is the number of the commit that must be found from then on, or the next
one: the result of ``load`` is promised too, since a controller acts on it. Behind a number, ``old`` means that no
flipped bit will be noticed. LIFE is ``new``, or ``old`` for a run of the release without a count of commits. END is
``close``, or ``kill`` for an end between the write of one more commit and its sync.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.old_raft_store import OldStore
from tidelog_controller.last_commit import LastCommitFile, sync_path
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import Base, Entry, PersistentState, Snapshot
from tidelog_controller.raft.membership import encode_members, members_of
from tidelog_controller.storage import RaftStorage

COMMITS = 4
CHECKPOINT_PAGES = 8
"""SQLite moves the WAL into the database when it has so many pages, which a few commits fill."""


def history(seed: int) -> Iterator[tuple[Persist, PersistentState]]:
    """Yield endless commits, each with the state of the store behind it: entries of one to three pages, truncations,
    compaction with a snapshot, snapshots that replace the log."""
    rng, stored, term = random.Random(seed), PersistentState(store="s"), 0
    while True:
        term += 1
        base, last = stored.base.index, stored.base.index + len(stored.entries)
        cut = rng.choice([None, None, rng.randint(base + 1, last)]) if last > base else None
        first, new_base, snapshot = cut or last + 1, None, None
        group = members_of("c1", f"d{term}")
        kind = rng.choice(["append", "append", "append", "vote", "compact", "install"])
        if kind == "install":
            cut, first = (base + 1 if last > base else None), last + 11
            new_base = Base(last + 10, term, group)
        elif kind == "compact" and first - 1 > base:
            gone = stored.entries[rng.randint(0, first - base - 2)]
            new_base = Base(gone.index, gone.term, group)
        if new_base is not None:
            snapshot = Snapshot(new_base.index, new_base.term, group, rng.randbytes(rng.choice((10, 9000))))
        count = 0 if kind == "vote" else rng.choice((1, 1, 2, 3))
        sizes = [rng.choice((20, 20, 700, 5000)) for _ in range(count)]
        entries = [Entry(first + i, term, rng.randbytes(size)) for i, size in enumerate(sizes)]
        if entries and kind == "append" and rng.random() < 0.2:
            entries[-1] = Entry(entries[-1].index, term, encode_members(group), is_members=True)
        rolled_back = (
            term > COMMITS and rng.random() < 0.3
        )  # an older release, which writes the first, knows no such mark
        vote = rng.choice([None, "c1", "c3"])
        persist = Persist(term, vote, cut, tuple(entries), new_base, snapshot, rolled_back)
        stored = apply_persist(stored, persist)
        yield persist, stored


def states(seed: int, count: int) -> list[PersistentState]:
    """Return the states of the store behind 0, 1, … of these commits."""
    made = history(seed)
    return [PersistentState(store="s"), *(next(made)[1] for _ in range(count))]


class _Life:
    """One run of the store, with its folder and its file of promises."""

    def __init__(self, folder: Path, promises: str, seed: int) -> None:
        self.folder = folder
        self._promises = os.open(promises, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._states = states(seed, 40)
        self._made = [persist for persist, _ in zip(history(seed), range(40), strict=False)]
        self._number = 0

    def promise(self, number: int, *, old: bool = False) -> None:
        os.write(self._promises, b"%d old\n" % number if old else b"%d\n" % number)

    def old(self, end: str) -> None:
        """Run the store of an older release, in which only SQLite syncs."""
        store = OldStore(self.folder / "raft.db")
        for directory in (self.folder, self.folder.parent):
            sync_path(directory)
        self.promise(0, old=True)
        for number in range(1, COMMITS + 1):
            store.write(self._states[number])
            self.promise(number, old=True)
        if end == "kill":
            os._exit(0)
        store.close()

    def new(self, end: str) -> None:
        storage = RaftStorage(self.folder, "harbour", "c1", "s")
        storage._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        found = self._states.index(storage.load())
        self.promise(found)
        for number in range(found + 1, found + COMMITS + 1):
            storage.perform(self._made[number - 1][0])
            self.promise(number)
        if end == "kill":
            storage._db.execute("PRAGMA wal_autocheckpoint = 0")
            storage._db.execute("PRAGMA synchronous = NORMAL")
            LastCommitFile.write = lambda self, commit: os._exit(0)  # type: ignore[method-assign]
            storage.perform(self._made[found + COMMITS][0])
        storage.close()


def main() -> None:
    """Run one run of a controller's store."""
    folder, promises, seed, kind, end, *mutant = sys.argv[1:]
    with pytest.MonkeyPatch.context() as patch:
        for name in mutant:
            from mutants import MUTANTS

            MUTANTS[name].apply(patch)
        life = _Life(Path(folder) / "c1", promises, int(seed))
        (life.old if kind == "old" else life.new)(end)


if __name__ == "__main__":
    main()
