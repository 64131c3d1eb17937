"""Files and directories that only their user may read.

Modes are set when a file is created, whatever the umask is, and services set a umask for files that libraries create.
A data directory that others can enter, made by an earlier release or by hand, is closed at the start: the directory
itself and the files in it. Deeper levels keep their modes, which no longer matter because others cannot get there.
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
    """Set the umask of this process so that files that libraries create are private, too."""
    os.umask(UMASK)


def own_directory(directory: str | Path) -> None:
    """Create a data directory that only its user may enter. An existing directory, and the files in it, are closed to
    others, with a warning in the log. A directory that belongs to another user (usually the volume of a container) or
    is meant for everybody (``/tmp``) is left as it is, with a warning if it is open to more than its own group."""
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
    """Create an empty file that only its user may read, for a library that would create it with other modes. An
    existing file keeps its contents and is closed to others."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)


def write_file(path: str | Path, data: bytes) -> None:
    """Write ``data`` to a file that only its user may read, and replace its former contents."""
    make_file(path)
    Path(path).write_bytes(data)


def warn_of_open_secret(setting: str, file: str) -> None:
    """Log a warning if everybody on the machine may read ``file``, which holds a secret; ``setting`` is the name of
    the setting that names the file. Does nothing if there is no such file. A group may read it: in this way packages
    let a service read a file of root."""
    if file and Path(file).exists() and Path(file).stat().st_mode & _WORLD:
        log.warning("secret_file_open %s = %s: everybody on this machine may read it", setting, file)
