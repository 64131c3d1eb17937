"""C. Partitions that are paused while some replicas lack records, and the leaders after that."""

from __future__ import annotations

from typing import Any

import pytest
from tidelog.errors import TidelogError
from tidelog.types import Acks
from tidelog.wire.messages import DrainServer, Fetch, PauseTopic, TransferLeader

from scenarios.stage import Stage


def wish(stage: Stage, message: Any) -> None:
    """Send a request to the active controller; it must succeed."""
    answer = stage.ask(stage.active, message)
    assert not isinstance(answer, TidelogError), answer


def led_by_who_alone_has_everything(rule: str) -> tuple[Stage, str]:
    """Return a stage and its leader: the second replica leads, all are in sync, and only the leader has acknowledged
    the last record."""
    stage = Stage(commit_rule=rule, replica_max_lag_ms="60000")
    leader = stage.others[0]
    wish(stage, TransferLeader("t", 0, leader))
    stage.until(lambda: stage.leads(leader) and all(stage.follows(n, leader) for n in stage.replicas if n != leader))
    stage.put(b"m0")
    fetches = stage.hold(lambda sender, receiver, message: isinstance(message, Fetch))
    last = stage.send(b"m1", by="hasty", acks=Acks.LEADER)
    stage.until(lambda: last.result != "")
    assert last.result == "ok" and stage.now.isr == stage.now.replicas
    wish(stage, PauseTopic("t"))
    stage.until(lambda: all(stage.partition(node) is None for node in stage.replicas))
    assert stage.now.leader == leader
    fetches.holding = False
    return stage, leader


@pytest.mark.parametrize("rule", ["isr", "leader"])
def test_the_leader_of_a_paused_topic_leads_on_since_no_other_replica_need_have_all_acked_records(rule: str):
    stage, leader = led_by_who_alone_has_everything(rule)
    epoch = stage.now.leader_epoch
    wish(stage, PauseTopic("t", pause=False))
    assert (stage.now.leader, stage.now.leader_epoch) == (leader, epoch + 1)
    stage.settle()
    assert all(stage.values(node) == [b"m0", b"m1"] for node in stage.replicas)


@pytest.mark.parametrize("rule", ["isr", "leader"])
def test_a_drained_server_gives_a_paused_partition_away_when_others_can_copy_it(rule: str):
    stage, drained = led_by_who_alone_has_everything(rule)
    wish(stage, DrainServer(drained))
    stage.run_for(2.0)
    assert stage.now.leader == drained, "in name, and nobody else has everything"
    wish(stage, PauseTopic("t", pause=False))
    stage.until(lambda: stage.leader not in ("", drained))
    assert stage.changes[-1].cause == "transferred"
    stage.settle()
    assert all(stage.values(node) == [b"m0", b"m1"] for node in stage.replicas)
