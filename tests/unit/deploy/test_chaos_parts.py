"""The parts of chaos runs, without a cluster: the schedule, the claims of faults, the comparison of disks, the
figures of the report, and the judgement of the resources of processes. Tests ``chaos/schedule.py``, ``chaos/faults``,
``chaos/verdict`` and ``chaos/report``."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio
from chaos.__main__ import main
from chaos.cluster import versions
from chaos.cluster.supervisor import ALL, Claims, Unfit
from chaos.driver import Outcome, Struck
from chaos.faults import DISK, FAULTS
from chaos.faults.stores import committed_frames
from chaos.report.report import render
from chaos.report.resources import Usage
from chaos.schedule import schedule
from chaos.verdict.compare_disks import Comparison, compare
from chaos.verdict.exactly_once import Copied
from chaos.verdict.exactly_once import compare as compare_copies
from chaos.workload.meter import Meter
from click.testing import CliRunner
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import refuse

MINUTE = 60.0


# --- the faults -------------------------------------------------------------------------------------------------


def test_every_fault_has_a_name_and_words_of_its_own() -> None:
    assert len(FAULTS) > 60
    assert len({fault.words for fault in FAULTS.values()}) == len(FAULTS)


MATRIX = (
    "kill pause cut power bit-flip cut-closed bad-index bad-epochs bad-watermark wiped bad-raft-store disk-full "
    "flush-fails flush-slow clock-jumps membership-while-isolated out-of-memory no-descriptors overload "
    "bit-flip-controller power-bit-flip-controllers old-disk-controller rolling-restart "
    "flapping-link loss resets crash"
)


@pytest.mark.parametrize("beginning", MATRIX.split())
def test_the_matrix_has(beginning: str) -> None:
    assert any(name.startswith(beginning) for name in FAULTS)


def test_a_fault_that_there_is_not_is_refused() -> None:
    told = CliRunner().invoke(main, ["--fault", "kill-nobody"])
    assert told.exit_code == 2 and "no fault 'kill-nobody': --list shows all" in told.output


def test_bits_flip_in_frames_that_hold_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        for number in range(20):
            db.execute("INSERT INTO t VALUES (?)", (number,))
        wal = path.with_name("store.db-wal").read_bytes()
        assert committed_frames(wal) == (32, len(wal)) and committed_frames(b"") == (32, 32)
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        db.execute("INSERT INTO t VALUES (0)")
        wal = path.with_name("store.db-wal").read_bytes()
        start, end = committed_frames(wal)
        assert start < end < len(wal), "frames of the round before are behind"


# --- the schedule -----------------------------------------------------------------------------------------------


def test_the_schedule_is_a_function_of_the_seed() -> None:
    faults = FAULTS.values()
    assert schedule(7, 10 * MINUTE, faults) == schedule(7, 10 * MINUTE, faults)
    assert schedule(7, 10 * MINUTE, faults) != schedule(8, 10 * MINUTE, faults)


def test_every_fault_comes_before_one_comes_again() -> None:
    faults = FAULTS
    strikes = schedule(1, 30 * MINUTE, faults.values())
    assert {strike.fault for strike in strikes[: len(faults)]} == set(faults)


def test_in_a_short_run_nothing_lasts_for_most_of_it() -> None:
    strikes = schedule(1, MINUTE, FAULTS.values())
    assert strikes and all(strike.hold_s <= 5.0 for strike in strikes)
    assert all(0 <= strike.at < MINUTE for strike in strikes)


# --- claims -----------------------------------------------------------------------------------------------------


async def test_two_faults_never_have_the_same_host_and_the_first_one_goes_first() -> None:
    claims, order = Claims(), []

    async def strike(name: str, until: trio.Event, *wanted: str) -> None:
        async with claims.holding(*wanted):
            order.append(name)
            await until.wait()

    async with trio.open_nursery() as nursery:
        first, second, open_end = trio.Event(), trio.Event(), trio.Event()
        open_end.set()
        for name, until, wanted in (
            ("first", first, "host r1"),
            ("elsewhere", second, "host r2"),
            ("same host", open_end, "host r1"),
            ("everything", open_end, ALL),
            ("after that", open_end, "host c1"),
        ):
            nursery.start_soon(strike, name, until, wanted)
            await trio.testing.wait_all_tasks_blocked()
        assert order == ["first", "elsewhere"]
        first.set()
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["first", "elsewhere", "same host"]
        second.set()
    assert order == ["first", "elsewhere", "same host", "everything", "after that"]


async def test_a_fault_that_waits_in_vain_blocks_no_other(autojump_clock: trio.testing.MockClock) -> None:
    claims = Claims()
    async with claims.holding("host r1"):
        with pytest.raises(Unfit, match="its turn did not come"):
            async with claims.holding(ALL, until=trio.current_time() + 1.0):
                raise AssertionError("it came")
        async with claims.holding("host r2"):
            pass


def test_only_one_disk_is_damaged_at_a_time() -> None:
    spoiling = [fault for fault in FAULTS.values() if fault.spoils]
    assert {fault.name for fault in spoiling} >= {
        "bit-flip-leader",
        "wiped-follower",
        "bad-raft-store",
        "cut-last-leader",
    }
    assert all(DISK in fault.claims("r1") for fault in spoiling)


# --- two versions -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (versions.ROOT / ".git").exists(), reason="this tree has no history")
def test_a_process_runs_from_the_source_of_the_given_revision(tmp_path: Path) -> None:
    versions.unpack(versions.resolve("HEAD"), tmp_path)
    program = "import os, tidelog; print(tidelog.__file__, os.environ['TIDELOG_FEATURE_LEVEL_MAX'])"
    for earlier, root in ((True, tmp_path), (False, versions.ROOT)):
        variables = [f"{name}={value}" for name, value in versions.environment(tmp_path, earlier=earlier).items()]
        told = subprocess.run(["env", *variables, sys.executable, "-c", program], capture_output=True, text=True)
        assert told.stdout == f"{root / 'shared' / 'tidelog' / '__init__.py'} 1\n", told.stderr


@pytest.mark.skipif(not (versions.ROOT / ".git").exists(), reason="this tree has no history")
def test_a_revision_that_there_is_not_is_refused() -> None:
    told = CliRunner().invoke(main, ["--old", "nosuch"])
    assert told.exit_code == 2 and "git does not know revision 'nosuch'" in told.output


def test_a_revision_without_feature_levels_gets_no_setting_for_them(tmp_path: Path) -> None:
    assert versions.environment(tmp_path, earlier=True).keys() == {"PYTHONPATH"}
    assert versions.environment(tmp_path, earlier=False) == {"TIDELOG_FEATURE_LEVEL_MAX": "1"}


# --- the comparison of disks ------------------------------------------------------------------------------------


def log_of(folder: Path, values: list[bytes], first: int = 0) -> Path:
    """Write a replica's folder with one batch for each value, from that offset on, and return it."""
    folder.mkdir()
    with (folder / f"{first:020d}.log").open("wb") as segment:
        for offset, value in enumerate(values, first):
            batch = encode_batch([NewRecord(value, None, 0, ())])
            segment.write(stamp_prefix(offset, 1, read_header(batch).crc32c) + batch[16:])
    return folder


def test_equal_logs_are_equal(tmp_path: Path) -> None:
    found = Comparison()
    compare("t/0", {node: log_of(tmp_path / node, [b"a", b"b"]) for node in ("r1", "r2", "r3")}, found)
    assert (found.partitions, found.batches, found.faults) == (1, 2, [])


@pytest.mark.parametrize("other", [[b"a", b"x", b"c"], [b"a", b"b"], [b"a", b"b", b"c", b"d"]])
def test_another_batch_a_missing_and_a_surplus_one_are_found(tmp_path: Path, other: list[bytes]) -> None:
    found = Comparison()
    logs = {"r1": log_of(tmp_path / "r1", [b"a", b"b", b"c"]), "r2": log_of(tmp_path / "r2", other)}
    compare("t/0", logs, found)
    assert len(found.faults) == 1 and "r2 and r1 differ in 1 batches" in found.faults[0]


def test_where_retention_has_come_further_at_one_the_rest_is_compared(tmp_path: Path) -> None:
    found = Comparison()
    logs = {"r1": log_of(tmp_path / "r1", [b"a", b"b", b"c"]), "r2": log_of(tmp_path / "r2", [b"c"], first=2)}
    compare("t/0", logs, found)
    assert (found.batches, found.faults) == (1, [])


def test_a_log_that_ends_in_the_middle_of_a_batch_is_a_fault(tmp_path: Path) -> None:
    found = Comparison()
    folder = log_of(tmp_path / "r1", [b"a", b"b"])
    (segment,) = folder.iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])
    compare("t/0", {"r1": folder, "r2": log_of(tmp_path / "r2", [b"a", b"b"])}, found)
    assert len(found.faults) == 1 and found.faults[0].startswith("t/0: ")


# --- the comparison of copies -----------------------------------------------------------------------------------


def rows(*offsets: int) -> list[tuple[str, bytes]]:
    return [(f"t/0/{offset}", b"%d" % offset) for offset in offsets]


def test_copies_that_are_there_once_and_in_order_are_right() -> None:
    assert compare_copies("copies/0", rows(0, 1, 3), rows(0, 1, 3)) == []


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        (rows(0, 3), "1 records are missing, t/0/1"),
        (rows(0, 1), "1 records are missing, t/0/3"),
        (rows(0, 1, 1, 3), "1 records are there more than once, t/0/1"),
        (rows(0, 1, 2, 3), "1 records are copies of nothing that is committed, t/0/2"),
        ([*rows(0, 1), ("t/0/3", b"x")], "1 records have another value, t/0/3"),
        (rows(0, 3, 1), "another order"),
    ],
)
def test_a_wrong_copy_is_found(copies: list[tuple[str, bytes]], words: str) -> None:
    (fault,) = compare_copies("copies/0", rows(0, 1, 3), copies)
    assert words in fault and fault.startswith("copies/0: ")


def test_where_retention_has_deleted_copies_or_records_the_rest_is_compared() -> None:
    assert compare_copies("c", rows(2, 3), rows(0, 1, 2, 3), source_start=2) == []
    assert compare_copies("c", rows(0, 1, 2, 3), rows(2, 3), start=5) == []
    assert compare_copies("c", rows(0, 1, 2, 3), rows(2), start=5) != []
    assert compare_copies("c", rows(2, 3), rows(0, 3), source_start=2) != []


# --- figures ----------------------------------------------------------------------------------------------------


def test_the_time_without_service_is_that_of_the_partition_that_waited_longest() -> None:
    meter = Meter(began=0.0)
    meter.acks = {("t", 0): [1.0, 2.0, 3.0, 4.0], ("t", 1): [1.0, 3.5, 4.0]}
    assert meter.longest_gap(1.5, 4.0) == 2.0, "from the fault on, not from the ack before it"
    assert meter.longest_gap(3.75, 3.8) == 0.25


def test_a_silence_that_lasts_longer_than_the_fault_counts_in_full() -> None:
    meter = Meter(began=0.0)
    meter.acks = {("t", 0): [1.0, 9.0]}
    assert meter.longest_gap(1.0, 2.0) == 8.0


async def test_errors_of_clients_are_counted_and_raised() -> None:
    meter = Meter()
    with pytest.raises(Exception, match="no room"), meter.operation("acks all"):
        raise refuse("DISK_FULL", "no room")
    assert meter.reasons == {"acks all: DISK_FULL": 1} and not meter.done


def test_memory_that_grows_without_an_end_is_found_and_a_restart_is_not() -> None:
    steady, leaking = Usage(), Usage()
    for at in range(400):
        steady.add("memory", at, (50 << 20) + (30 << 20) * (at % 100 == 0))
        leaking.add("memory", at, (50 << 20) + at * (1 << 20))
    assert steady.growth() == []
    assert leaking.growth() and leaking.growth()[0].startswith("memory grew from")


async def test_the_page_shows_the_findings_and_loads_nothing_from_other_hosts() -> None:
    outcome = Outcome(Meter(began=0.0), seconds=10.0)
    outcome.strikes = [Struck("kill-leader", "r1", 1.0, 2.0, 3.0, 0.5), Struck("bit-flip-leader", note="<nothing>")]
    outcome.meter.done = {"acks all": [(1.0, 0.01), (2.0, 0.1)]}
    good = render(outcome, ["python", "run.py", "--seed", "7"], 7, {"delay": "no netem"})
    assert "Every promise was kept" in good and "&lt;nothing&gt;" in good and "--seed 7" in good
    assert "<b>delay</b>: no netem" in good and "each on a host of its own" in good
    assert "http" not in good
    assert "began as revision &lt;1&gt;" in render(outcome, ["python"], 7, {}, "<1>") and "revision" not in good
    outcome.copied = Copied(rows=1234, batches=5, starts=2)
    assert "Spark copied each of 1,234" in render(outcome, ["python"], 7, {}) and "Spark copied" not in good
    outcome.faults = ["lost_write: <b>"]
    bad = render(outcome, ["python"], 7, {"hosts": "not root"})
    assert "Every promise" not in bad and "lost_write: &lt;b&gt;" in bad
    assert "through a proxy each" in bad and "<b>loss-30</b>: not root" in bad and "<b>cut-halves</b>" not in bad
    assert set(FAULTS) >= {"kill-leader", "bit-flip-leader"}
