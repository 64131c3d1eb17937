"""A real cluster in a thread and a real Spark session, one of each for all modules: they cost more than the tests."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import trio
from cluster.harness import QUICK_GROUPS, Cluster, running
from tidelog.spark.worker_python import worker_python
from tidelog_replica.config import ReplicaSettings

OF_REPLICAS: dict[str, object] = {
    "settings": ReplicaSettings(
        shutdown_s=0.0, groups=QUICK_GROUPS, retention_check_interval_s=0.5, tail_cache_bytes=0
    )
}
"""What is deleted or compacted is not there soon after, not even in memory."""


class ClusterThread:
    """A cluster that blocking tests can use."""

    def __init__(self, folder: Path) -> None:
        self._ready: Queue[None] = Queue()
        self._cluster: Cluster
        self._thread = threading.Thread(target=trio.run, args=(self._main, folder), daemon=True)
        self._thread.start()
        self._ready.get(timeout=30)
        self.url = self._cluster.gateway

    async def _main(self, folder: Path) -> None:
        with trio.CancelScope() as self._scope:
            async with running(folder, settings=dict.fromkeys(("r1", "r2", "r3"), OF_REPLICAS)) as self._cluster:
                self._token = trio.lowlevel.current_trio_token()
                self._ready.put(None)
                await trio.sleep_forever()

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return trio.from_thread.run(call, *args, trio_token=self._token)

    def stop(self, node: str) -> None:
        self.run(self._cluster.stop, node)

    def start(self, node: str, **settings: object) -> str:
        """Start a process, with more settings than it has; returns its URL."""
        self._cluster.settings[node] = self._cluster.settings.get(node, {}) | settings
        return str(self.run(self._cluster.start, node))

    def close(self) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(20)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    thread = ClusterThread(tmp_path_factory.mktemp("cluster"))
    yield thread
    thread.close()


@pytest.fixture(scope="package")
def java() -> None:
    """What Spark runs with."""
    pytest.importorskip("pyspark.sql", reason="PySpark is not installed: pip install 'tidelog[spark]'")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.skip("Spark needs Java 17, which is not here: apt install openjdk-17-jre-headless")


@pytest.fixture(scope="package")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark import sql

    with pytest.MonkeyPatch.context() as patch:
        root = Path(__file__).resolve().parent.parent.parent
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYSPARK_PYTHON", worker_python("local"))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root / "shared"), os.environ.get("PYTHONPATH", "")]))
        session = (
            sql.SparkSession.builder.master("local[2,2]")  # a task that fails is tried once more
            .appName("tidelog-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .getOrCreate()
        )
        yield session
        session.stop()
