"""A Spark program of a run: a driver (Java, and the Python that has started it) and the workers, which run the Python
of its tasks. All are in the session of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import trio

LOOK_S = 0.1
"""Pause in seconds between two checks of a program."""
ENDING_S = 60.0
"""Seconds that a program may take to end after SIGTERM, before it is killed."""
SETTINGS = ("TIDELOG_", "AWS_")
"""Prefixes of the variables that a program does not get from this one, since they would be settings of its own."""
ERRORS = ("rror", "Exception", "[TIDELOG_")
"""What a line of the log has that names an error."""


class SparkProgram:
    """A Spark program with one streaming query, which is started again and again. Its log is the file ``log`` of
    ``folder``; ``checkpoint`` is the folder with the checkpoint of its query."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.starts = 0
        self.ended: list[tuple[float, str]] = []
        """(time, reason) of each end with an error that was not caused by ``kill_driver`` or ``stop``."""
        self._folder = folder
        self._checkpoint = checkpoint
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False
        """True if the driver was killed or asked to end."""
        self._python = _quick_python(folder)

    async def run(self, command: list[str]) -> int:
        """Start the program, wait until it has ended, and return its status."""
        self._start(command)
        status = await self._end()
        if status != 0 and not self._ending:
            self.ended.append((trio.current_time(), self.reason()))
        return status

    async def stop(self) -> None:
        """End the program by SIGTERM, and its workers with it."""
        self._ending = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with trio.move_on_after(ENDING_S):
                await self._end()
        self.kill_all()

    def kill_driver(self) -> bool:
        """Kill the driver, that is, the JVM and the Python that has started it, with SIGKILL. Returns False if there
        is none now. The workers are left alone: each ends, or is stopped by the next start, as it would."""
        drivers = self._processes(lambda command: not _is_worker(command))
        self._ending = bool(drivers)
        return _kill(drivers)

    def kill_workers(self) -> bool:
        """Kill the Python processes that run tasks with SIGKILL. Returns False if there is none now."""
        return _kill(self._processes(_is_worker))

    def kill_all(self) -> None:
        """Kill all processes of the program with SIGKILL."""
        _kill(self._processes(lambda command: True))
        if self._process:
            self._process.wait()

    def batches(self) -> int:
        """Return the number of micro-batches that are committed, according to the checkpoint."""
        return self._numbered("commits")

    async def goes_on(self, before: int) -> None:
        """Wait until more batches than ``before`` are committed."""
        while self.batches() <= before:  # noqa: ASYNC110 (a file)
            await trio.sleep(LOOK_S)

    async def in_batch(self) -> None:
        """Wait until a batch is under way, that is, planned and not committed."""
        while self._numbered("offsets") == self.batches():  # noqa: ASYNC110 (files)
            await trio.sleep(LOOK_S / 10)

    def reason(self) -> str:
        """Return the last line of the log that names an error; else its last line."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if any(word in line for word in ERRORS)]
        return (errors or lines or [""])[-1].strip()[:500]

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _start(self, command: list[str]) -> None:
        self.starts += 1
        self._ending = False
        environment = {name: text for name, text in os.environ.items() if not name.startswith(SETTINGS)}
        environment |= {"PYSPARK_PYTHON": str(self._python), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _end(self) -> int:
        """Wait until the process has ended, and return its status."""
        assert self._process is not None
        while (status := self._process.poll()) is None:  # noqa: ASYNC110 (a process)
            await trio.sleep(LOOK_S)
        return status

    def _numbered(self, part: str) -> int:
        """Return the number of batches that a part of the checkpoint (``offsets`` or ``commits``) has."""
        folder = self._checkpoint / part
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    def _processes(self, wanted: Callable[[bytes], bool]) -> list[int]:
        """Return the ids of the program's processes (all that it has started, and itself) whose command line is
        wanted."""
        return _processes_of_session(self._process.pid, wanted) if self._process else []


def _quick_python(folder: Path) -> Path:
    """Write and return a Python command with which Spark's processes import PySpark from where it is installed:
    docs/spark.md, "Good to know"."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    python = folder / "python"
    packages = Path(spec.origin).parent.parent
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def _is_worker(command: bytes) -> bool:
    """Return whether a command line is that of a worker."""
    return b"pyspark.daemon" in command


def _processes_of_session(leader: int, wanted: Callable[[bytes], bool]) -> list[int]:
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


def _kill(processes: Iterable[int]) -> bool:
    """Kill these processes with SIGKILL. Returns False if there are none."""
    killed = list(processes)
    for process in killed:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has just ended
    return bool(killed)
