"""A standalone Spark cluster from the PySpark distribution: a master and two workers, processes of their own, which
to Spark are two machines (127.0.0.1 and 127.0.0.2). Their Python has what Tidelog depends on and not Tidelog, which
is shipped as docs/spark.md has it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import trio

PATIENCE_S = 240
"""On a busy machine Spark takes its time."""
ROOT = Path(__file__).resolve().parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Standalone:
    """The processes, and what is submitted to them."""

    def __init__(self, folder: Path) -> None:
        spec = find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        self._home = Path(spec.origin).parent
        self._folder = folder
        self._python = self._without_tidelog()
        self._package()
        self._master = self._start("master", "127.0.0.1", "master.Master")
        self._url = self._wait_told("master", self._master, r"Starting Spark master at (spark://\S+)")
        self._workers = [
            self._start(f"worker{n}", f"127.0.0.{n}", "worker.Worker", "--cores", "1", "--memory", "1g", self._url)
            for n in (1, 2)
        ]
        self._wait_told("master", self._master, r"Registering worker[\s\S]*(Registering worker)")

    def _without_tidelog(self) -> Path:
        """The Python of all machines. It has the PySpark of this one, which may be beside the other packages."""
        known = self._folder / "packages"
        known.mkdir()
        for folder in dict.fromkeys([self._home.parent, Path(trio.__file__).parent.parent]):
            for each in folder.iterdir():
                if "tidelog" not in each.name and each.suffix != ".pth" and not (known / each.name).exists():
                    (known / each.name).symlink_to(each)
        python = self._folder / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={known}:$PYTHONPATH exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        return python

    def _package(self) -> None:
        """``tidelog.zip``, a wheel under another name, and ``pipeline.py`` out of it."""
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(self._folder / "dist")]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        [wheel] = (self._folder / "dist").glob("*.whl")
        shutil.copy(wheel, self._folder / "tidelog.zip")
        with ZipFile(wheel) as package:
            (self._folder / "pipeline.py").write_bytes(package.read("tidelog/spark/pipeline.py"))

    def _start(self, name: str, address: str, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        settings = {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "SPARK_WORKER_DIR": str(self._folder / name),
        }
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
        command += ["--host", address, "--port", "0", "--webui-port", "0"]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env={**os.environ, **settings}, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT
            )

    def _wait_told(self, name: str, process: subprocess.Popen[bytes], pattern: str) -> str:
        until = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, text := (self._folder / f"{name}.log").read_text())) is None:
            assert not has_ended(process) and time.monotonic() < until, text
        return found[1]

    def submit(self, pipeline: Path, *settings: str) -> subprocess.Popen[bytes]:
        """``spark-submit`` of a pipeline, with these more settings of Spark."""
        settings = (
            "spark.executorEnv.PYTHONPATH=tidelog.zip",
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={QUICK_JAVA}",
            f"spark.driver.extraJavaOptions={QUICK_JAVA}",
            "spark.ui.enabled=false",
            *settings,
        )
        command = [str(self._home / "bin" / "spark-submit"), "--master", self._url, "--py-files", "tidelog.zip"]
        for each in settings:
            command += ["--conf", each]
        command += ["pipeline.py", str(pipeline)]
        env = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self._python),
            "PYTHONPATH": "tidelog.zip",
        }
        with (self._folder / "driver.log").open("wb") as log:
            return subprocess.Popen(
                command, env=env, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def told(self) -> str:
        """What the last driver has written."""
        return (self._folder / "driver.log").read_text()

    def kill_machine_of(self, process: int) -> None:
        """Kill -9 the executor that this Python worker is of, and the machine's worker."""
        workers = {worker.pid: worker for worker in self._workers}
        executor = process
        while (parent := parent_of(executor)) not in workers:
            executor = parent
        for each in (parent, executor):
            os.kill(each, signal.SIGKILL)
        workers[parent].wait()

    def close(self) -> None:
        """End what still runs."""
        for each in (*self._workers, self._master):
            each.terminate()
        for each in (*self._workers, self._master):
            each.wait()


def parent_of(process: int) -> int:
    """Its parent process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has, after a moment."""
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return False
    return True
