"""What the real disk has promised is there after a loss of power at any system call; and the simulated disk promises
the same."""

from __future__ import annotations

import json
import sys
from random import Random

import pytest
from tidelog.testing.hardware.disk import SimDisk

from crash_points import recording
from crash_points.calls import Caller
from crash_points.recording import Call, record
from crash_points.replay import TESTS, run, scratch
from crash_points.volume import SECTOR, Fate, Tree, Volume

needs_strace = pytest.mark.skipif(
    bool(recording.missing()), reason=f"the real disk was NOT checked: {recording.missing()}"
)


@needs_strace
@pytest.mark.parametrize("seed", [0, 1])
def test_promised_data_survives_a_power_loss_at_any_system_call(seed):
    replayed = run(seed, rounds=1, losses=3)
    assert not replayed.fault, replayed.fault
    assert replayed.calls > 400 and replayed.outcomes > 1000, "a replay that small proves nothing"


class Outcome(Random):
    """A power loss that takes everything which was not synced, or nothing."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__(0)
        self._place = -1 if kept else 0

    def random(self) -> float:
        """Kept where that has a probability of 1."""
        return 0.5

    def choice(self, choices):  # type: ignore[no-untyped-def]
        """Of shares the last or the first, which are all and nothing; of fates the first, which is "lost"."""
        return choices[self._place]


def left_by(disk: SimDisk, *, kept: bool) -> Tree:
    """The files that a power loss leaves on a simulated disk."""
    after = disk.clone()
    after.crash(Outcome(kept=kept))
    return {path.removeprefix("/data/"): after.read(path) for path in after.files()}


@needs_strace
@pytest.mark.parametrize("seed", range(6))
def test_the_simulated_disk_answers_like_the_real_one_and_holds_the_same_to_be_durable(seed):
    simulated, heard = SimDisk(), list[object]()
    with scratch() as folder:
        root, results = folder / "data", folder / "results"
        root.mkdir()
        simulated.mkdir(str(root))
        caller = Caller(simulated, str(root), seed)
        command = [sys.executable, "-m", "crash_points.calls", str(root), str(results), str(seed)]
        volume = Volume(str(root), str(results), lambda data: heard.append(json.loads(data)))
        for call in record(command, TESTS, folder / "calls"):
            known = len(heard)
            volume.apply(call)
            if len(heard) == known:
                continue
            where = f"call {known}"
            assert caller.step() == heard[-1], where
            for kept in (False, True):
                real = volume.survivors(Fate(float(kept), Random(0)))
                files = {path: data for path, data in real.items() if data is not None}
                model = left_by(simulated, kept=kept)
                assert {path.removeprefix(f"{root}/"): data for path, data in model.items()} == files, where
    assert len(heard) == 400


# --- the volume ------------------------------------------------------------------------------------------


def text(data: bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def opened(path: bytes, fd: int, flags: str = "O_RDWR|O_CREAT") -> Call:
    return Call("openat", ("AT_FDCWD", text(path), flags, "0640"), fd)


def written(fd: int, data: bytes, position: int) -> Call:
    return Call("pwrite64", (str(fd), text(data), str(len(data)), str(position)), len(data))


def synced(fd: int) -> Call:
    return Call("fsync", (str(fd),), 0)


def outcomes(*calls: Call) -> set[bytes | None]:
    """What may be left of the file /v/a."""
    volume = Volume("/v", "/beside", lambda data: None)
    for call in calls:
        volume.apply(call)
    fates = (Fate(kept, Random(seed)) for kept in (0.0, 0.5, 1.0) for seed in range(200))
    return {volume.survivors(fate).get("a") for fate in fates}


def test_a_synced_file_may_be_lost_until_its_directory_is_synced():
    calls = [opened(b"/v/a", 3), written(3, b"ab", 0), synced(3)]
    assert outcomes(*calls) == {b"ab", None}
    assert outcomes(*calls, opened(b"/v", 4, "O_RDONLY|O_DIRECTORY"), synced(4)) == {b"ab"}


def test_writes_that_were_not_synced_survive_in_any_subset_and_are_torn_between_sectors():
    made = [opened(b"/v/a", 3), opened(b"/v", 4, "O_RDONLY|O_DIRECTORY"), synced(4)]
    assert outcomes(*made, written(3, b"a", 0), written(3, b"b", 1)) >= {b"", b"a", b"ab", b"\0b", b"\0\0"}
    one, two = b"x" * SECTOR, b"y" * 3
    found = outcomes(*made, written(3, one + two, 0))
    assert found == {b"", one, one + two, bytes(SECTOR) + two, one + bytes(3), bytes(SECTOR + 3)}


def test_a_rename_is_there_or_not_and_takes_the_bytes_that_are_durable():
    made = [opened(b"/v/a.new", 3), written(3, b"ab", 0)]
    rename = Call("rename", (text(b"/v/a.new"), text(b"/v/a")), 0)
    named = [opened(b"/v", 4, "O_RDONLY|O_DIRECTORY"), synced(4)]
    assert outcomes(*made, rename) == {None, b"", b"ab", b"\0\0"}
    assert outcomes(*made, synced(3), rename) == {None, b"ab"}
    assert outcomes(*made, synced(3), rename, *named) == {b"ab"}


@pytest.mark.parametrize(
    "call",
    [
        Call("rename", (text(b"/v/a"), text(b"/v/d/a")), 0),
        Call("openat", ("AT_FDCWD", text(b"/v/a"), "O_WRONLY|O_APPEND"), 5),
        Call("link", (text(b"/v/a"), text(b"/v/b")), 0),
        Call("fallocate", ("3", "FALLOC_FL_KEEP_SIZE", "0", "9"), 0),
    ],
    ids=lambda call: call.name,
)
def test_a_call_that_the_model_does_not_know_is_an_error(call):
    volume = Volume("/v", "/beside", lambda data: None)
    volume.apply(Call("mkdir", (text(b"/v/d"), "0750"), 0))
    volume.apply(opened(b"/v/a", 3))
    with pytest.raises(ValueError, match=r"not understood|invalid literal"):
        volume.apply(call)
