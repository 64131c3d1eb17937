"""Records the script, and loses the power at every one of its system calls."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from crash_points.promises import Promises
from crash_points.recording import Call, record
from crash_points.volume import Fate, Volume

TESTS = Path(__file__).parent.parent
MEMORY = Path("/dev/shm")
"""A file system in memory, where syncs cost nothing; most of the time is spent on opening the outcomes."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one recording, replayed to its end or to the first broken promise."""

    calls: int
    """The number of system calls after which the power was lost."""
    outcomes: int
    """The number of different outcomes that were opened."""
    fault: str
    """The broken promise; "" if all were kept."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory and delete it afterwards."""
    with tempfile.TemporaryDirectory(prefix="tidelog-crash-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def run(seed: int, rounds: int, losses: int, mutant: str = "") -> Replayed:
    """Record the script with this seed, replay it and return the result. ``losses``: random power losses after each
    call, in addition to one that loses everything unsynced and one that loses nothing. ``mutant``: the name of a rule
    that the recorded program breaks."""
    with scratch() as folder:
        root, beside = folder / "data", folder / "promises"
        root.mkdir()
        arguments = [str(root), str(beside), str(seed), str(rounds), *([mutant] if mutant else [])]
        command = [sys.executable, "-m", "crash_points.script", *arguments]
        calls = record(command, TESTS, folder / "calls")
        return replay(calls, str(root), str(beside), folder, Random(seed), losses)


def replay(calls: Sequence[Call], root: str, beside: str, folder: Path, random: Random, losses: int) -> Replayed:
    """Lose the power after each call that changes something, in ``losses`` + 2 ways, and return the result."""
    promises, changed = Promises(), 0
    volume = Volume(root, beside, promises.take)
    for number, call in enumerate(calls):
        if not volume.apply(call):
            continue
        changed += 1
        shares = (0.0, 1.0, *(random.choice((0.2, 0.5, 0.8)) for _ in range(losses)))
        for share in shares:
            fate = Fate(share, random)
            try:
                promises.check(volume.survivors(fate), folder)
            except Exception as error:
                lost = "all that was not synced is lost" if not share else f"{share:.0%} of it are kept"
                at = f"after call {number} of {len(calls)}, {call.name}, where {lost}"
                return Replayed(changed, promises.checked, f"{type(error).__name__}: {error}, {at}")
    return Replayed(changed, promises.checked, "")
