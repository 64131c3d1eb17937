"""The source of an earlier revision, so that processes of two versions can run in one cluster."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("shared", "services/controller", "services/replica", "services/gateway")
"""Folders of the Python sources, in the order of the import path."""
LEVELS = ("shared/tidelog/feature_levels.py", "shared/tidelog/levels.py")
"""The module of feature levels, and its name in earlier revisions. A revision without it knows of no levels."""


class NoRevision(Exception):
    """Raised if git does not know a revision, or there is no git."""


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        reason = getattr(error, "stderr", b"").decode().strip() or str(error)
        raise NoRevision(reason) from error


def resolve(revision: str) -> str:
    """Return the short commit hash of a revision. Raises ``NoRevision``."""
    return _git("rev-parse", "--verify", "--short", f"{revision}^{{commit}}").decode().strip()


def unpack(revision: str, folder: Path) -> None:
    """Write the files of a revision into ``folder``. Raises ``NoRevision``."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision))) as archive:
        archive.extractall(folder, filter="data")


def before_the_last_change() -> str:
    """Return the revision to compare the sources with: the present commit if the sources differ from it; otherwise
    the commit before the last one that changed sources. Raises ``NoRevision``."""
    if _git("status", "--porcelain", "--", *SOURCES):
        return resolve("HEAD")
    return resolve(_git("log", "-1", "--format=%H", "--", *SOURCES).decode().strip() + "~1")


def python_path(tree: Path) -> str:
    """Return the value of ``PYTHONPATH`` with which Python runs the sources in ``tree``."""
    return ":".join(str(tree / source) for source in SOURCES)


def environment(tree: Path, *, earlier: bool) -> dict[str, str]:
    """Return the environment variables of a process in a cluster of two versions at feature level 1. ``earlier``: the
    process runs the sources in ``tree``, otherwise the present ones."""
    found = {"PYTHONPATH": python_path(tree)} if earlier else {}
    if not earlier or any((tree / file).exists() for file in LEVELS):
        found["TIDELOG_FEATURE_LEVEL_MAX"] = "1"
    return found
