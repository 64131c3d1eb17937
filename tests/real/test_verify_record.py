"""``tidelog verify record`` against real processes. What is recorded while a leader is killed: ``test_failures``."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import Cluster, run_tidelog

pytestmark = pytest.mark.real


def test_the_command_records_a_new_topic_and_says_how_to_judge_it(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "run"
    done = cluster.tidelog("verify", "record", str(file), "--seconds", "0.5", "--partitions", "1")
    assert done.returncode == 0, done.stderr.decode()
    assert f"'tidelog verify check {file}' judges it" in done.stderr.decode()
    judged = run_tidelog("verify", "check", str(file))
    assert judged.returncode == 0
    assert judged.stdout.decode().endswith("nothing is wrong\n")
