"""The pipeline of a run with a table: ``tidelog pipeline run`` in a process of its own. Whenever it ends it is
started again on its checkpoint, as a supervisor would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import trio
from chaos.table.object_store import BUCKET
from chaos.workload.spark_processes import is_worker, kill_all, processes_of_session, quick_python

TOPIC = "events"
APP = "chaos.lake"
MASTER = "local[2,8]"
"""Spark's master: two tasks at a time; a task that fails is tried seven times more."""
PAUSE_S = 0.5
"""Seconds between an end of the pipeline and its next start."""
LOOK_S = 0.1
ENDING_S = 60.0
"""Seconds that the pipeline may take to end after SIGTERM, before it is killed."""
SPARK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
RESTART = {"times": 1000, "within": "10m", "delay": "500ms", "max-delay": "2s"}
"""An outage of the store is longer than the restarts that a pipeline has by default."""


def declaration(
    format: str, trigger: str, batch: int, folder: Path, gateways: str, options: Mapping[str, str]
) -> str:
    """Return the file of the pipeline: every record of the topic, as it is, into one table of the object store."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/warehouse"}
    table = (
        f'iceberg = "shop.events"\ncatalog = {_inline(catalog)}'
        if format == "iceberg"
        else f'delta = "s3://{BUCKET}/events"'
    )
    return f"""name = "chaos"
trigger = "{trigger}"
gateway = "{gateways}"
[spark]
{_lines(SPARK)}
[restart]
{_lines(RESTART)}
[in.events]
topic = "{TOPIC}"
options = {{ maxOffsetsPerTrigger = {batch} }}
[out.lake]
from = "events"
{table}
options = {_inline(options)}
"""


def _lines(values: Mapping[str, str | int]) -> str:
    return "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items())


def _inline(values: Mapping[str, str]) -> str:
    return f"{{ {', '.join(f'{json.dumps(name)} = {json.dumps(value)}' for name, value in values.items())} }}"


class PipelineProcess:
    """The pipeline and its process. ``declared`` returns the file for a trigger."""

    def __init__(self, folder: Path, declared: Callable[[str], str]) -> None:
        self.starts = 0
        self.ended: list[str] = []
        """The reason of each end that no fault has caused."""
        self._folder = folder
        self._declared = declared
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._stopping = False
        self._python = quick_python(folder)

    async def run(self) -> None:
        """Start the pipeline, and again after each end, until ``stop``. If cancelled, its processes are killed."""
        try:
            while not self._stopping:
                self._start("1 second")
                await self._end()
                if not self._killed and not self._stopping:
                    self.ended.append(self._reason())
                await trio.sleep(PAUSE_S)
        finally:
            self._kill_all()

    async def stop(self) -> None:
        """End the pipeline by SIGTERM, and do not start it again."""
        self._stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with trio.move_on_after(ENDING_S):
                await self._end()
        self._kill_all()

    async def finish(self) -> None:
        """Run the pipeline until it has processed everything that is in the topic. Raises ``RuntimeError`` if it
        fails."""
        try:
            self._start("available-now")
            if await self._end() != 0:
                raise RuntimeError(f"the last run of the pipeline failed: {self._reason()}")
        finally:
            self._kill_all()

    async def _end(self) -> int:
        """Wait until the process has ended, and return its status."""
        assert self._process is not None
        while (code := self._process.poll()) is None:  # noqa: ASYNC110 (a process)
            await trio.sleep(LOOK_S)
        return code

    def _start(self, trigger: str) -> None:
        self.starts += 1
        self._killed = False
        file = self._folder / "chaos.toml"
        file.write_text(self._declared(trigger))
        command = [sys.executable, "-m", "tidelog.cli", "pipeline", "run", str(file), "--master", MASTER]
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("TIDELOG_", "AWS_"))}
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

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _reason(self) -> str:
        """Return the last line of the log that names an error; else its last line."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "rror" in line or "[TIDELOG_" in line]
        return (errors or lines or [""])[-1].strip()[:500]

    def batches(self) -> int:
        """Return the number of micro-batches that are committed, according to the checkpoint."""
        return self._numbered("commits")

    def _numbered(self, part: str) -> int:
        """Return the number of batches that a part of the checkpoint (``offsets`` or ``commits``) has."""
        folder = self._folder / "checkpoints" / "lake" / part
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    async def goes_on(self, before: int) -> None:
        """Wait until more batches than ``before`` are committed."""
        while self.batches() <= before:  # noqa: ASYNC110 (a file)
            await trio.sleep(LOOK_S)

    async def in_batch(self) -> None:
        """Wait until a batch is under way, that is, planned and not committed."""
        while self._numbered("offsets") == self.batches():  # noqa: ASYNC110 (files)
            await trio.sleep(LOOK_S / 10)

    def kill_driver(self) -> bool:
        """Kill the driver, that is, the JVM and the Python that has started it, with SIGKILL. Returns False if there
        is none now. The workers are left alone: each ends, or is stopped by the next start, as it would."""
        drivers = self._processes(lambda command: not is_worker(command))
        self._killed = bool(drivers)
        return kill_all(drivers)

    def kill_workers(self) -> bool:
        """Kill the Python processes that run tasks with SIGKILL. Returns False if there is none now."""
        return kill_all(self._processes(is_worker))

    def _processes(self, wanted: Callable[[bytes], bool]) -> list[int]:
        return processes_of_session(self._process.pid, wanted) if self._process else []

    def _kill_all(self) -> None:
        kill_all(self._processes(lambda command: True))
        if self._process:
            self._process.wait()
