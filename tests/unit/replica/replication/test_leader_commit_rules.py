"""A leader's decisions by commit rule; followers judged by records; learners; a leader whose disk stalls. Tests
``replication/leader_state.py``."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tidelog.types import PartitionState, ServerState
from tidelog_replica.replication.leader_state import LeaderState

LAG = 10.0
LIVES = {"r1": 1, "r2": 2, "r3": 3, "r4": 4, "r5": 5}


def state(isr: str, *, replicas: str = "r1 r2 r3", learners: str = "", epoch: int = 5) -> PartitionState:
    members = tuple(replicas.split())
    return PartitionState(members, tuple(isr.split()), "r1", 2, epoch, learners=tuple(learners.split()))


def make(
    rule: str = "isr", isr: str = "r1 r2 r3", *, replicas: str = "r1 r2 r3", learners: str = "", **fields: Any
) -> LeaderState:
    log_end = fields.pop("log_end", 0)
    values: dict[str, Any] = {"min_insync_replicas": 1, "high_watermark": 0, "durable": log_end, **fields}
    return LeaderState(
        "r1",
        1,
        state(isr, replicas=replicas, learners=learners),
        {node: ServerState(node, "", life, fenced=False) for node, life in LIVES.items()},
        max_lag_s=LAG,
        retry_s=0.5,
        log_end=log_end,
        now=0.0,
        commit_rule=rule,
        **values,
    )


def fetch(leader: LeaderState, node: str, durable: int, now: float = 1.0) -> None:
    leader.on_fetch(node, LIVES[node], durable, now)


def append(leader: LeaderState, end: int, now: float = 1.0, *, durable: int | None = None) -> None:
    leader.on_append(end, now)
    leader.on_durable(end if durable is None else durable)


# --- commit rule leader ----------------------------------------------------------------------------------


def test_under_rule_leader_what_the_leader_has_flushed_is_committed() -> None:
    leader = make("leader")
    append(leader, 10, durable=7)
    assert leader.high_watermark == 7


def test_rule_leader_too_is_frozen_below_min_insync_replicas() -> None:
    leader = make("leader", "r1", min_insync_replicas=2)
    append(leader, 10)
    assert leader.high_watermark == 0


# --- commit rule quorum ----------------------------------------------------------------------------------


def test_under_rule_quorum_the_slowest_replica_delays_nobody() -> None:
    leader = make("quorum")
    append(leader, 10)
    fetch(leader, "r2", 6)
    assert leader.high_watermark == 6
    fetch(leader, "r3", 9)
    assert leader.high_watermark == 9


def test_the_leaders_own_disk_may_be_the_slow_one() -> None:
    leader = make("quorum")
    append(leader, 10, durable=0)
    fetch(leader, "r2", 8)
    fetch(leader, "r3", 10)
    assert leader.high_watermark == 8


def test_a_majority_is_one_of_the_replicas_not_of_the_isr() -> None:
    leader = make("quorum", "r1 r2 r3", replicas="r1 r2 r3 r4 r5")
    append(leader, 10)
    fetch(leader, "r2", 10)
    assert leader.high_watermark == 0
    fetch(leader, "r4", 10)
    assert leader.high_watermark == 0, "what a replica outside the ISR promises does not hold"
    fetch(leader, "r3", 9)
    assert leader.high_watermark == 9


def test_without_a_majority_in_the_isr_nothing_is_committed() -> None:
    leader = make("quorum", "r1 r2", replicas="r1 r2 r3 r4 r5")
    append(leader, 10)
    fetch(leader, "r2", 10)
    assert not leader.has_quorum
    assert leader.high_watermark == 0


def test_RAFT_nothing_of_older_epochs_is_committed_before_something_of_this_one_is() -> None:
    leader = make("quorum", log_end=10, high_watermark=4)
    fetch(leader, "r2", 8)
    fetch(leader, "r3", 10)
    assert leader.high_watermark == 4
    assert not leader.knows_end
    append(leader, 11)
    fetch(leader, "r2", 11)
    assert leader.high_watermark == 11
    assert leader.knows_end


def test_under_rule_quorum_nobody_leaves_the_isr_for_being_slow() -> None:
    leader = make("quorum", max_lag_records=5)
    fetch(leader, "r2", 0)
    append(leader, 100)
    leader.on_tick(50 * LAG)
    assert leader.proposal is None
    assert leader.deadline() == math.inf


def test_under_rule_quorum_a_replica_that_lost_its_data_returns_when_it_holds_everything() -> None:
    leader = make("quorum", "r1 r2", log_end=10, high_watermark=10)
    append(leader, 12)
    fetch(leader, "r2", 12)
    fetch(leader, "r3", 11)
    assert leader.proposal is None
    fetch(leader, "r3", 12)
    assert leader.proposal is not None
    assert [member.node for member in leader.proposal.isr] == ["r1", "r2", "r3"]


# --- lag by records --------------------------------------------------------------------------------------


def test_B11_a_burst_throws_no_healthy_follower_out() -> None:
    leader = make(isr="r1 r2", max_lag_records=100)
    end = copied = 0
    for step in range(200):
        now = 1.0 + step * 0.05
        if step % 50 == 0:
            end += 10_000
            append(leader, end, now)
        fetch(leader, "r2", copied, now + 0.01)
        leader.on_tick(now + 0.02)
        assert leader.proposal is None, f"at {now}, {end - copied} records behind"
        copied = min(end, copied + 1000)


def test_B11_a_follower_that_could_have_fetched_and_stays_behind_leaves_before_its_time() -> None:
    leader = make(isr="r1 r2", max_lag_records=100)
    append(leader, 1000, 1.0)
    fetch(leader, "r2", 500, 1.1)
    leader.on_tick(2.0)
    assert leader.proposal is None
    append(leader, 100_000, 2.05)
    fetch(leader, "r2", 899, 2.09)
    assert leader.deadline() == 2.1
    leader.on_tick(2.1)
    assert leader.proposal is not None
    assert [member.node for member in leader.proposal.isr] == ["r1"]


def test_a_follower_that_came_near_enough_is_judged_by_its_next_question() -> None:
    leader = make(isr="r1 r2", max_lag_records=100)
    append(leader, 1000, 1.0)
    fetch(leader, "r2", 500, 1.1)
    append(leader, 100_000, 2.0)
    fetch(leader, "r2", 900, 2.05)
    leader.on_tick(3.0)
    assert leader.proposal is None
    leader.on_tick(3.05)
    assert leader.proposal is not None


def test_a_follower_that_was_not_woken_is_not_judged_by_records() -> None:
    leader = make(isr="r1 r2", max_lag_records=100)
    fetch(leader, "r2", 0, 1.0)
    append(leader, 10_000, 1.1)
    leader.on_tick(5.0)
    assert leader.proposal is None
    assert leader.deadline() == 1.1 + LAG


# --- learners --------------------------------------------------------------------------------------------


def test_learners_are_served_and_count_for_nothing() -> None:
    leader = make(isr="r1 r2", replicas="r1 r2", learners="r4")
    assert leader.refuse_follower("r4", 4, 2) is None
    append(leader, 10)
    fetch(leader, "r4", 3)
    fetch(leader, "r2", 10)
    assert leader.high_watermark == 10
    fetch(leader, "r4", 10)
    leader.on_tick(50 * LAG)
    assert leader.proposal is None
    assert leader.followers["r4"].durable == 10


@pytest.mark.parametrize(("behind", "joins"), [(0.5, True), (2.0, False)])
def test_under_commit_rule_leader_a_copy_joins_that_keeps_up_though_the_high_watermark_waits_for_nobody(
    behind: float, joins: bool
) -> None:
    leader = make("leader", isr="r1")
    append(leader, 10, 1.0)
    fetch(leader, "r2", 5, 1.0)
    append(leader, 20, 1.0 + behind)
    fetch(leader, "r2", 15, 1.0 + behind)
    assert leader.high_watermark == 20
    assert (leader.proposal is not None) == joins


def test_learners_come_and_go_with_the_state_and_a_promoted_one_joins_when_it_asks_again() -> None:
    leader = make(isr="r1 r2", replicas="r1 r2", learners="r4")
    fetch(leader, "r4", 0)
    leader.on_state(state("r1 r2", replicas="r1 r2 r4", epoch=6), 2.0)
    assert leader.proposal is None
    leader.on_fetch("r4", 4, 0, 2.1, leader.stamp("r4", 2.0))
    assert leader.proposal is not None
    assert [member.node for member in leader.proposal.isr] == ["r1", "r2", "r4"]
    leader.on_state(state("r1 r2", replicas="r1 r2", epoch=7), 3.0)
    refusal = leader.refuse_follower("r4", 4, 2)
    assert refusal is not None and refusal.code == "NOT_REPLICA"


# --- a stalled disk --------------------------------------------------------------------------------------


def test_B9_a_leader_whose_disk_stalls_removes_nobody() -> None:
    leader = make()
    append(leader, 10, durable=0)
    leader.stalled = True
    leader.on_tick(50 * LAG)
    assert leader.proposal is None
    assert leader.deadline() == math.inf
    leader.stalled = False
    leader.on_tick(50 * LAG)
    assert leader.proposal is not None


def test_changed_settings_count_from_the_next_decision_on() -> None:
    leader = make(isr="r1 r2", min_insync_replicas=2)
    leader.configure(min_insync_replicas=3, max_lag_s=1.0, max_lag_records=0, unclean_election=False, now=0.5)
    assert not leader.has_quorum
    append(leader, 10, 1.0)
    assert leader.deadline() == 1.0
