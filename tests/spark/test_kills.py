"""Exactly once when machines and drivers are killed and tasks fail: a pipeline submitted to a real Spark cluster,
which gets Tidelog with it, from and to a real cluster of Tidelog."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.run import Run, load

from spark.standalone import PATIENCE_S, Standalone, has_ended

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

PIPELINE = """
name = "copy"
gateway = "{gateway}"
[in.source]
topic = "from"
options = {{ maxOffsetsPerTrigger = 1000, groupId = "copy" }}
[table.copies]
python = "troubled.py:passed"
[out.copies]
from = "copies"
topic = "to"
value = "raw"
"""
SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.quantile=0.5",
    "spark.speculation.multiplier=1",
    "spark.speculation.interval=100ms",
)


@pytest.fixture
def machines(java: None, tmp_path: Path) -> Iterator[Standalone]:
    (tmp_path / "machines").mkdir()
    standalone = Standalone(tmp_path / "machines")
    yield standalone
    standalone.close()


def copies(client: tidelog.sync.Log) -> list[bytes]:
    return [record.value or b"" for record in client.consume("to", start="earliest", end="latest")]


def wait_met(folder: Path, trouble: str, driver: subprocess.Popen[bytes], machines: Standalone) -> int:
    """The process that has come there."""
    until = time.monotonic() + PATIENCE_S
    while not (met := folder / f"met-{trouble}").exists():
        assert not has_ended(driver) and time.monotonic() < until, machines.told()
    return int(met.read_text())


def test_F1_F2_F6_killed_machines_and_drivers_a_new_leader_and_tasks_that_are_run_twice(
    machines: Standalone, spark: Any, cluster: Any, tmp_path: Path
) -> None:
    """Batch 0 (records 0 to 999): one task stays behind, and Spark runs a copy of it on the other machine, which
    wins. Batch 1: a machine is killed while a task stages there; the task is run again on the other, and then the
    driver is killed. A leader ends, the pipeline is run again, in another Spark, and a task fails half-way. Every
    record is there once, and no half of a batch was ever seen."""
    shutil.copy(Path(__file__).with_name("troubled.py"), tmp_path)
    (tmp_path / "copy.toml").write_text(PIPELINE.format(gateway=cluster.url))
    (tmp_path / "trouble").write_text("501 0 stay\n1501 0 stay\n1501 1 stay\n")
    with tidelog.sync.connect(cluster.url) as client:
        for topic in ("from", "to"):
            client.topics.create(topic, partitions=2, replication_factor=3, config={"flush": "os"})
        with client.producer("from") as producer:
            for n in range(2500):
                producer.submit(b"%d" % n, key=b"k", partition=n % 2)

        driver = machines.submit(tmp_path / "copy.toml", *SPECULATION)
        try:
            slow = wait_met(tmp_path, "501-0", driver, machines)
            machines.kill_machine_of(wait_met(tmp_path, "1501-0", driver, machines))
            again = wait_met(tmp_path, "1501-1", driver, machines)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert slow != again
        assert len(copies(client)) == 1000, "the first batch, whole and once, and nothing of the second"

        leader = client.topics.describe("to").partitions[0].leader
        cluster.stop(leader)
        (tmp_path / "trouble").write_text("1701 0 fail\n")
        run = Run(load(tmp_path / "copy.toml"), spark, tmp_path)
        [outcome] = run.finish(run.start())
        cluster.start(leader)
        assert (tmp_path / "met-1701-0").exists()
        assert (outcome.rows, outcome.batches) == (1500, 2)
        assert Counter(copies(client)) == Counter(b"%d" % n for n in range(2500))
        assert [at.lag for at in client.groups.progress("copy")] == [0, 0]
