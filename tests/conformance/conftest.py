"""One cluster of real processes for all libraries, and one running driver at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import trio
from drivers import COMMAND_TIMEOUT_S, DRIVERS, Driver, Library
from real.running import Cluster, running_cluster
from recording import Traffic
from tidelog.cli.local.local_cluster import LocalCluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run three replica servers and two gateways, which accept pages of any origin. A test that stops one starts it
    again."""
    folder = tmp_path_factory.mktemp("conformance")
    with running_cluster(folder, controllers=1, prepare=_admit_all_pages) as running:
        yield running


def _admit_all_pages(local: LocalCluster) -> None:
    for process in local.of_role("gateway"):
        path = local.folder / process.id / "config.toml"
        path.write_text('allowed_origins = ["*"]\n' + path.read_text())


@pytest.fixture(scope="session", params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Run the driver of each library in turn; skips libraries whose program is missing."""
    if program := Driver.missing(request.param):
        pytest.skip(f"the driver of {request.param} needs {program}")
    running = Driver(request.param)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def traffic(driver: Driver, cluster: Cluster) -> Iterator[Traffic]:
    """Check all messages between the library and the gateways."""
    running = Traffic(cluster.gateways)
    yield running
    running.stop()


@pytest.fixture
def library(driver: Driver, traffic: Traffic) -> Iterator[Library]:
    """Connect the library to the first gateway; it also knows the second."""
    name = f"{driver.name}-{next(_numbers)}"
    driver.do("connect", log=name, urls=traffic.urls, connect_timeout_s=COMMAND_TIMEOUT_S)
    yield Library(driver, name, name)
    driver.do("close", log=name)


@pytest.fixture
def needs(driver: Driver) -> Callable[[str], None]:
    """Return a function that skips the test if the library lacks a feature."""

    def need(feature: str) -> None:
        if feature not in driver.features:
            pytest.skip(f"{driver.name} has no {feature}")

    return need


@pytest.fixture
def local(cluster: Cluster) -> Iterator[LocalCluster]:
    """Give access to the processes of the cluster; afterwards all of them run again."""
    yield cluster.local
    for process in cluster.local.processes:
        cluster.local.resume(process.id)
        if not process.is_alive():
            cluster.local.restart(process.id)
    trio.run(cluster.local.wait_ready)
