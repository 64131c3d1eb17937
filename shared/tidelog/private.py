"""Files and directories that are for their user only.

Modes are given when something is made, whatever the umask; and services set a umask for what libraries make. A data
directory that others can enter, made by an earlier release or by hand, is closed at the start: the directory itself
and the files in it. What is below keeps its modes, which say nothing any more: nobody else gets there.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
_OTHERS = 0o077
_WORLD = 0o007

log = logging.getLogger(__name__)


def close_to_others() -> None:
    """From now on nothing that this process makes is for anybody else, unless it says so."""
    os.umask(UMASK)


def own_directory(directory: str | Path) -> None:
    """Make a data directory, or close one to others. One that belongs to another user (the volume of a container, as
    a rule) or that is meant for all (``/tmp``) is left as it is, with a warning if
    others than the own group get in."""
    path = Path(directory)
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_mode & _OTHERS:
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            if not found.st_mode & _WORLD and found.st_gid == os.getegid():
                return
            log.warning("data_dir_open %s has mode %03o: others may read it", path, stat.S_IMODE(found.st_mode))
            return
        path.chmod(DIRECTORY_MODE)
        log.warning("data_dir_closed %s had mode %03o: others could read it", path, stat.S_IMODE(found.st_mode))
    for one in path.iterdir():
        mode = one.lstat().st_mode
        if stat.S_ISREG(mode) and mode & _OTHERS and one.lstat().st_uid == os.geteuid():
            one.chmod(FILE_MODE)


def make_file(path: str | Path) -> None:
    """An empty file, for a library that would make it with modes of its own. An existing one is closed to others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)


def write_file(path: str | Path, data: bytes) -> None:
    """Write a whole file that is for its user only."""
    make_file(path)
    Path(path).write_bytes(data)


def warn_of_open_secret(setting: str, file: str) -> None:
    """Log a warning when everybody on the machine may read a file with a secret. A group may: that is how packages
    let a service read what belongs to root."""
    if file and Path(file).exists() and Path(file).stat().st_mode & _WORLD:
        log.warning("secret_file_open %s = %s: everybody on this machine may read it", setting, file)
