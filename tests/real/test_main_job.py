"""The main job with real processes, as a user types it: a file in, the same lines out, Spark over the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Cluster

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TIDELOG_TEST_DATA", ROOT.parent / "shared" / "data"))
SSH_LOG = DATA / "OpenSSH_2k.log"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SSH_LOG.exists(), reason=f"{SSH_LOG} is not there: set TIDELOG_TEST_DATA"),
]


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return [line.rstrip(b"\r") for line in SSH_LOG.read_bytes().rstrip(b"\n").split(b"\n")]


@pytest.fixture(scope="module")
def produced(cluster: Cluster) -> dict[str, Any]:
    cluster.ok("topics", "create", "ssh", "--partitions", "3", "--replication-factor", "3")
    result: dict[str, Any] = json.loads(
        cluster.ok("produce", "ssh", "--file", str(SSH_LOG), "--acks", "all", "--json")
    )
    return result


def test_every_line_is_acknowledged(produced: dict[str, Any]) -> None:
    assert (produced["sent"], produced["acked"], produced["failed"]) == (2000, 2000, 0)


def test_the_same_lines_come_back_in_order_per_partition(
    cluster: Cluster, produced: dict[str, Any], lines: list[bytes]
) -> None:
    out = cluster.ok("consume", "ssh", "--from", "earliest", "--to-end", "--format", "json")
    records = [json.loads(line) for line in out.splitlines()]
    assert sorted(record["value"].encode() for record in records) == sorted(lines)
    for partition in range(3):
        mine = [record for record in records if record["partition"] == partition]
        assert [record["offset"] for record in mine] == list(range(len(mine)))
        wanted = iter(lines)
        assert all(record["value"].encode() in wanted for record in mine), "in the order of the file"


def test_the_value_format_gives_back_the_bytes(
    cluster: Cluster, produced: dict[str, Any], lines: list[bytes]
) -> None:
    out = cluster.ok("consume", "ssh", "--from", "earliest", "--to-end")
    assert sorted(out.rstrip(b"\n").split(b"\n")) == sorted(lines)


def test_describe_follows_its_contract(cluster: Cluster, produced: dict[str, Any]) -> None:
    topic = json.loads(cluster.ok("topics", "describe", "ssh", "--json"))
    assert {"name", "topic_id", "config", "partitions"} <= topic.keys()
    assert topic["config"]["min_insync_replicas"] == 2
    assert topic["config"]["unclean_election"] is False
    assert sum(p["high_watermark"] for p in topic["partitions"]) == 2000
    for p in topic["partitions"]:
        assert sorted(p["isr"]) == sorted(p["replicas"]) == ["r1", "r2", "r3"]
        assert p["leader"] in p["isr"]
        assert p["log_start"] == 0
        assert {"partition", "leader_epoch", "epoch"} <= p.keys()


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is missing: apt-get install openjdk-17-jre-headless")
def test_spark_finds_the_failed_passwords(cluster: Cluster, produced: dict[str, Any]) -> None:
    job = Path(__file__).parent / "programs" / "failed_passwords.py"
    done = subprocess.run(
        [sys.executable, str(job), cluster.gateways[0], "ssh"], capture_output=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"rows": 2000, "failed": 520, "from": {"183.62.140.253": 286}}
