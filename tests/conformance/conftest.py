"""One cluster of real processes for all libraries, and one running driver at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from drivers import DRIVERS, missing
from real.running import Cluster, running_cluster
from tidelog.cli.conformance.cases import Case
from tidelog.cli.conformance.client import Client
from tidelog.cli.conformance.proxy import Proxy
from tidelog.cli.conformance.suite import Outcome, admit_all_pages, run_case
from tidelog.cli.conformance.traffic import Traffic

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run three replica servers and two gateways, which accept pages of any origin. A case that stops one starts it
    again."""
    folder = tmp_path_factory.mktemp("conformance")
    with running_cluster(folder, controllers=1, prepare=admit_all_pages) as running:
        yield running


@pytest.fixture(scope="session", params=DRIVERS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Run the driver of each library in turn; skips libraries whose program is missing."""
    if program := missing(request.param):
        pytest.skip(f"the driver of {request.param} needs {program}")
    running = Client(DRIVERS[request.param])
    yield running
    running.stop()


@pytest.fixture(scope="session")
def traffic(client: Client) -> Traffic:
    """Return the record of all messages between the library and the gateways."""
    return Traffic()


@pytest.fixture(scope="session")
def urls(traffic: Traffic, cluster: Cluster) -> Iterator[list[str]]:
    """Return the URLs of the gateways behind the proxy that checks the messages."""
    with Proxy(cluster.gateways, traffic.passing) as proxy:
        yield proxy.urls


@pytest.fixture
def run(client: Client, urls: list[str], cluster: Cluster) -> Callable[[Case], Outcome]:
    """Return a function that runs a case with the library."""
    return lambda case: run_case(case, client, urls, cluster.local, f"log-{next(_numbers)}")
