"""What is asked of the operating system, and how the same is done where Linux's calls are missing."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.operating_system import (
    boot_id,
    drop_from_cache,
    process_state,
    reserve,
    sync_all,
    sync_data,
    wait_until_ended,
)

F_FULLFSYNC = 51


@pytest.fixture(params=["linux", "darwin"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either system: what it has in place of the calls of Linux works on Linux, too."""
    monkeypatch.setattr(sys, "platform", request.param)
    return str(request.param)


class Syncs:
    """The calls that sync, as a kernel of macOS gets them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.refusal = 0
        """Error of every ``F_FULLFSYNC``; 0: it succeeds."""

    def control(self, descriptor: int, command: int) -> int:
        assert command == F_FULLFSYNC
        self.calls.append(("F_FULLFSYNC", descriptor))
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return 0

    def sync(self, descriptor: int) -> None:
        self.calls.append(("fsync", descriptor))


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    made = Syncs()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", made.control)
    monkeypatch.setattr(os, "fsync", made.sync)
    monkeypatch.delattr(os, "fdatasync")
    return made


@pytest.mark.parametrize("call", [sync_data, sync_all])
def test_a_sync_on_macos_reaches_the_medium(syncs: Syncs, call: Callable[[int], None]) -> None:
    call(5)
    assert syncs.calls == [("F_FULLFSYNC", 5)]


@pytest.mark.parametrize("refusal", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_file_system_without_full_syncs_gets_an_ordinary_one(syncs: Syncs, refusal: int) -> None:
    syncs.refusal = refusal
    sync_data(5)
    assert syncs.calls == [("F_FULLFSYNC", 5), ("fsync", 5)]


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC, errno.EBADF])
def test_a_failed_full_sync_is_not_tried_again_as_another(syncs: Syncs, failure: int) -> None:
    syncs.refusal = failure
    with pytest.raises(OSError) as raised:
        sync_data(5)
    assert raised.value.errno == failure
    assert syncs.calls == [("F_FULLFSYNC", 5)]


def test_the_real_disk_makes_files_names_and_renames_durable_by_full_syncs(syncs: Syncs, tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "log"), create=True)
    file.sync()
    file.close()
    RealDisk().write_atomic(str(tmp_path / "checkpoint"), b"1")
    RealDisk().sync_dir(str(tmp_path))
    assert [call for call, _ in syncs.calls] == ["F_FULLFSYNC"] * 4


def test_reserved_space_is_really_taken(system: str, tmp_path: Path) -> None:
    size = (1 << 20) + 4096
    with (tmp_path / "reserve").open("wb") as file:
        reserve(file.fileno(), size)
    found = (tmp_path / "reserve").stat()
    assert found.st_size == size and found.st_blocks * 512 >= size


def test_a_full_disk_is_told_when_zeros_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError) as raised:
        reserve(full.fileno(), 10)
    assert raised.value.errno == errno.ENOSPC


def test_pages_that_cannot_be_dropped_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "posix_fadvise")
    with (tmp_path / "log").open("wb") as file:
        drop_from_cache(file.fileno(), 0, 4096)


def test_a_process_is_known_by_its_start_and_its_end_is_seen(system: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        state, started = process_state(process.pid)
        assert state in "RSD" and started > 0
        assert process_state(process.pid)[1] == started
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert process_state(process.pid) == ("T", started)
        process.kill()
        wait_until_ended(process.pid, 60)
        assert process_state(process.pid) == ("Z", started), "it has not been waited for"
        process.wait()
        assert process_state(process.pid) == ("", -1)
        wait_until_ended(process.pid, 60)


def test_no_process_has_the_number_of_one_that_was_stopped(system: str) -> None:
    assert process_state(0) == ("", -1)


def test_waiting_for_a_process_that_runs_on_ends(system: str) -> None:
    wait_until_ended(os.getpid(), 0.0)


def test_start_times_do_not_depend_on_language_and_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    seen = set()
    for language, zone in ("C", "UTC"), ("de_DE.UTF-8", "Asia/Tokyo"):
        monkeypatch.setenv("LC_ALL", language)
        monkeypatch.setenv("TZ", zone)
        seen.add(process_state(os.getpid())[1])
    assert len(seen) == 1


def test_the_run_of_the_system_is_what_sysctl_says_on_macos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "sysctl"
    program.write_text('#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo 6D4C7E2A\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert boot_id() == "6D4C7E2A"
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert boot_id() == ""
