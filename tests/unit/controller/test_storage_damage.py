"""Bits that flip in the files of a controller's store: noticed, or harmless, and never taken for an older store.
Tests ``tidelog_controller/storage.py`` and ``last_commit.py``."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from support.raft_store_files import (
    SMALL_PAGE,
    Files,
    commit,
    flipped,
    killed_store,
    open_store,
    opened,
    quick_folder,
    read_files,
    write_files,
)
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import Entry, PersistentState
from tidelog_controller.storage import Damaged

COMMITS = 200
ALL_BITS = os.environ.get("ALL_BITS") == "1"
"""Flip each bit of the small store, and not one bit of each byte: eight times as long."""


def model(commits: int) -> PersistentState:
    stored = PersistentState(store="s")
    for number in range(1, commits + 1):
        stored = apply_persist(stored, commit(number))
    return stored


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the files of a process that was killed after its 200th commit, with all commits in the write-ahead
    log."""
    folder = tmp_path_factory.mktemp("killed")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from support.raft_store_files import commit, open_store\n"
        "storage = open_store(Path(sys.argv[1]))\n"
        f"for number in range(1, {COMMITS + 1}):\n"
        "    storage.perform(commit(number))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", script, str(folder)], env=environment, check=False)
    assert ended.returncode == -9
    return read_files(folder)


@pytest.mark.parametrize("place", [3, 40, 400_000])
def test_a_flip_in_the_wal_of_a_killed_controller_is_noticed(killed: Files, place: int) -> None:
    with quick_folder() as folder:
        write_files(folder, {**killed, "raft.db-wal": flipped(killed["raft.db-wal"], place, 0)})
        with pytest.raises(Damaged, match=f"of {COMMITS + 1} commits"):  # one made the store
            open_store(folder)
        with pytest.raises(Damaged, match=f"of {COMMITS + 1} commits"):  # and a second look finds the same
            open_store(folder)
        (folder / "raft.db-wal").write_bytes(flipped((folder / "raft.db-wal").read_bytes(), place, 0))
        assert opened(folder) == model(COMMITS), "what is damaged is left as it was, for those who can repair it"


def test_flips_anywhere_in_a_larger_store_are_noticed_or_harmless(killed: Files) -> None:
    rng, stored = random.Random(2), model(COMMITS)
    with quick_folder() as folder:
        write_files(folder, killed)
        assert opened(folder) == stored
        for name in ("raft.db", "raft.db-wal", "raft.db-commits"):
            data, noticed = killed[name], 0
            for _ in range(250):
                place, bit = rng.randrange(len(data)), rng.randrange(8)
                write_files(folder, {**killed, name: flipped(data, place, bit)})
                found = opened(folder)
                assert found in (None, stored), f"{name}: bit {bit} of byte {place} makes another store"
                noticed += found is None
            assert noticed > 240 or name != "raft.db-wal", f"{noticed} of 250 in {name}"


@pytest.mark.parametrize("name", ["raft.db", "raft.db-wal", "raft.db-commits"])
def test_a_file_that_is_gone_or_is_an_earlier_one_is_noticed(name: str) -> None:
    """A lost write or an operator can cause it; a flipped bit cannot."""
    with quick_folder() as folder:
        storage = open_store(folder)
        storage.perform(commit(1))
        storage.close()
        early = read_files(folder)
        storage = open_store(folder)
        for number in range(2, 9):
            storage.perform(commit(number))
        late = read_files(folder)
        storage.close()
        for changed in ({}, {name: early[name]} if name in early else {}):
            write_files(folder, {**{kept: data for kept, data in late.items() if kept != name}, **changed})
            found = opened(folder)
            # The WAL holds every page that has changed since the database was the earlier one.
            assert found == (model(8) if changed and name == "raft.db" else None)
            write_files(folder, late)


def test_pages_of_two_commits_mixed_are_noticed() -> None:
    """A checkpoint wrote one page and lost another: each row is whole, and they are not of one commit. The second
    commit replaces the entry of the first, so that the number of entries says nothing."""
    replaced = Persist(2, "c2", 1, (Entry(1, 2, b"another"),))
    with quick_folder() as folder:
        storage = open_store(folder)
        storage.perform(commit(1))
        storage.close()
        early = read_files(folder)["raft.db"]
        storage = open_store(folder)
        storage.perform(replaced)
        storage.close()
        late, expected, noticed = read_files(folder), apply_persist(model(1), replaced), 0
        for page in range(0, len(early), 4096):
            old = late["raft.db"][:page] + early[page : page + 4096] + late["raft.db"][page + 4096 :]
            write_files(folder, {**late, "raft.db": old})
            found = opened(folder)
            assert found in (None, expected), f"page at {page}"
            noticed += found is None
        assert noticed >= 2, "term and vote are on one page, the log on another"


def commit_of(rival: int, number: int) -> Persist:
    """Return commit ``number`` of one of two histories."""
    return Persist(number, f"c{rival}", None, (Entry(number, number, b"history %d" % rival),))


@pytest.mark.parametrize("commits", [2, 3])
def test_a_database_of_another_history_is_noticed(commits: int) -> None:
    """It has the right number of commits, or one more, so that the number alone would be believed."""
    with quick_folder() as folder:
        open_store(folder).close()
        beginning, ends = read_files(folder), []
        for rival, length in ((1, 2), (2, commits)):
            write_files(folder, beginning)
            storage = open_store(folder)
            for number in range(1, length + 1):
                storage.perform(commit_of(rival, number))
            ends.append(read_files(folder))
            storage.close()
        write_files(folder, {**ends[1], "raft.db-commits": ends[0]["raft.db-commits"]})
        assert opened(folder) is None


def test_a_flip_at_any_byte_of_a_small_store_is_noticed_or_harmless() -> None:
    """A store with a checkpoint behind it: ``raft.db``, its WAL and ``raft.db-commits`` all hold something."""
    rng = random.Random(1)
    with quick_folder() as folder:
        files, stored = killed_store(folder, 3, page_bytes=SMALL_PAGE)
        assert stored == model(3) and set(files) == {"raft.db", "raft.db-wal", "raft.db-commits"}
        noticed = dict.fromkeys(files, 0)
        for name, data in files.items():
            for place in range(len(data)):
                if name == "raft.db-commits" and 64 <= place % 4096 < 4090:
                    continue  # nothing is there, and nobody reads it
                for bit in range(8) if ALL_BITS else (rng.randrange(8),):
                    write_files(folder, {**files, name: flipped(data, place, bit)})
                    found = opened(folder)
                    assert found in (None, stored), f"{name}: bit {bit} of byte {place} makes another store"
                    noticed[name] += found is None
    assert noticed["raft.db-wal"] > len(files["raft.db-wal"]) / 2, noticed
    assert noticed["raft.db"] > 100, noticed
