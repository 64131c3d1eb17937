"""One call of the disk fails, whichever it is: no file stays open, and nothing that was durable is lost. Tests
``tidelog_replica/storage/log.py`` and ``runtime/disk.py``."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from support.log_builders import (
    END,
    PATH,
    SEGMENTS,
    SMALL,
    STORED,
    after_power_losses,
    build,
    content,
    open_log,
    produced,
    set_mark,
    sound,
)
from tidelog.batch.format import read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import LogStartCheckpoint
from tidelog_replica.storage.compaction import Compaction, LatestOffsets, source_of
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.producer_snapshots import RebuildProducerState
from tidelog_replica.storage.recovery import reset
from tidelog_replica.storage.recovery.damage import BeginBehind, CloseHole, FillHole, Hole, Quarantine, StartOver
from tidelog_replica.storage.segment_scrub import Scrub, ScrubTarget

CALLS = ("open", "read", "write_atomic", "rename", "unlink", "listdir", "mkdir", "rmtree", "sync_dir")
OF_FILES = ("size", "pread", "pwritev", "truncate", "sync")


class Counted:
    """A disk whose call number ``fails_at`` fails with ``error``; ``opened`` files are not closed."""

    def __init__(self, disk: SimDisk, error: int = 0, fails_at: int = -1) -> None:
        self.disk, self.error, self.left, self.opened = disk, error, fails_at, 0

    def call(self, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            raise OSError(self.error, "simulated")
        return action(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        action = getattr(self.disk, name)
        if name not in CALLS:
            return action

        def run(*arguments: Any, **options: Any) -> Any:
            found = self.call(action, *arguments, **options)
            return CountedFile(self, found) if name == "open" else found

        return run


class CountedFile:
    def __init__(self, disk: Counted, file: Any) -> None:
        self._disk, self._file = disk, file
        disk.opened += 1

    def close(self) -> None:
        self._file.close()
        self._disk.opened -= 1

    def __getattr__(self, name: str) -> Any:
        action = getattr(self._file, name)
        return (lambda *arguments: self._disk.call(action, *arguments)) if name in OF_FILES else action


def torn() -> SimDisk:
    disk = build(durable=6, high_watermark=3)
    disk.replace(SEGMENTS[-1], disk.read(SEGMENTS[-1])[:-3])
    return disk


def without(*names: str) -> Callable[[], SimDisk]:
    def made() -> SimDisk:
        disk = build()
        for name in names:
            disk.unlink(f"{PATH}/{name}")
        return disk

    return made


def to_be_reset() -> SimDisk:
    disk = build()
    reset.begin(disk, PATH, LogStartCheckpoint(20, 3), ProducerState().to_bytes())
    return disk


def lacking() -> SimDisk:
    disk = build(high_watermark=END)
    set_mark(disk, 6)
    disk.replace(SEGMENTS[-1], disk.read(SEGMENTS[-1])[:-3])
    return disk


def retired() -> SimDisk:
    disk = build()
    log = open_log(disk)
    old = {path: disk.read(path) for path in SEGMENTS}
    log.advance_start(9)
    for path, data in old.items():
        disk.replace(path, data)
    return disk


STATES = {
    "new": SimDisk,
    "whole": build,
    "torn": torn,
    "no epochs": without("leader-epochs"),
    "no indexes": without("00000000000000000000.index", "00000000000000000006.index"),
    "no mark": without("recovery-mark"),
    "to be reset": to_be_reset,
    "half retired": retired,
    "lacking": lacking,
}
DOUBLY = {"torn": 6, "no mark": 12, "lacking": 6}
"""Where another file is unreadable besides, only so much was known to be synced."""


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE], ids=["EIO", "EMFILE"])
@pytest.mark.parametrize("state", STATES)
def test_an_opening_whose_call_fails_leaves_no_file_open_and_is_done_again(state: str, error: int) -> None:
    config = TopicConfig(flush="os") if state == "lacking" else SMALL
    expected, fails_at = open_log(STATES[state](), config), 0
    while True:
        disk = Counted(STATES[state](), error, fails_at)
        fails_at += 1
        try:
            log = Log.open(disk, PATH, config)  # type: ignore[arg-type]
        except OSError:
            assert disk.opened == 0, f"call {fails_at}"
        else:
            missed = disk.left >= 0
            with suppress(OSError):
                log.close()
            assert disk.opened == 0, f"call {fails_at}"
            if missed:
                break
        again = open_log(disk.disk, config)
        sound(again)
        if state in ("to be reset", "half retired") and error == errno.EIO and again.start == 0:
            assert content(again) == STORED, "what tells the start was unreadable"
        elif error == errno.EIO and state in DOUBLY:
            assert again.end >= DOUBLY[state] and content(again) == content(expected)[: len(content(again))]
        else:
            assert (again.start, again.end) == (expected.start, expected.end), f"call {fails_at}"
            assert content(again) == content(expected)


def hole(disk: SimDisk) -> Hole:
    found = Quarantine(disk, PATH, 6).run()
    assert isinstance(found, Hole)
    return found


def filled(disk: SimDisk) -> Hole:
    found = hole(disk)
    FillHole(disk, PATH, found, 6, 0, b"".join(STORED[5:9])).run()
    return found


def behind(disk: SimDisk) -> LogStartCheckpoint:
    """The first segment is set aside; where the second begins."""
    log = open_log(disk)
    _, chain = log.chain_at(6)
    assert isinstance(Quarantine(disk, PATH, 0).run(), Hole)
    return LogStartCheckpoint(6, log.epochs.epoch_before(6), chain)


def epochs_of(disk: Counted) -> LeaderEpochCache:
    return LeaderEpochCache(open_log(disk.disk).epochs.entries)


Prepare = Callable[[SimDisk], Any]
Run = Callable[[Any, Any], object]

JOBS: dict[str, tuple[Prepare, Run]] = {
    "set aside": (lambda disk: None, lambda disk, given: Quarantine(disk, PATH, 6).run()),
    "set aside the last": (lambda disk: None, lambda disk, given: Quarantine(disk, PATH, 12).run()),
    "start over": (lambda disk: None, lambda disk, given: StartOver(disk, PATH).run()),
    "fill": (hole, lambda disk, given: FillHole(disk, PATH, given, 6, 0, b"".join(STORED[5:9])).run()),
    "close": (filled, lambda disk, given: CloseHole(disk, PATH, given).run()),
    "begin behind": (behind, lambda disk, given: BeginBehind(disk, PATH, given, ProducerState().to_bytes()).run()),
    "scrub": (
        lambda disk: ScrubTarget.of(open_log(disk).segments[1]),
        lambda disk, given: Scrub(
            disk, given, given.first_position, 1 << 20, LeaderEpochCache(open_log(disk.disk).epochs.entries)
        ).run(),
    ),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_on_a_closed_log_whose_call_fails_leaves_no_file_open(job: str) -> None:
    prepare, run = JOBS[job]
    fails_at = 0
    while True:
        sim = build()
        given = prepare(sim)
        disk = Counted(sim, errno.EIO, fails_at)
        fails_at += 1
        try:
            run(disk, given)
        except OSError:
            assert disk.opened == 0, f"call {fails_at}"
        if disk.left >= 0:
            assert disk.opened == 0
            break


def jobs_of(log: Log) -> Sequence[Any]:
    snapshot = log._snapshot_of(log.producers.copy())
    segments = [source_of(segment) for segment in log.segments.closed()]
    compaction = Compaction(log._disk, PATH, segments, 0, 12, 9000, 0, LatestOffsets(99), (), log.generation)
    log._snapshots.write(7, log.chain_at(7)[1], log.producers.to_bytes())
    twins = tuple(segment.read_only_view() for segment in log.segments.up_to(log.segments[1].base))
    recall = RebuildProducerState(log._disk, PATH, twins, 8, log.producers.copy(), log.generation)
    return [snapshot, compaction, recall, log.begin_advance(9)]


@pytest.mark.parametrize("number", range(4), ids=["snapshot", "compaction", "recall", "advance"])
def test_a_job_on_an_open_log_whose_call_fails_leaves_no_file_of_its_own_open(number: int) -> None:
    config = TopicConfig(segment_max_bytes=400, cleanup="compact,delete")
    fails_at = 0
    while True:
        disk = Counted(build(), errno.EIO)
        log = Log.open(disk, PATH, config)  # type: ignore[arg-type]
        job = jobs_of(log)[number]
        assert job is not None
        before, disk.left = disk.opened, fails_at
        fails_at += 1
        try:
            job.run()
        except OSError:
            assert disk.opened <= before, f"call {fails_at}"
        if disk.left >= 0:
            assert disk.opened <= before
            break
        disk.left = -2
        log.close()
        try:
            again = open_log(disk.disk)
        except CorruptLog:
            pytest.fail(f"call {fails_at}: nothing was damaged")
        sound(again)
        assert again.end == END and content(again) == STORED[-len(content(again)) :]


def test_after_a_power_loss_a_log_that_begins_behind_a_hole_knows_the_producers_of_before() -> None:
    known = ProducerState([read_header(produced(3, 1, producer=7, sequence=0))]).to_bytes()
    given, begun = behind(build()), 0

    def damaged() -> SimDisk:
        disk = build()
        behind(disk)
        for name in disk.listdir(PATH):
            if name.startswith("producers-"):  # as after a power loss: snapshots at rolls are not synced
                disk.unlink(f"{PATH}/{name}")
        disk.sync_dir(PATH)
        return disk

    def begin(disk: SimDisk) -> Callable[[], object]:
        return BeginBehind(disk, PATH, given, known).run

    for after in after_power_losses(damaged, begin, seeds=25, changes=4):
        with suppress(CorruptLog):  # it has not begun there yet
            log = open_log(after)
            assert log.start == 6 and 7 in log.producers.snapshot()
            begun += 1
    assert begun
