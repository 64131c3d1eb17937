"""Clusters of real processes for the tests of this folder, and what a failed test shows of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from controller_processes import Controllers
from running import Cluster
from tidelog.cli.local_cluster import LocalCluster, free_base_port

LOG_LINES = 12
"""So many last lines of each process's log come with a failed test."""
GUARD = """
import pathlib, sys
sys.stdin.read()  # ends with the process that holds the other end
from tidelog.cli.local_cluster import LocalCluster
LocalCluster.load(pathlib.Path(sys.argv[1])).stop()
"""


@contextmanager
def running_cluster(
    folder: Path, replicas: int = 3, prepare: Callable[[LocalCluster], None] = lambda local: None
) -> Iterator[Cluster]:
    """Three controllers, so many replica servers, two gateways; ended in any case, also when the run is killed.
    ``prepare`` is called before anything starts."""
    local = LocalCluster.create(folder, gateways=2, replicas=replicas, base_port=free_base_port(5 + replicas))
    prepare(local)
    guard = subprocess.Popen([sys.executable, "-c", GUARD, folder], stdin=subprocess.PIPE, start_new_session=True)
    try:
        local.start()
        trio.run(local.wait_ready)
        yield Cluster(local)
    finally:
        local.stop()
        guard.kill()
        guard.communicate()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that no test harms, for all of them."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def failing_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose processes the tests of a module kill."""
    with running_cluster(tmp_path_factory.mktemp("failing")) as running:
        yield running


@pytest.fixture(scope="module")
def roomy_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a replica server more than the tests' topics have replicas."""
    with running_cluster(tmp_path_factory.mktemp("roomy"), replicas=4) as running:
        yield running


@pytest.fixture
async def controllers(tmp_path: Path) -> AsyncIterator[Controllers]:
    """Three controllers, which the test may harm."""
    async with trio.open_nursery() as nursery:
        controllers = Controllers(tmp_path, nursery)
        try:
            await controllers.start("c1", "c2", "c3")
            yield controllers
        finally:
            with trio.CancelScope(shield=True):
                for process in controllers.nodes.values():
                    await process.kill()
            nursery.cancel_scope.cancel()


@pytest.fixture
def report_gap(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Tells the longest time without an ack at the end of the run. It is measured, never judged."""

    def report(what: str, seconds: float) -> None:
        record_property("gap", f"{seconds:6.2f} s  {what}")

    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows how the logs of its cluster end."""
    report: Any = yield
    used = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Cluster)]
    if report.failed and used:
        for process in used[0].local.processes:
            lines = Path(process.log).read_text(errors="replace").splitlines()[-LOG_LINES:]
            state = "running" if process.is_alive() else "down"
            report.sections.append((f"end of the log of {process.id} ({state})", "\n".join(lines)))
    return report
