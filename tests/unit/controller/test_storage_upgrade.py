"""A controller's store of an older release: taken over, given back, taken over again; and what is remembered of a
store that was renamed because of damage. Tests ``tidelog_controller/storage.py`` and ``last_commit.py``."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.old_raft_store import OldStore
from support.raft_store_files import commit, flipped, open_store, opened, quick_folder, read_files, write_files
from tidelog.errors import ConfigError
from tidelog_controller.config import ControllerConfig
from tidelog_controller.last_commit import SLOT_BYTES, LastCommit, LastCommitFile
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import Base, Entry, PersistentState, Snapshot
from tidelog_controller.raft.membership import members_of
from tidelog_controller.server import open_storage
from tidelog_controller.storage import Damaged, RaftStorage, set_aside

GROUP = members_of("c1", "c2")
OLD = PersistentState(
    5, "c2", [Entry(n, 5, b"old %d" % n) for n in (3, 4)], Base(2, 4, GROUP), Snapshot(3, 5, GROUP, b"state"), "s"
)
"""What an older release left."""
LATER = PersistentState(6, None, [Entry(3, 5, b"old 3")], OLD.base, OLD.snapshot, "s")
"""And what it made of that when it came back."""


def old_files(folder: Path, stored: PersistentState, *, killed: bool) -> None:
    store = OldStore(folder / "raft.db")
    store.write(stored)
    left = read_files(folder)
    store.close()
    if killed:
        write_files(folder, left)


@pytest.mark.parametrize("killed", [False, True])
def test_the_store_of_an_older_release_is_taken_over_whole_and_protected_from_then_on(killed: bool) -> None:
    with quick_folder() as folder:
        old_files(folder, OLD, killed=killed)
        storage = open_store(folder)
        assert storage.load() == OLD
        assert set(read_files(folder)) == {"raft.db", "raft.db-wal", "raft.db-commits"}
        files = read_files(folder)
        storage.close()
        write_files(folder, {**files, "raft.db-wal": flipped(files["raft.db-wal"], 40, 0)})
        assert opened(folder) is None


def test_an_older_release_works_on_with_a_store_and_it_is_taken_over_again() -> None:
    """Until the level is raised a process may go back to the older release. What that wrote is believed when this
    release returns."""
    with quick_folder() as folder:
        old_files(folder, OLD, killed=False)
        open_store(folder).close()
        for stored in (LATER, OLD, LATER):
            old_files(folder, stored, killed=True)
            storage = open_store(folder)
            assert storage.load() == stored
            last = stored.base.index + len(stored.entries)
            persist = Persist(7, "c1", last, (Entry(last, 7, b"new"),))
            storage.perform(persist)
            files = read_files(folder)
            storage.close()
            expected = apply_persist(stored, persist)
            assert opened(folder) == expected
            write_files(folder, {**files, "raft.db-wal": flipped(files["raft.db-wal"], 40, 0)})
            assert opened(folder) is None, "what the older release wrote is an older store now"
            write_files(folder, files)
            open_store(folder).close()


def test_damage_in_the_store_of_an_older_release_is_not_taken_over() -> None:
    with quick_folder() as folder:
        old_files(folder, OLD, killed=False)
        files = read_files(folder)
        place = files["raft.db"].index(b"old 4")
        write_files(folder, {"raft.db": flipped(files["raft.db"], place, 0)})
        for _ in range(2):
            assert opened(folder) is None


def test_a_file_of_the_last_commit_that_belongs_to_another_store_says_nothing_of_a_new_one(tmp_path: Path) -> None:
    """An older release renames a damaged store without this file."""
    storage = open_store(tmp_path)
    storage.perform(commit(1))
    storage.close()
    (tmp_path / "raft.db").rename(tmp_path / "raft.db.damaged-1")
    OldStore(tmp_path / "raft.db").close()
    db = OldStore(tmp_path / "raft.db")
    db._db.execute("DELETE FROM identity")
    db.identify("t")
    db.close()
    assert opened(tmp_path) == PersistentState(store="t")


def test_a_disk_without_room_for_the_taking_over_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the store would be renamed as damaged, and the vote lost with it."""
    old_files(tmp_path, OLD, killed=False)

    def fill(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(RaftStorage, "_take_over", fill)
        with pytest.raises(ConfigError, match="cannot be written: database or disk is full") as raised:
            open_store(tmp_path)
        assert not isinstance(raised.value, Damaged)
    assert opened(tmp_path) == OLD


# --- what is put aside -----------------------------------------------------------------------------------


def config(folder: Path, *peers: str) -> ControllerConfig:
    urls = {peer: f"ws://{peer}" for peer in peers}
    return ControllerConfig(node="c1", cluster="harbour", data_dir=str(folder), peers=urls)


def test_a_database_that_is_gone_is_damage_as_long_as_its_commits_are_known(tmp_path: Path) -> None:
    storage = open_store(tmp_path)
    storage.perform(commit(1))
    storage.close()
    (tmp_path / "raft.db").unlink()
    with pytest.raises(Damaged, match=r"it is gone, and raft\.db-commits tells of 2 commits"):
        open_store(tmp_path)
    set_aside(tmp_path)
    assert open_store(tmp_path).load() == PersistentState(store="s")


def test_a_controller_that_put_its_store_aside_and_was_killed_still_knows_that_it_lost_one(tmp_path: Path) -> None:
    storage = open_store(tmp_path)
    storage.perform(commit(1))
    storage.close()
    set_aside(tmp_path)
    storage, stored = open_storage(config(tmp_path, "c1", "c2", "c3"))
    storage.close()
    assert stored == PersistentState(store=stored.store, lost=True)


def test_a_second_store_that_is_put_aside_replaces_nothing_of_the_first(tmp_path: Path) -> None:
    """Even if a crash left only one of the first one's files."""
    (tmp_path / "raft.db.damaged-1-wal").write_bytes(b"of the first")
    open_store(tmp_path).close()
    assert set_aside(tmp_path).name == "raft.db.damaged-2"
    assert set(read_files(tmp_path)) == {
        "raft.db.damaged-1-wal",
        "raft.db.damaged-2",
        "raft.db.damaged-2-commits",
    }


def test_a_controller_that_is_alone_does_not_begin_again_with_an_empty_store(tmp_path: Path) -> None:
    storage = open_store(tmp_path)
    for number in range(1, 4):
        storage.perform(commit(number))
    files = read_files(tmp_path)
    storage.close()
    write_files(tmp_path, {**files, "raft.db-wal": flipped(files["raft.db-wal"], 40, 0)})
    for _ in range(2):
        with pytest.raises(Damaged, match="of 4 commits"):
            open_storage(config(tmp_path, "c1"))


# --- the file of the last commit -------------------------------------------------------------------------


def test_one_damaged_slot_leaves_the_commit_before_and_two_leave_an_error(tmp_path: Path) -> None:
    path = tmp_path / "commits"
    file = LastCommitFile(path)
    file.create("s")
    for number in (1, 2, 3):
        file.write(LastCommit(number, number * 7))
    file.close()
    assert file.count() == 3 and LastCommitFile(path).read("s") == LastCommit(3, 21)
    data = path.read_bytes()
    path.write_bytes(flipped(data, SLOT_BYTES + 9, 3))
    assert LastCommitFile(path).read("s") == LastCommit(2, 14)
    assert LastCommitFile(path).read("another") is None
    path.write_bytes(flipped(path.read_bytes(), 20, 3))
    with pytest.raises(ValueError, match="commits is damaged"):
        LastCommitFile(path).read("s")


def test_a_second_process_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    storage = open_store(tmp_path)
    storage.perform(commit(1))
    before = (tmp_path / "raft.db-commits").read_bytes()
    with pytest.raises(Exception, match="in use by another process"):
        RaftStorage(tmp_path, "harbour", "c1", "other")
    assert (tmp_path / "raft.db-commits").read_bytes() == before
    storage.close()
