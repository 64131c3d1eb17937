"""Which revision of the source is tested, and which seeds are its own.

Continuous integration runs other seeds for every commit. Their range is a function of the tree of ``HEAD``. So no
range stays untried for ever, one commit runs the same seeds everywhere, and a commit that only moves (a rebase) keeps
its range. Changes that are not committed do not move it. Where there is no git (a source distribution) the range is
always the same.
"""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "simulation" / "record.csv"
SOURCES = ("services", "shared", "tests/simulation")
"""What a run of the simulation depends on."""
FIRST = 100_000_000
"""No commit's own seeds lie below it: known seeds, and those that people try by hand, do."""
OWN = 1000
"""So many seeds are a commit's own."""
RANGES = 1_000_000
"""So many ranges there are for commits to fall on."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What is tested."""

    commit: str
    """Abbreviated; "" where there is no git."""
    tree: str
    """Object id of the whole tree of the commit."""
    source: str
    """Digest of ``SOURCES`` as they are in the commit, without ``RECORD`` and the simulation's own tests: commits
    that differ in nothing else run the same simulation."""
    is_changed: bool
    """The files of ``SOURCES`` differ from the commit."""

    @property
    def own_seeds(self) -> range:
        """The seeds of this commit. The ranges of two commits are equal, or have no seed in common."""
        number = int.from_bytes(hashlib.blake2b(self.tree.encode(), digest_size=8).digest(), "big")
        first = FIRST + number % RANGES * OWN
        return range(first, first + OWN)

    def __str__(self) -> str:
        if not self.commit:
            return "a source without git"
        return f"revision {self.commit}{' with changes' if self.is_changed else ''}"


@cache
def revision() -> Revision:
    """The revision of this checkout, as it was at the first call."""
    try:
        commit, tree = _git("rev-parse", "HEAD", "HEAD^{tree}").split()
        listed = _git("ls-tree", "-r", "HEAD", *SOURCES).splitlines()
        is_changed = bool(_git("status", "--porcelain", "--", *SOURCES, f":!{RECORD.relative_to(ROOT)}").strip())
    except (OSError, subprocess.CalledProcessError):
        return Revision("", "", "", False)
    files = [line for line in listed if not _is_beside(line.partition("\t")[2])]
    source = hashlib.blake2b("\n".join(files).encode(), digest_size=6).hexdigest()
    return Revision(commit[:10], tree, source, is_changed)


def _is_beside(path: str) -> bool:
    return path == str(RECORD.relative_to(ROOT)) or path.startswith("tests/simulation/test_")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout
