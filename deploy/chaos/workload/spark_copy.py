"""A Spark query that copies the topics of the workload to one more, exactly once, as a user's query does. It is a
process of its own, and whenever it ends it is started again on its checkpoint, as a supervisor would."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio
from chaos.workload.clients import CONFIG, PARTITIONS, RECORDS, TRANSFERS
from chaos.workload.spark_processes import SparkProgram
from tidelog.client.log import Log

COPIES = "copies"
"""The topic that the query writes to; it has a partition for each partition of its sources."""
PLACES = [(topic, partition) for topic in (RECORDS, TRANSFERS) for partition in range(PARTITIONS[topic])]
"""The source (topic, partition) of each partition of ``COPIES``."""
JOB = Path(__file__).with_name("spark_job.py")
NAME = "spark"
PAUSE_S = 1.0
"""Seconds between an end of the query and its next start."""


class Copier:
    """The Spark query and its process. ``folder`` is its own; ``retention_bytes`` is that of the workload."""

    def __init__(self, folder: Path, gateways: list[str], retention_bytes: int) -> None:
        self._folder = folder
        self._retention_bytes = retention_bytes
        self._job = {
            "gateway": ",".join(gateways),
            "folder": str(folder),
            "target": COPIES,
            "places": PLACES,
            "retained": retention_bytes == -1,
        }
        self._finished = trio.Event()
        folder.mkdir()
        self.program = SparkProgram(folder, folder / "checkpoint")

    async def create(self, log: Log) -> None:
        """Create the topic of the copies."""
        config = CONFIG | {"retention_bytes": self._retention_bytes}
        await log.topics.create(COPIES, partitions=len(PLACES), replication_factor=3, config=config)

    async def run(self) -> None:
        """Start the query, and again after each end, until it has finished. If cancelled, its processes are
        killed."""
        command = [sys.executable, str(JOB), json.dumps(self._job)]
        try:
            while await self.program.run(command) != 0:  # noqa: ASYNC110 (a process)
                await trio.sleep(PAUSE_S)
            self._finished.set()
        finally:
            self.program.kill_all()

    @property
    def ended(self) -> list[tuple[float, str, str]]:
        """The (time, process, reason) of each end that no fault has caused."""
        return [(at, NAME, reason) for at, reason in self.program.ended]

    async def finish(self) -> None:
        """Let the query copy all that is in its sources, and wait until it has ended."""
        (self._folder / "finish").touch()
        await self._finished.wait()
