"""Makes Python lack on Linux what it lacks on macOS. Python runs this file at its start if the folder is on
PYTHONPATH, so it holds for a program and for all Python programs that it starts.

It takes away the functions and constants of ``os``, ``socket``, ``signal``, ``fcntl``, ``resource`` and ``errno``
that only Linux has, functions of its C library, and the folders ``/proc`` and ``/sys``. ``sys.platform`` is "darwin".
The kernel allows 10,240 open files, and names no limit, as that of macOS does. ``fcntl.F_FULLFSYNC`` works.

Every sync is a line in the file that the environment variable ``SYNCS`` names: the call, and the path. Modules that
were loaded before have seen Linux: trio waits with epoll, and the standard library has made its choices."""

import asyncio  # noqa: F401 (these are loaded before anything is taken away)
import builtins
import ctypes
import ctypes.util
import errno
import fcntl
import io
import multiprocessing  # noqa: F401
import os
import resource
import shutil  # noqa: F401
import signal
import socket
import sqlite3  # noqa: F401
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile  # noqa: F401
import urllib.request  # noqa: F401
import uuid  # noqa: F401

import trio  # noqa: F401

F_FULLFSYNC = 51
MAX_OPEN_FILES = 10_240
LACKS = {
    os: (
        *("fdatasync", "posix_fallocate", "posix_fadvise", "pidfd_open", "P_PIDFD", "PIDFD_NONBLOCK", "waitid"),
        *("memfd_create", "copy_file_range", "splice", "pipe2", "getrandom", "unshare", "setns", "O_TMPFILE"),
        *("O_DIRECT", "O_PATH", "O_NOATIME", "O_LARGEFILE", "O_RSYNC", "getresuid", "getresgid", "setresuid"),
        *("setresgid", "getxattr", "setxattr", "listxattr", "removexattr"),
    ),
    socket: (
        *("TCP_USER_TIMEOUT", "TCP_CORK", "TCP_QUICKACK", "TCP_DEFER_ACCEPT", "TCP_INFO", "TCP_KEEPIDLE"),
        *("TCP_LINGER2", "TCP_SYNCNT", "TCP_WINDOW_CLAMP", "TCP_CONGESTION", "SO_BINDTODEVICE", "SO_MARK"),
        *("SO_PASSCRED", "SO_PEERCRED", "SO_PRIORITY", "SO_DOMAIN", "SO_PROTOCOL", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_VSOCK", "MSG_MORE", "MSG_NOSIGNAL", "MSG_ERRQUEUE"),
    ),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPOLL", "SIGPWR"),
    fcntl: ("F_NOTIFY", "F_SETLEASE", "F_GETLEASE", "F_SETSIG", "F_GETSIG", "F_ADD_SEALS", "F_GETPIPE_SZ"),
    resource: ("prlimit", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RUSAGE_THREAD"),
    errno: ("EUCLEAN", "EREMOTEIO", "ENOMEDIUM", "EBADFD", "ERESTART", "ECOMM"),
}
PREFIXES = {
    os: ("POSIX_FADV_", "sched_", "SCHED_", "eventfd", "EFD_", "timerfd", "TFD_", "MFD_", "XATTR_", "GRND_", "RWF_"),
    fcntl: ("F_OFD_", "F_SEAL", "DN_"),
}
"""Everything that begins like this is taken away, too."""
C_FUNCTIONS = ("prctl", "mallopt", "malloc_trim", "pidfd_open", "eventfd", "unshare", "setns")
FOLDERS = ("/proc", "/sys")


def _take_away() -> None:
    """Delete the functions and constants that macOS lacks."""
    for module, names in LACKS.items():
        for name in names:
            module.__dict__.pop(name, None)
    for module, starts in PREFIXES.items():
        for name in [name for name in vars(module) if name.startswith(starts)]:
            delattr(module, name)
    find = ctypes.CDLL.__getattr__

    def find_unless_lacking(library: ctypes.CDLL, name: str) -> object:
        if name in C_FUNCTIONS:
            raise AttributeError(f"{name}: symbol not found")
        return find(library, name)

    ctypes.CDLL.__getattr__ = find_unless_lacking


def _hide_folders() -> None:
    """Make the calls that take a path fail for ``/proc`` and ``/sys``."""

    def hiding(call):
        def hidden(path, *arguments, **named):
            text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
            if any(text == folder or text.startswith(f"{folder}/") for folder in FOLDERS):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
            return call(path, *arguments, **named)

        return hidden

    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access", "statvfs"):
        setattr(os, name, hiding(getattr(os, name)))
    builtins.open = io.open = hiding(io.open)


def _limit_open_files() -> None:
    """Begin with 256 open files, name no hard limit, and refuse more than ``MAX_OPEN_FILES``."""
    get, put = resource.getrlimit, resource.setrlimit
    hard = get(resource.RLIMIT_NOFILE)[1]
    put(resource.RLIMIT_NOFILE, (256, hard))

    def getrlimit(which: int) -> tuple[int, int]:
        soft, most = get(which)
        return (soft, resource.RLIM_INFINITY if which == resource.RLIMIT_NOFILE else most)

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        if which == resource.RLIMIT_NOFILE:
            if not 0 <= limits[0] <= MAX_OPEN_FILES:
                raise ValueError("current limit exceeds maximum limit")
            limits = (limits[0], hard)
        put(which, limits)

    resource.getrlimit, resource.setrlimit = getrlimit, setrlimit


def _record_syncs() -> None:
    """Make ``F_FULLFSYNC`` a sync, and write each sync to the file of ``SYNCS``, if that is set."""
    control, sync, find, write, open_ = fcntl.fcntl, os.fsync, os.readlink, os.write, os.open
    record = os.environ.get("SYNCS")
    target = open_(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if record else None

    def note(call: str, descriptor: int) -> None:
        if target is not None:
            write(target, f"{call} {find(f'/proc/self/fd/{descriptor}')}\n".encode())

    def fsync(descriptor: int) -> None:
        note("fsync", descriptor)
        sync(descriptor)

    def full_or_other(descriptor: int, command: int, argument: object = 0) -> object:
        if command != F_FULLFSYNC:
            return control(descriptor, command, argument)
        note("F_FULLFSYNC", descriptor)
        sync(descriptor)
        return 0

    os.fsync, fcntl.fcntl, fcntl.F_FULLFSYNC = fsync, full_or_other, F_FULLFSYNC


sysconfig.get_config_vars()  # which a module names by the platform
_record_syncs()
_limit_open_files()
_take_away()
_hide_folders()
sys.platform = "darwin"
