"""What the fixtures for tests cost: CPU and time until a cluster is ready, and what a run pays that uses none.

    .venv/bin/python deploy/bench/testing.py [--rounds 10]

Each figure is of a new Python process, the median of all rounds. Compiled modules are kept in a folder from a round
before, as those of an installed package are. CPU is user and system time of all threads. "First"
counts the imports of the services; "next" is a further cluster in the same process; "end" ends one. "Unused" is what
``import tidelog.testing.plugin`` adds to a process that has imported pytest.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

import click

STEPS = """
import json, os, sys, tempfile, time
from pathlib import Path
import pytest

def lap(name):
    global cpu, wall
    now = time.process_time(), time.perf_counter()
    figures[name] = now[0] - cpu, now[1] - wall
    cpu, wall = time.process_time(), time.perf_counter()

figures = {}
cpu, wall = time.process_time(), time.perf_counter()
import tidelog.testing.plugin
lap("unused")
with tempfile.TemporaryDirectory() as folder:
    lap("")
    from tidelog.testing import RealCluster
    cluster = RealCluster(Path(folder, "a"), REPLICAS)
    cluster.__enter__()
    lap("first")
    cluster.topic("orders")
    lap("topic")
    cluster.__exit__(None, None, None)
    lap("end")
    cluster = RealCluster(Path(folder, "b"), REPLICAS)
    cluster.__enter__()
    lap("next")
    cluster.__exit__(None, None, None)
del figures[""]
print(json.dumps(figures))
"""


@click.command(help=__doc__)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
def main(rounds: int) -> None:
    """Print a table of the figures."""
    print(f"{'':30}{'CPU ms':>8}{'time ms':>9}")
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        for replicas in (1, 3):
            runs = [measure(replicas, environ) for _ in range(rounds + 1)][1:]  # the first one compiles
            for name in runs[0]:
                cpu, wall = (1000 * statistics.median(run[name][index] for run in runs) for index in (0, 1))
                print(f"{name + f', {replicas} replica servers':30}{cpu:8.1f}{wall:9.1f}")


def measure(replicas: int, environ: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Run the steps in a new process, and return the seconds of CPU and of time of each."""
    command = [sys.executable, "-c", STEPS.replace("REPLICAS", str(replicas))]
    said = subprocess.run(command, env=environ, capture_output=True, check=True).stdout
    found: dict[str, tuple[float, float]] = json.loads(said)
    return found


if __name__ == "__main__":
    main()
