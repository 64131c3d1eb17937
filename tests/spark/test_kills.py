"""Exactly once when Spark is killed and tasks fail: real Spark, in a process of its own, and a real cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("copying.py")
PATIENCE_S = 240
"""On a busy machine Spark takes its time."""


def copies(client: tidelog.sync.Log) -> list[bytes]:
    return [record.value or b"" for record in client.consume("to", start="earliest", end="latest")]


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_F1_F2_F6_a_killed_driver_a_new_leader_and_a_task_that_fails(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    """Killed in the middle of the second batch, of which a part is staged by then. A leader ends, and after the
    restart a task fails half-way. Every record is there once, and no half of a batch was ever seen."""
    with tidelog.sync.connect(cluster.url) as client:
        for topic in ("from", "to"):
            client.create_topic(topic, partitions=2, replication_factor=3, config={"flush": "os"})
        with client.producer("from") as producer:
            for n in range(2500):
                producer.submit(b"%d" % n, key=b"k", partition=n % 2)

        (tmp_path / "trouble").write_text("block")
        command = [sys.executable, str(PROGRAM), cluster.url, str(tmp_path)]
        driver = subprocess.Popen(command, env=dict(os.environ), start_new_session=True)
        try:
            until = time.monotonic() + PATIENCE_S
            while not (tmp_path / "blocked").exists():
                assert not has_ended(driver) and time.monotonic() < until
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert len(copies(client)) == 1000, "the first batch, whole, and nothing of the second"

        leader = client.describe("to").partitions[0].leader
        cluster.stop(leader)
        (tmp_path / "trouble").write_text("fail")
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        cluster.start(leader)
        assert Counter(copies(client)) == Counter(b"%d" % n for n in range(2500))
