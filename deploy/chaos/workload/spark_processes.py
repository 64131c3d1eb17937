"""The processes of a Spark program: a driver (Java, and the Python that has started it) and the workers, which run
the Python of its tasks. All are in the session of the program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path


def quick_python(folder: Path) -> Path:
    """Write and return a Python command with which Spark's processes import PySpark from where it is installed:
    docs/spark.md, "Good to know"."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    python = folder / "python"
    packages = Path(spec.origin).parent.parent
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def is_worker(command: bytes) -> bool:
    """Return whether a command line is that of a worker."""
    return b"pyspark.daemon" in command


def processes_of_session(leader: int, wanted: Callable[[bytes], bool]) -> list[int]:
    """Return the ids of the processes in the session of ``leader`` whose command line is wanted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == leader and wanted((entry / "cmdline").read_bytes()):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
    return found


def kill_all(processes: Iterable[int]) -> bool:
    """Kill these processes with SIGKILL. Returns False if there are none."""
    killed = list(processes)
    for process in killed:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has just ended
    return bool(killed)
