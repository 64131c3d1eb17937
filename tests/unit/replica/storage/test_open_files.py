"""Open files are bounded: what rests is closed and opened again; nothing that could be lost by that is closed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from random import Random

import pytest
from support.node_contexts import node_context
from tidelog.runtime.disk import File, RealDisk
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.effects import StartJob, Stop
from tidelog_replica.jobs import SYNC_FILES, run_job
from tidelog_replica.maintenance.file_pool import FilePoolFlusher
from tidelog_replica.storage.open_files import OpenFiles


def make(limit: int, *names: str) -> tuple[SimDisk, OpenFiles, list[File]]:
    """A pool, and files with their own name in them, synced."""
    disk = SimDisk()
    disk.mkdir("/d")
    pool = OpenFiles(disk, limit)
    files = []
    for name in names:
        file = pool.open(f"/d/{name}", create=True)
        file.pwritev([name.encode()], 0)
        file.sync()
        files.append(file)
    return disk, pool, files


def test_no_more_files_are_open_than_the_limit_says_and_all_can_be_used():
    _, pool, files = make(2, "a", "b", "c", "d")
    for _ in range(3):
        assert [file.pread(9, 0) for file in files] == [b"a", b"b", b"c", b"d"]
        assert pool.opened == 2
    assert [file.size() for file in files] == [1, 1, 1, 1]
    for file in files:
        file.close()
    assert pool.opened == 0


def test_the_file_whose_last_use_is_longest_ago_is_closed(monkeypatch: pytest.MonkeyPatch):
    disk, pool, (a, b, _) = make(3, "a", "b", "c")
    a.size()
    pool.open("/d/e", create=True)
    opened: list[str] = []
    real = disk.open
    monkeypatch.setattr(disk, "open", lambda path, create=False: opened.append(path) or real(path, create=create))
    a.size()
    assert opened == []
    b.size()
    assert opened == ["/d/b"]


def test_a_file_with_unsynced_writes_is_never_closed():
    disk, pool, (a, b, c) = make(1, "a", "b", "c")
    a.pwritev([b"new"], 0)
    b.truncate(0)
    assert pool.opened == 2, "the limit is passed where nothing may be closed"
    c.size()
    assert pool.opened == 2, "c went at once"
    disk.fail_syncs(errno.EIO)
    with pytest.raises(OSError, match="simulated"):
        a.sync()
    disk.heal()
    pool.open("/d/e", create=True)
    assert (a.file, b.file).count(None) == 0, "a sync that failed has saved nothing"  # type: ignore[attr-defined]
    b.sync()
    assert pool.opened == 1, "b went, and what was opened last"


def test_a_write_during_a_sync_counts_as_unsynced(monkeypatch: pytest.MonkeyPatch):
    _, _, (a, b) = make(1, "a", "b")
    a.pwritev([b"x"], 1)
    inner = a.file  # type: ignore[attr-defined]
    sync = inner.sync
    monkeypatch.setattr(inner, "sync", lambda: (a.pwritev([b"y"], 2), sync()))
    a.sync()
    b.size()
    assert inner is a.file, "it is still open"  # type: ignore[attr-defined]
    monkeypatch.undo()
    a.sync()
    b.size()
    assert a.file is None  # type: ignore[attr-defined]


def test_a_file_that_lost_its_name_is_still_the_same_file():
    _, pool, (a, b, c) = make(1, "a", "b", "c")
    pool.unlink("/d/a")
    pool.rename("/d/c", "/d/b")
    other = pool.open("/d/a", create=True)
    for _ in range(2):
        assert [file.pread(9, 0) for file in (a, b, c, other)] == [b"a", b"b", b"c", b""]
    pool.write_atomic("/d/a", b"new")
    assert other.pread(9, 0) == b""
    for file in (a, b, c, other):
        file.close()
    assert pool.opened == 0


def test_a_closed_file_cannot_be_used():
    _, pool, (a, _) = make(1, "a", "b")
    a.close()
    with pytest.raises(OSError, match="is closed"):
        a.size()
    assert pool.opened == 1


def test_it_is_a_disk_like_the_one_below():
    """Both disks get the same random calls, over many seeds."""
    for seed in range(30):
        rng, plain = Random(seed), SimDisk()
        pooled = SimDisk()
        disks = [plain, OpenFiles(pooled, 2)]
        open_files: list[list[File]] = []
        for disk in disks:
            disk.mkdir("/d")
        for _ in range(80):
            action, path = rng.randrange(9), f"/d/{rng.randrange(4)}"
            at = rng.randrange(len(open_files)) if open_files else -1
            data, position = bytes([rng.randrange(256)]) * 3, rng.randrange(6)
            outcomes = []
            for number, disk in enumerate(disks):
                try:
                    if action == 0:
                        file: object = disk.open(path, create=position > 2)
                    elif action == 1:
                        file = disk.unlink(path)
                    elif action == 2:
                        file = disk.rename(path, f"/d/{position}")
                    elif action == 3:
                        file = disk.write_atomic(path, data)
                    elif at < 0:
                        continue
                    else:
                        one = open_files[at][number]
                        file = (
                            one.pwritev([data], position)
                            if action in (4, 5)
                            else one.pread(9, 0)
                            if action == 6
                            else one.sync()
                            if action == 7
                            else one.truncate(position)
                        )
                except OSError as error:
                    file = error.errno
                outcomes.append(file)
            if action == 0 and not isinstance(outcomes[0], int):
                open_files.append(outcomes)  # type: ignore[arg-type]
            else:
                assert outcomes[:1] == outcomes[1:], (seed, action)
        plain.crash(Random(1))
        pooled.crash(Random(1))
        assert {n: plain.read(f"/d/{n}") for n in plain.listdir("/d")} == {
            n: pooled.read(f"/d/{n}") for n in pooled.listdir("/d")
        }


def test_threads_share_it(tmp_path: Path):
    pool = OpenFiles(RealDisk(), 3)
    files = [pool.open(str(tmp_path / str(number)), create=True) for number in range(12)]
    failed: list[BaseException] = []
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def work(seed: int) -> None:
        rng = Random(seed)
        try:
            for turn in range(150):
                number = rng.randrange(4) * 3 + seed  # each thread writes files of its own, and reads all
                files[number].pwritev([f"{number}/{turn};".encode().ljust(10)], 0)
                if rng.random() < 0.7:
                    files[number].sync()
                other = rng.randrange(12)
                data = files[other].pread(10, 0)
                assert not data or data.startswith(f"{other}/".encode())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for file in files:
        file.sync()
    assert pool.opened <= 3 and len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    for file in files:
        file.close()
    assert pool.opened == 0


# --- files that nobody flushes ---------------------------------------------------------------------------


def written(limit: int, count: int) -> tuple[SimDisk, OpenFiles, list[File]]:
    """Files of topics that are never flushed."""
    disk, pool, files = make(limit)
    for number in range(count):
        file = pool.open(f"/d/{number}", create=True)
        file.pwritev([b"%d" % number], 0)
        files.append(file)
    disk.sync_dir("/d")
    return disk, pool, files


def test_where_most_are_unsynced_a_job_syncs_those_that_were_not_used_for_longest():
    disk, pool, files = written(8, 6)
    assert not pool.crowded
    pool.open("/d/6", create=True).pwritev([b"6"], 0)
    files[0].pwritev([b"x"], 1)
    assert pool.crowded and disk.stable_size("/d/1") == 0
    context = node_context(disk=pool)
    effects, flusher = context.effects, FilePoolFlusher(context)
    flusher.on_input_over()
    flusher.on_input_over()
    (effect,) = effects.drain()
    assert isinstance(effect, StartJob) and effect.key == SYNC_FILES
    assert run_job(effect.job) is None
    effects.jobs.on_job(effect.key, effect.job, None, 0.0)
    assert [disk.stable_size(f"/d/{number}") for number in range(7)] == [0, 1, 1, 1, 0, 0, 0]
    flusher.on_input_over()
    assert effects.drain() == [] and not pool.crowded
    for number in range(4):
        pool.open(f"/d/more{number}", create=True).sync()
    assert pool.opened == 8, "what is synced is closed when there is need"
    assert [file.pread(9, 0) for file in files] == [b"0x", b"1", b"2", b"3", b"4", b"5"]


def test_where_the_job_comes_too_late_the_next_opening_waits_for_the_disk():
    disk, pool, files = written(16, 20)
    assert pool.opened == 20 and disk.stable_size("/d/0") == 0
    for number in range(20, 60):
        pool.open(f"/d/{number}", create=True).pwritev([b"x"], 0)
        assert pool.opened <= 20
    assert disk.stable_size("/d/0") == 1 and [file.pread(9, 0) for file in files[:2]] == [b"0", b"1"]


@pytest.mark.parametrize("late", [False, True])
def test_a_sync_that_fails_for_nobody_in_particular_ends_the_server_and_is_never_tried_again(late: bool):
    disk, pool, files = written(16, 20)
    disk.fail_syncs(errno.EIO)
    if late:
        pool.open("/d/20", create=True)
    else:
        pool.tidy()
    disk.heal()
    assert "/d/0: " in pool.failure
    with pytest.raises(OSError, match="failed earlier"):
        files[0].sync()
    assert pool.opened >= 20, "it is not closed either"
    context = node_context(disk=pool)
    effects, flusher = context.effects, FilePoolFlusher(context)
    flusher.on_input_over()
    flusher.on_input_over()
    (effect,) = effects.drain()
    assert isinstance(effect, Stop) and "/d/0" in effect.reason


def test_a_file_that_is_closed_while_a_thread_syncs_it_keeps_its_descriptor_until_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
):
    _, pool, files = written(2, 3)
    inner = files[0].file  # type: ignore[attr-defined]
    sync = inner.sync
    monkeypatch.setattr(inner, "sync", lambda: (files[0].close(), inner.size(), sync()))
    pool.tidy()
    with pytest.raises(OSError, match="closed"):
        inner.size()
    assert pool.opened == 2 and not pool.failure
