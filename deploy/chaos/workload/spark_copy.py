"""A Spark query that copies the topics of the workload to one more, exactly once, as a user's query does. It is a
process of its own, and whenever it ends it is started again on its checkpoint, as a supervisor would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import trio
from chaos.workload.clients import CONFIG, PARTITIONS, RECORDS, TRANSFERS
from chaos.workload.spark_processes import is_worker, kill_all, processes_of_session, quick_python
from tidelog.client.log import Log

COPIES = "copies"
"""The topic that the query writes to; it has a partition for each partition of its sources."""
PLACES = [(topic, partition) for topic in (RECORDS, TRANSFERS) for partition in range(PARTITIONS[topic])]
"""The source (topic, partition) of each partition of ``COPIES``."""
JOB = Path(__file__).with_name("spark_job.py")
NAME = "spark"
PAUSE_S = 1.0
"""Seconds between an end of the query and its next start."""
LOOK_S = 0.2
"""Pause in seconds between two checks of the query."""


class Copier:
    """The Spark query and its process. ``folder`` is its own; ``retention_bytes`` is that of the workload."""

    def __init__(self, folder: Path, gateways: list[str], retention_bytes: int) -> None:
        self.starts = 0
        self.ended: list[tuple[float, str, str]] = []
        """(time, process, reason) of each end that no fault has caused."""
        self._folder = folder
        self._retention_bytes = retention_bytes
        self._job = {
            "gateway": ",".join(gateways),
            "folder": str(folder),
            "target": COPIES,
            "places": PLACES,
            "retained": retention_bytes == -1,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._finished = trio.Event()
        folder.mkdir()
        self._python = quick_python(folder)

    async def create(self, log: Log) -> None:
        """Create the topic of the copies."""
        config = CONFIG | {"retention_bytes": self._retention_bytes}
        await log.topics.create(COPIES, partitions=len(PLACES), replication_factor=3, config=config)

    async def run(self) -> None:
        """Start the query, and again after each end, until it has finished. If cancelled, its processes are
        killed."""
        try:
            while True:
                self._start()
                assert self._process is not None
                while (code := self._process.poll()) is None:  # noqa: ASYNC110 (a process)
                    await trio.sleep(LOOK_S)
                if code == 0:
                    self._finished.set()
                    return
                if not self._killed:
                    self.ended.append((trio.current_time(), NAME, self._reason()))
                await trio.sleep(PAUSE_S)
        finally:
            self._kill_all()

    def _start(self) -> None:
        self.starts += 1
        self._killed = False
        environment = os.environ | {"PYSPARK_PYTHON": str(self._python), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(JOB), json.dumps(self._job)],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _reason(self) -> str:
        """Return the last line of the log that names an error; else its last line."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line or "Exception" in line or "[TIDELOG_" in line]
        return (errors or lines or [""])[-1].strip()

    def batches(self) -> int:
        """Return the number of micro-batches that are committed, according to the checkpoint."""
        return self._numbered("commits")

    def _numbered(self, part: str) -> int:
        """Return the number of batches that a part of the checkpoint (``offsets`` or ``commits``) has."""
        folder = self._folder / "checkpoint" / part
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    async def goes_on(self) -> None:
        """Wait until one more batch than now is committed."""
        before = self.batches()
        while self.batches() <= before:  # noqa: ASYNC110 (a file)
            await trio.sleep(LOOK_S)

    async def in_batch(self) -> None:
        """Wait until a batch is under way, that is, planned and not committed."""
        while self._numbered("offsets") == self.batches():  # noqa: ASYNC110 (files)
            await trio.sleep(LOOK_S / 10)

    async def finish(self) -> None:
        """Let the query copy all that is in its sources, and wait until it has ended."""
        (self._folder / "finish").touch()
        await self._finished.wait()

    def kill(self) -> bool:
        """Kill the driver, that is, the JVM and the Python that has started it, with SIGKILL. Returns False if there
        is none now. The workers are left alone: each ends, or is stopped by the next start, as it would."""
        drivers = self._processes(lambda command: not is_worker(command))
        self._killed = bool(drivers)
        return kill_all(drivers)

    def kill_worker(self) -> bool:
        """Kill the Python processes that run tasks with SIGKILL. Returns False if there is none now."""
        return kill_all(self._processes(is_worker))

    def _kill_all(self) -> None:
        kill_all(self._processes(lambda command: True))
        if self._process:
            self._process.wait()

    def _processes(self, wanted: Callable[[bytes], bool]) -> list[int]:
        """Return the ids of the query's processes (all that it has started, and itself) whose command line is
        wanted."""
        return processes_of_session(self._process.pid, wanted) if self._process else []
