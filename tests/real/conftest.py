"""Clusters of real processes for the tests of this folder, and what a failed test shows of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from controller_processes import Controllers
from running import Cluster, running_cluster
from tidelog.cli.local.local_cluster import LocalCluster

LOG_LINES = 12
"""So many last lines of each process's log come with a failed test."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that no test harms, for all of them."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), prepare=LocalCluster.forget_secret) as running:
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
