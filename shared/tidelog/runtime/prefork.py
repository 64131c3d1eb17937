"""Processes of services that are forked from one starter, which has loaded what they run.

To load a service's code is most of its start, and most of its memory when it idles. The starter does it once for all;
they share what none of them changes, and when it has ended they are children of whoever started it. It is a process
of its own, since nothing else may run in one that forks: no thread, no trio. ``python -m tidelog.runtime.prefork``
reads a list of ``ProcessSpec`` as JSON, and tells of each process that is there in a line: which order, its id, its
start time.
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

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: as ``python -m module arguments`` would run, in a session of its own, nothing to read, all that it
    says to its log. ``name`` is what ``ps -e`` and ``top`` show."""

    name: str
    module: str
    arguments: list[str]
    log: str


def stat(pid: int | str) -> tuple[str, int]:
    """State of a process, and its start time in clock ticks since boot; -1 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def fork_all(orders: list[ProcessSpec], told: Callable[[int, int, int], None]) -> None:
    """Start these, in this order, as children of this process. ``told`` is called for each that is there, also when
    this is interrupted: its place in the list, its id, its start time. Where one cannot be loaded, its log says why;
    it and those after it are not started."""
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
                told(*map(int, line.split()))


@contextmanager
def _adopting() -> Iterator[None]:
    """Those whose parent ends meanwhile become children of this process, which can wait for their end then."""
    prctl: Any = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (0, 0, 0, 0)))


def main() -> None:
    """Start the processes that standard input orders."""
    orders = [ProcessSpec(**each) for each in json.load(sys.stdin)]
    close_to_others()
    told = os.dup(sys.stdout.fileno())
    _replace(os.devnull, os.O_RDONLY, sys.stdin.fileno())
    gc.disable()  # nothing of what is loaded is garbage
    for number, order in enumerate(orders):
        for output in (sys.stdout, sys.stderr):
            _replace(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, output.fileno())
        service = importlib.import_module(f"{order.module}.__main__")
        gc.freeze()  # a collection in one of them would change what all share
        if os.fork() == 0:
            os.setsid()
            os.write(told, f"{number} {os.getpid()} {stat('self')[1]}\n".encode())
            os.close(told)
            Path("/proc/self/comm").write_text(order.name)
            gc.enable()
            sys.argv = [str(service.__file__), *order.arguments]
            sys.exit(service.run())


def _replace(path: str, flags: int, descriptor: int) -> None:
    """What this descriptor leads to."""
    opened = os.open(path, flags, FILE_MODE)
    os.dup2(opened, descriptor)
    os.close(opened)


if __name__ == "__main__":
    main()
