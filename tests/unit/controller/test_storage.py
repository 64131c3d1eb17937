"""The controller's SQLite storage: what it promises to Raft, and what it refuses."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog.errors import ConfigError
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import Base, Entry, PersistentState, Snapshot
from tidelog_controller.raft.membership import encode_members, members_of
from tidelog_controller.storage import Damaged, RaftStorage, set_aside


def open_storage(directory: Path, cluster: str = "harbour", node: str = "c1") -> RaftStorage:
    return RaftStorage(directory, cluster, node, "s")


def stored(term: int, voted_for: str | None, entries: Sequence[Entry]) -> PersistentState:
    return PersistentState(term, voted_for, list(entries), store="s")


def entries(first: int, *terms: int) -> tuple[Entry, ...]:
    return tuple(Entry(first + n, term, b"command %d" % (first + n)) for n, term in enumerate(terms))


def filled(directory: Path) -> PersistentState:
    """Return the content of a database with a vote and three entries, which is closed again."""
    storage = open_storage(directory)
    storage.perform(Persist(7, "c2", None, entries(1, 3, 3, 7)))
    found = storage.load()
    storage.close()
    return found


def test_a_new_directory_holds_the_state_of_a_new_controller(tmp_path: Path) -> None:
    assert open_storage(tmp_path / "not" / "there").load() == PersistentState(store="s")


def test_sqlite_is_told_to_reach_the_medium_where_a_plain_sync_does_not(tmp_path: Path) -> None:
    """SQLite knows ``F_FULLFSYNC`` of macOS, and keeps the setting on every system."""
    assert open_storage(tmp_path)._db.execute("PRAGMA fullfsync").fetchone() == (1,)


def test_term_vote_and_entries_are_there_after_reopening(tmp_path: Path) -> None:
    filled(tmp_path)
    assert open_storage(tmp_path).load() == stored(7, "c2", entries(1, 3, 3, 7))


def test_the_mark_of_an_old_copy_is_there_until_a_write_takes_it_away(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.perform(Persist(7, None, None, (), rolled_back=True))
    storage.close()
    storage = open_storage(tmp_path)
    assert storage.load().rolled_back
    storage.perform(Persist(7, None, None, entries(1, 3)))
    assert not storage.load().rolled_back


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("bit", [0, 2, 15, 40])
def test_a_mark_of_an_old_copy_that_is_damaged_is_noticed(tmp_path: Path, bit: int, is_old: bool) -> None:
    storage = open_storage(tmp_path)
    storage.perform(Persist(7, None, None, (), rolled_back=is_old))
    storage.close()
    with sqlite3.connect(tmp_path / "raft.db") as db:
        db.execute("UPDATE hard_state SET rolled_back = (rolled_back | ?1) - (rolled_back & ?1)", (1 << bit,))
    db.close()
    with pytest.raises(Damaged, match="old copy"):
        open_storage(tmp_path).load()


def test_a_vote_can_be_withdrawn_only_by_a_new_term_and_both_are_one_write(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = open_storage(tmp_path)
    storage.perform(Persist(8, None, None, ()))
    assert storage.load() == stored(8, None, entries(1, 3, 3, 7))


def test_truncation_and_the_entries_that_replace_it_are_one_write(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = open_storage(tmp_path)
    storage.perform(Persist(9, None, 2, entries(2, 8, 9)))
    assert storage.load().entries == [*entries(1, 3), *entries(2, 8, 9)]


def test_random_writes_give_what_the_storage_in_memory_gives(tmp_path: Path) -> None:
    """Entries, truncations, compaction with a snapshot, and snapshots that replace the whole log."""
    rng = random.Random(5)
    storage, model = open_storage(tmp_path), PersistentState(store="s")
    for term in range(1, 100):
        base, last = model.base.index, model.base.index + len(model.entries)
        cut = rng.choice([None, rng.randint(base + 1, last)]) if last > base else None
        first, new_base, snapshot = cut or last + 1, None, None
        kind = rng.choice(["append", "append", "compact", "install"])
        group = members_of("c1", f"c{term}")
        if kind == "install":
            cut, first = (base + 1 if last > base else None), last + 11
            new_base = Base(last + 10, term, group)
        elif kind == "compact" and first - 1 > base:
            gone = model.entries[rng.randint(0, first - base - 2)]
            new_base = Base(gone.index, gone.term, group)
        if new_base is not None:
            snapshot = Snapshot(new_base.index + (kind == "compact"), term, group, b"x" * rng.randint(1, 9000))
        new = entries(first, *[term] * rng.randint(0, 4))
        if new and kind == "append":
            new = (*new[:-1], replace(new[-1], data=encode_members(group), is_members=True))
        vote = rng.choice([None, "c1", "c3"])
        persist = Persist(term, vote, cut, new, new_base, snapshot)
        storage.perform(persist)
        model = apply_persist(model, persist)
        assert storage.load() == model
    assert model.base.index > 50 and model.snapshot is not None


def test_a_snapshot_that_does_not_match_its_checksum_or_is_missing_is_refused(tmp_path: Path) -> None:
    """C13: it is not served, and it is not replaced by an empty one."""
    base = Base(2, 3, members_of("c1"))
    snapshot = Snapshot(3, 7, members_of("c1"), b"the state")
    damages = (
        "UPDATE snapshot SET data = x'00'",
        "UPDATE snapshot SET idx = 2",
        "DELETE FROM snapshot",
        "UPDATE snapshot SET members = x'80'",
        "UPDATE hard_state SET base_index = 1",
        "UPDATE identity SET store = 'another'",
    )
    for number, damage in enumerate(damages):
        directory = tmp_path / str(number)
        filled(directory)
        storage = open_storage(directory)
        storage.perform(Persist(7, "c2", None, (), base, snapshot))
        assert storage.load().snapshot == snapshot
        storage._db.execute(damage)
        storage.close()
        with pytest.raises(Damaged):
            open_storage(directory).load()


def test_a_damaged_database_is_put_aside_and_its_successor_knows_that_it_is_one(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "raft.db").write_bytes(b"garbage " * 1000)
        with pytest.raises(Damaged):
            open_storage(tmp_path)
        aside = set_aside(tmp_path)
        assert aside.name == f"raft.db.damaged-{number}" and aside.read_bytes().startswith(b"garbage")
    assert RaftStorage(tmp_path, "harbour", "c1", "t", lost=True).load() == PersistentState(store="t", lost=True)


def test_files_of_an_earlier_database_are_not_taken_for_those_of_a_new_one(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    storage.perform(Persist(7, "c2", None, entries(1, 3, 3, 7)))
    left = {name: (tmp_path / name).read_bytes() for name in ("raft.db-wal",)}
    storage.close()
    for name in ("raft.db", "raft.db-commits"):
        (tmp_path / name).unlink()
    for name, data in left.items():
        (tmp_path / name).write_bytes(data)
    assert RaftStorage(tmp_path, "harbour", "c1", "t").load() == PersistentState(store="t")


def test_a_killed_process_loses_nothing_that_perform_returned_from(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from tidelog_controller.raft.effects import Persist\n"
        "from tidelog_controller.raft.log import Entry\n"
        "from tidelog_controller.storage import RaftStorage\n"
        "storage = RaftStorage(sys.argv[1], 'harbour', 'c1', 's')\n"
        "storage.perform(Persist(4, 'c3', None, (Entry(1, 4, b'x'),)))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False)
    assert ended.returncode == -9
    assert open_storage(tmp_path).load() == stored(4, "c3", [Entry(1, 4, b"x")])


def test_a_commit_is_synced_before_perform_returns(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    assert storage._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert storage._db.execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize(("cluster", "node"), [("harbour", "c2"), ("lagoon", "c1")])
def test_a_database_of_another_cluster_or_node_is_refused(tmp_path: Path, cluster: str, node: str) -> None:
    filled(tmp_path)
    with pytest.raises(ConfigError, match="belongs to node 'c1' of cluster 'harbour'"):
        open_storage(tmp_path, cluster, node)


def test_a_second_process_is_refused_while_the_database_is_open(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = open_storage(tmp_path)
    with pytest.raises(ConfigError, match="in use by another process"):
        open_storage(tmp_path)
    storage.close()
    open_storage(tmp_path).close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raft.db").write_bytes(b"garbage " * 1000)
    with pytest.raises(ConfigError, match=r"raft\.db is damaged: file is not a database"):
        open_storage(tmp_path)


def test_an_empty_file_is_damage_and_not_a_new_controller(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "raft.db").write_bytes(b"")
    with pytest.raises(ConfigError, match="the file is empty"):
        open_storage(tmp_path)


def test_a_crash_while_the_database_is_made_leaves_a_new_controller(tmp_path: Path) -> None:
    (tmp_path / "raft.db.new").write_bytes(b"half a database")
    assert open_storage(tmp_path).load() == PersistentState(store="s")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE hard_state SET term = 6",
        "UPDATE hard_state SET voted_for = 'c3'",
        "UPDATE hard_state SET voted_for = NULL",
        "DELETE FROM hard_state",
        "DELETE FROM entries WHERE idx = 2",
        "DELETE FROM entries WHERE idx = 1",
        "DELETE FROM entries WHERE idx = 3",
        "UPDATE entries SET term = 4 WHERE idx = 2",
        "UPDATE entries SET data = x'00' WHERE idx = 3",
        "DELETE FROM identity",
        "DROP TABLE entries",
    ],
)
def test_a_row_that_does_not_match_its_checksum_or_is_missing_is_refused(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    db = sqlite3.connect(tmp_path / "raft.db")
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(ConfigError, match=r"raft\.db is damaged"):
        open_storage(tmp_path).load()


def test_a_flipped_byte_or_a_cut_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "good")
    good = (tmp_path / "good" / "raft.db").read_bytes()
    expected = open_storage(tmp_path / "good").load()
    rng = random.Random(11)
    refused = 0
    positions = [*range(100), *(p for p in range(len(good)) if good[p] != 0 and rng.random() < 0.5)]
    cuts = [good[:size] for size in (1, 100, 4096, 8192, len(good) - 1)]
    flips = [good[:p] + bytes([good[p] ^ 1 << rng.randrange(8)]) + good[p + 1 :] for p in positions]
    for number, damaged in enumerate([*cuts, *flips]):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "raft.db").write_bytes(damaged)
        try:
            storage = open_storage(directory)
        except ConfigError:
            refused += 1
        else:
            try:
                assert storage.load() == expected
            except ConfigError:
                refused += 1
            finally:
                storage.close()
        shutil.rmtree(directory)
    assert refused > len(flips) / 4


def test_after_a_failed_write_nothing_more_is_accepted(tmp_path: Path) -> None:
    filled(tmp_path)
    storage = open_storage(tmp_path)
    storage._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        storage.perform(Persist(8, "c1", None, (Entry(4, 8, b"x" * 1_000_000),)))
    with pytest.raises(AssertionError, match="never tried again"):
        storage.perform(Persist(8, "c1", None, ()))
    storage.close()
    assert open_storage(tmp_path).load() == stored(7, "c2", entries(1, 3, 3, 7))


def test_an_entry_of_an_older_term_than_the_one_before_it_is_damage(tmp_path: Path) -> None:
    """Also where the one before it is compacted away."""
    group = members_of("c1")
    storage = open_storage(tmp_path)
    storage.perform(Persist(7, None, None, entries(3, 4), Base(2, 5, group), Snapshot(2, 5, group, b"state")))
    with pytest.raises(Damaged, match="entry 3 of the log"):
        storage.load()
