"""Clusters of real processes for the tests of this folder, and what a failed test shows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from running import Cluster
from tidelog.cli.local_cluster import LocalCluster, free_base_port

LOG_LINES = 25
"""So many last lines of each process's log come with a failed test."""
GAPS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three controllers, three replica servers, two gateways, shared by the tests of a module."""
    local = LocalCluster.create(tmp_path_factory.mktemp("cluster"), gateways=2, base_port=free_base_port(8))
    try:
        local.start()
        trio.run(local.wait_ready)
        yield Cluster(local)
    finally:
        local.stop()


@pytest.fixture
def report_gap(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Tells the longest time without an ack at the end of the run. It is measured, never judged."""

    def report(what: str, seconds: float) -> None:
        request.config.stash.setdefault(GAPS, []).append(f"{seconds:6.2f} s  {what}")

    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The longest gaps."""
    if gaps := config.stash.get(GAPS, []):
        terminalreporter.section("longest time without an ack in a partition")
        for line in gaps:
            terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows how the logs of its cluster end."""
    report: Any = yield
    used = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(used, Cluster):
        for process in used.local.processes:
            lines = Path(process.log).read_text(errors="replace").splitlines()[-LOG_LINES:]
            state = "running" if process.is_alive() else "down"
            report.sections.append((f"end of the log of {process.id} ({state})", "\n".join(lines)))
    return report
