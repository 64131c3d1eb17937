"""The pytest plugin: fixtures for tests of programs that use Tidelog. pytest loads it by an entry point.

Nothing but pytest is imported until a test asks for a fixture: a run that uses none pays for this module alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tidelog.testing.world_fixture import pytest_addoption, pytest_pyfunc_call, tidelog_world

if TYPE_CHECKING:
    from tidelog.testing.real.cluster import RealCluster

__all__ = ["pytest_addoption", "pytest_pyfunc_call", "tidelog_cluster", "tidelog_faulty_cluster", "tidelog_world"]


@pytest.fixture
def tidelog_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster of one replica server, for this test alone: it has no topics, no groups and no records of other
    tests. It runs in a thread of this process, with real sockets; ``address`` is for ``tidelog.connect``. For tests
    on trio, on asyncio and without a loop. See ``RealCluster``. Its data are deleted at the end."""
    with _cluster(tmp_path_factory, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def tidelog_faulty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster of three replica servers, for this test alone, whose servers the test kills, restarts, cuts off,
    pauses and slows down: ``kill_leader``, ``restart``, ``cut``, ``pause``, ``heal``, ``slow_disk``. ``awaitable``
    has the same methods for tests on trio and asyncio. See ``RealCluster``. Its data are deleted at the end."""
    with _cluster(tmp_path_factory, replicas=3) as cluster:
        yield cluster


@contextmanager
def _cluster(folders: pytest.TempPathFactory, replicas: int) -> Iterator[RealCluster]:
    from tidelog.testing.real.cluster import RealCluster

    folder = folders.mktemp("tidelog-cluster")
    try:
        with RealCluster(folder, replicas) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)
