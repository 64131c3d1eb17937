"""The source of an earlier revision, for processes of two versions in one cluster."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("shared", "services/controller", "services/replica", "services/gateway")
LEVELS = ("shared/tidelog/feature_levels.py", "shared/tidelog/levels.py")
"""The module of feature levels, and its name in earlier revisions. A revision without it knows of no levels."""


class NoRevision(Exception):
    """Git does not have it, or there is no git."""


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        told = getattr(error, "stderr", b"").decode().strip() or str(error)
        raise NoRevision(told) from error


def resolve(revision: str) -> str:
    """The commit that is meant. Raises ``NoRevision``."""
    return _git("rev-parse", "--verify", "--short", f"{revision}^{{commit}}").decode().strip()


def unpack(revision: str, folder: Path) -> None:
    """Put that revision there. Raises ``NoRevision``."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision))) as archive:
        archive.extractall(folder, filter="data")


def before_the_last_change() -> str:
    """The present commit where sources differ from it; otherwise what was before the last commit that changed some.
    Raises ``NoRevision``."""
    if _git("status", "--porcelain", "--", *SOURCES):
        return resolve("HEAD")
    return resolve(_git("log", "-1", "--format=%H", "--", *SOURCES).decode().strip() + "~1")


def python_path(tree: Path) -> str:
    """What makes Python take the sources of that tree."""
    return ":".join(str(tree / source) for source in SOURCES)


def environment(tree: Path, *, earlier: bool) -> dict[str, str]:
    """What makes a process one of that source, or of the present one, in a cluster at feature level 1."""
    found = {"PYTHONPATH": python_path(tree)} if earlier else {}
    if not earlier or any((tree / file).exists() for file in LEVELS):
        found["TIDELOG_FEATURE_LEVEL_MAX"] = "1"
    return found
