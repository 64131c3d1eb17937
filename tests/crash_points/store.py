"""Power losses of a controller's store: its runs are recorded, and the power is lost at every system call.

The real ``RaftStorage`` opens what is left. It must hold what its last finished commit left, or the one in progress,
and must not be called damaged. With one more bit flipped it may be damaged, but it must not open in an older state.

``python -m crash_points.store`` runs more seeds and more power losses than ``make test``. Exit code 0 when every
promise was kept.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.raft_store_files import flipped, opened
from tidelog_controller.raft.log import PersistentState

from crash_points.recording import Call, missing, record
from crash_points.replay import TESTS, Replayed, scratch
from crash_points.store_script import history, states
from crash_points.volume import Fate, Tree, Volume

LIVES = (
    (("old", "close"), ("new", "kill"), ("new", "close")),
    (("new", "close"), ("new", "kill"), ("new", "close")),
    (("old", "kill"), ("new", "close"), ("new", "kill")),
    (("new", "kill"), ("new", "kill"), ("new", "close")),
)
"""The runs of a store, by seed: the release, and how the process ends."""
EXHAUSTIVE = 6
"""Up to so many unsynced changes, every subset of them is tried."""
_DESCRIPTORS = 64


@dataclass(frozen=True, slots=True)
class Subset(Fate):
    """A fate in which the unsynced changes at these places are kept and none is torn. ``asked`` counts the
    changes."""

    places: int
    asked: list[None]

    def keeps(self) -> bool:
        """Return whether the next change is kept."""
        self.asked.append(None)
        return bool(self.places >> (len(self.asked) - 1) & 1)

    def tears(self) -> bool:
        """Return whether writes are torn: never here."""
        return False


def fates(volume: Volume, random: Random, losses: int) -> Iterator[Fate]:
    """Yield the fates to try: every subset of the changes if they are few, and ``losses`` random ones with torn
    writes."""
    everything = Subset(1.0, random, -1, [])
    volume.survivors(everything)
    pending = len(everything.asked)
    if pending <= EXHAUSTIVE:
        yield from (Subset(0.0, random, places, []) for places in range(1 << pending))
    else:
        yield from (Fate(0.0, random), Fate(1.0, random))
        yield from (Subset(0.0, random, 1 << place, []) for place in range(pending))
        yield from (Subset(0.0, random, ~(1 << place), []) for place in range(pending))
    if pending:
        yield from (Fate(random.choice((0.2, 0.5, 0.8)), random) for _ in range(losses))


class Checker:
    """Opens the outcomes of power losses and checks them."""

    def __init__(self, seed: int, folder: Path, first: str, flips: bool) -> None:
        self._states = states(seed, 40)
        self._made = [persist for persist, _ in itertools.islice(history(seed), 40)]
        self._folder = folder
        self._flips = flips
        self._chained = first != "old"
        self._random = Random(seed)
        self._done = None if first == "old" else 0
        self._seen: set[tuple[int, int]] = set()
        self.checked = 0

    def take(self, data: bytes) -> None:
        """Take over a promised commit. Before the first one no store exists."""
        number, *old = data.split()
        self._done, self._chained = int(number), not old

    def check(self, tree: Tree) -> None:
        """Open an outcome. Raises ``AssertionError`` if a promise is not kept."""
        if self._done is None:
            return
        key = self._done, hash(frozenset(tree.items()))
        if key in self._seen:
            return
        self._seen.add(key)
        self.checked += 1
        allowed = self._states[self._done : self._done + 2]
        with laid_out(tree, self._folder) as store:
            found = opened(store)
            assert found is not None, f"commit {self._done} is done, and the store is called damaged"
            assert found in allowed, f"commit {self._done} is done, and {_number(self._states, found)} is found"
        files = [path for path, data in tree.items() if data]
        if self._flips and self._chained and files:
            path = self._random.choice(files)
            data = tree[path]
            assert data is not None
            place = self._random.randrange(len(data))
            with laid_out({**tree, path: flipped(data, place, self._random.randrange(8))}, self._folder) as store:
                found = opened(store)
            number = _number(self._states, found)
            assert found is None or found in allowed, f"commit {self._done}, a flip in {path}: {number} is found"


@contextmanager
def laid_out(tree: Tree, folder: Path) -> Iterator[Path]:
    """Yield the folder of the store in a directory with these files, and delete it afterwards."""
    root = folder / "left"
    root.mkdir()
    for path, data in sorted(tree.items()):
        (root / path).mkdir() if data is None else (root / path).write_bytes(data)
    try:
        yield root / "c1"
    finally:
        shutil.rmtree(root)


def _number(known: Sequence[PersistentState], found: PersistentState | None) -> str:
    return "no store" if found is None else f"commit {known.index(found)}" if found in known else f"{found}"


def run(seed: int, losses: int, mutant: str = "", *, flips: bool = True) -> Replayed:
    """Record the runs of a store, replay them and return the result. ``losses``: random power losses after each call,
    in addition to every subset. ``mutant``: the name of a rule that the recorded program breaks."""
    with scratch() as folder:
        root, beside = folder / "data", folder / "promises"
        root.mkdir()
        calls: list[Call] = []
        for kind, end in LIVES[seed % len(LIVES)]:
            arguments = [str(root), str(beside), str(seed), kind, end, *([mutant] if mutant else [])]
            calls += record([sys.executable, "-m", "crash_points.store_script", *arguments], TESTS, folder / "calls")
            calls += [Call("close", (str(number),), 0) for number in range(3, _DESCRIPTORS)]
        return _replay(
            calls,
            str(root),
            str(beside),
            Checker(seed, folder, LIVES[seed % len(LIVES)][0][0], flips),
            Random(seed),
            losses,
        )


def _replay(calls: Sequence[Call], root: str, beside: str, checker: Checker, random: Random, losses: int) -> Replayed:
    volume, changed = Volume(root, beside, checker.take), 0
    for number, call in enumerate(calls):
        if not volume.apply(call):
            continue
        changed += 1
        for fate in fates(volume, random, losses):
            try:
                checker.check(volume.survivors(fate))
            except Exception as error:
                at = f"after call {number} of {len(calls)}, {call.name}, with {fate}"
                return Replayed(changed, checker.checked, f"{type(error).__name__}: {error}, {at}")
    return Replayed(changed, checker.checked, "")


def _run(arguments: tuple[int, int]) -> tuple[int, Replayed]:
    return arguments[0], run(*arguments)


def main() -> int:
    """Run the command: replay power losses of a controller's store. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m crash_points.store", description=__doc__)
    parser.add_argument("--seeds", default="0:40", help="first:end")
    parser.add_argument(
        "--losses", type=int, default=30, help="random power losses at each call, besides the subsets"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if why := missing():
        print(f"nothing can be checked here: {why}")
        return 2
    first, end = map(int, options.seeds.split(":"))
    calls = outcomes = failed = 0
    with multiprocessing.Pool(options.jobs) as pool:
        for seed, replayed in pool.imap_unordered(_run, [(seed, options.losses) for seed in range(first, end)]):
            calls, outcomes = calls + replayed.calls, outcomes + replayed.outcomes
            if replayed.fault:
                failed += 1
                print(f"seed {seed}: {replayed.fault}", flush=True)
    print(f"{end - first} seeds, {calls} crash points, {outcomes} outcomes opened, {failed} seeds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
