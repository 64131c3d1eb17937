"""The cluster that most benchmarks measure: a controller, three replica servers and a gateway, as processes of this
machine, in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port


def create(folder: Path) -> LocalCluster:
    """Write the configuration of the cluster to a folder, with free ports, and return the cluster. Starts nothing."""
    return LocalCluster.create(folder, controllers=1, replicas=3, gateways=1, base_port=free_base_port(5))


@contextmanager
def new_cluster(data: Path | None = None) -> Iterator[LocalCluster]:
    """Yield the cluster, not started, in a new folder below ``data`` (by default of the system's temporary folder).
    At the end it is stopped and the folder is deleted."""
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=data) as folder:
        cluster = create(Path(folder))
        try:
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def running_cluster() -> Iterator[LocalCluster]:
    """Yield the cluster of ``new_cluster``, started and ready for clients."""
    with new_cluster() as cluster:
        cluster.start()
        trio.run(cluster.wait_ready)
        yield cluster
