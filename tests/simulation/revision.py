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
"""The folders that a run of the simulation depends on."""
FIRST = 100_000_000
"""The smallest seed of any commit's own range; known seeds and those tried by hand are smaller."""
OWN = 1000
"""The number of seeds in a commit's own range."""
RANGES = 1_000_000
"""The number of ranges that commits share."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The revision of the source that is tested."""

    commit: str
    """The abbreviated commit id; "" without git."""
    tree: str
    """The object id of the whole tree of the commit."""
    source: str
    """A digest of ``SOURCES`` as committed, without ``RECORD`` and the simulation's own tests. Commits with the same
    digest run the same simulation."""
    is_changed: bool
    """Whether files of ``SOURCES`` differ from the commit."""

    @property
    def own_seeds(self) -> range:
        """The range of seeds of this commit. The ranges of two commits are equal or have no seed in common."""
        number = int.from_bytes(hashlib.blake2b(self.tree.encode(), digest_size=8).digest(), "big")
        first = FIRST + number % RANGES * OWN
        return range(first, first + OWN)

    def __str__(self) -> str:
        if not self.commit:
            return "a source without git"
        return f"revision {self.commit}{' with changes' if self.is_changed else ''}"


@cache
def revision() -> Revision:
    """Return the revision of this checkout, as it was at the first call; an empty one without git."""
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
