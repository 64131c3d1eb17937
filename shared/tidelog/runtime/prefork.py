"""Forks the processes of services from one starter, which has loaded their code.

Loading the code is most of a service's start, and most of its memory when it is idle. The starter loads it once. The
processes share the memory that none of them changes. When the starter has ended they are children of the process that
started it. The starter is a process of its own, since nothing else may run in a process that forks: no thread, no
trio. ``python -m tidelog.runtime.prefork`` reads a list of ``ProcessSpec`` as JSON. For each process that it has
started it writes a line: the place in the list, the process id, the start time.

This is done on Linux only. Libraries of macOS end a process that uses them after a fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidelog.private import FILE_MODE, close_to_others
from tidelog.runtime.operating_system import process_state

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start. It runs as ``python -m module arguments`` would, in a session of its own and without input.
    Its output is appended to the file ``log``. ``ps -e`` and ``top`` show ``name``."""

    name: str
    module: str
    arguments: list[str]
    log: str


def can_fork() -> bool:
    """Return whether this system allows ``fork_all``: Linux does."""
    return sys.platform == "linux"


def fork_all(orders: list[ProcessSpec], on_started: Callable[[int, int, int], None]) -> None:
    """Start these processes in this order as children of this process, and block until all are started.
    ``on_started`` is called for each started process with its place in the list, its process id and its start time
    (clock ticks since boot), also if this call is interrupted. If the code of a process cannot be loaded, its log
    says why, and neither it nor those after it are started; no error is raised. Does nothing for an empty list. Must
    not be called where ``can_fork`` is false."""
    if not orders:
        return
    command = [sys.executable, "-m", __name__]
    pipe = subprocess.PIPE
    with _adopting(), subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as starter:
        assert starter.stdin and starter.stdout
        try:
            starter.stdin.write(json.dumps([asdict(order) for order in orders]).encode())
            starter.stdin.close()
            starter.wait()
        finally:
            starter.kill()
            for line in starter.stdout:
                on_started(*map(int, line.split()))


@contextmanager
def _adopting() -> Iterator[None]:
    """During the ``with`` block let processes whose parent ends become children of this process, which can then wait
    for them."""
    prctl: Any = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (0, 0, 0, 0)))


def main() -> None:
    """Start the processes that standard input lists as JSON, and write a line for each to standard output: its place
    in the list, process id and start time. A process that is started runs its service and never returns from here.
    Raises the error of a service's code that cannot be loaded."""
    orders = [ProcessSpec(**each) for each in json.load(sys.stdin)]
    close_to_others()
    started = os.dup(sys.stdout.fileno())
    _replace(os.devnull, os.O_RDONLY, sys.stdin.fileno())
    gc.disable()  # nothing of what is loaded is garbage
    for number, order in enumerate(orders):
        for output in (sys.stdout, sys.stderr):
            _replace(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, output.fileno())
        service = importlib.import_module(f"{order.module}.__main__")
        gc.freeze()  # a collection in one of them would change what all share
        if os.fork() == 0:
            os.setsid()
            pid = os.getpid()
            os.write(started, f"{number} {pid} {process_state(pid)[1]}\n".encode())
            os.close(started)
            Path("/proc/self/comm").write_text(order.name)
            gc.enable()
            sys.argv = [str(service.__file__), *order.arguments]
            sys.exit(service.run())


def _replace(path: str, flags: int, descriptor: int) -> None:
    """Open the file at ``path`` with ``flags`` and make the file descriptor ``descriptor`` refer to it. A missing
    file is created if the flags say so."""
    opened = os.open(path, flags, FILE_MODE)
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    main()
