"""``tidelog verify record`` against real processes, and what it leaves there. What is recorded while a leader is
killed: ``test_killed_and_paused_processes``."""

from __future__ import annotations

import json
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


def there(cluster: Cluster, what: str) -> set[str]:
    """Topics or groups of recordings."""
    found = json.loads(cluster.ok(what, "list", "--json"))
    names = {one["name" if what == "topics" else "group"] for one in found}
    return {name for name in names if name.startswith(("verify-", "mine"))}


def test_verify_record_deletes_its_topic_and_groups_unless_keep_is_set(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing else goes: of a topic that was there before, only the groups that were not."""
    before = there(cluster, "topics"), there(cluster, "groups")
    few = ["--seconds", "3", "--partitions", "1"]  # so that each application has committed positions
    done = cluster.tidelog("verify", "record", str(tmp_path / "gone"), *few)
    told = done.stderr.decode()
    assert (done.returncode, "deleted; --keep would have kept them" in told) == (0, True), told
    assert (there(cluster, "topics"), there(cluster, "groups")) == before

    cluster.ok("verify", "record", str(tmp_path / "kept"), *few, "--keep")
    (topic,) = there(cluster, "topics") - before[0]
    assert there(cluster, "groups") - before[1] == {f"{topic}-group", f"{topic}-app1"}

    cluster.ok("topics", "create", "mine")
    cluster.ok("produce", "mine", stdin=b"one\n")
    cluster.ok("consume", "mine", "--group", "mine-group", "--to-end")
    done = cluster.tidelog("verify", "record", str(tmp_path / "mine"), *few, "--topic", "mine")
    assert (done.returncode, "\ngroup mine-app1 deleted" in done.stderr.decode()) == (0, True), done.stderr.decode()
    assert there(cluster, "topics") == {*before[0], topic, "mine"}
    assert there(cluster, "groups") - before[1] == {f"{topic}-group", f"{topic}-app1", "mine-group"}
