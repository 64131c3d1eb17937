"""A leader's decisions: which replicas are in sync, which proposals it sends, which requests it refuses."""

from __future__ import annotations

import math

from support.leader_states import LAG, leader_of_three, three_replicas, three_servers
from tidelog.types import ServerState
from tidelog.wire.messages import IsrMember
from tidelog_replica.replication.leader_epochs import LeaderEpochCache, divergence


def test_one_proposal_is_in_flight_and_it_is_sent_again_identical() -> None:
    leader = leader_of_three("r1 r2")
    leader.on_fetch("r2", 2, 0, 0.1)
    leader.on_fetch("r3", 3, 0, 0.1)
    first = leader.due_proposal(0.1)
    assert first is not None
    assert leader.due_proposal(0.2) is None, "it is on its way"
    leader.on_proposal_unanswered(first, 1.0)
    assert leader.deadline() == 1.5
    assert leader.due_proposal(1.4) is None
    leader.on_tick(LAG + 1)
    assert leader.due_proposal(LAG + 1) is first, "also when another would be better by now"


def test_only_a_newer_epoch_settles_a_proposal() -> None:
    leader = leader_of_three("r1 r2")
    leader.on_fetch("r2", 2, 0, 0.1)
    leader.on_fetch("r3", 3, 0, 0.1)
    proposal = leader.due_proposal(0.1)
    assert proposal is not None
    leader.on_proposal_unanswered(proposal, 0.2)
    assert "r3" in leader.maximal_isr
    leader.on_state(three_replicas("r1", 6), 0.3)
    assert leader.maximal_isr[0] == "r1"
    assert leader.proposal is not proposal


def test_B3_nobody_joins_below_the_start_of_the_epoch() -> None:
    leader = leader_of_three("r1 r2", log_end=10, high_watermark=4)
    leader.on_fetch("r3", 3, 6, 0.1)
    assert leader.proposal is None, "past the stale high watermark is not enough"
    leader.on_fetch("r3", 3, 10, 0.2)
    assert leader.proposal is not None


def test_B2_nobody_joins_below_the_high_watermark() -> None:
    leader = leader_of_three("r1 r2")
    leader.on_append(50_000, 1.0)
    leader.on_durable(50_000)
    leader.on_fetch("r2", 2, 50_000, 2.0)
    leader.on_fetch("r3", 3, 49_999, 2.0)
    assert leader.proposal is None
    leader.on_fetch("r3", 3, 50_000, 2.1)
    assert leader.proposal is not None


def test_B5_a_fetch_of_an_earlier_life_lets_nobody_join() -> None:
    leader = leader_of_three("r1 r2", known=three_servers(r3=30))
    leader.on_fetch("r3", 3, 0, 0.1)
    assert leader.proposal is None
    leader.on_fetch("r3", 30, 0, 0.2)
    assert leader.proposal is not None
    assert leader.proposal.isr[-1] == IsrMember("r3", 30)
    refusal = leader.refuse_follower("r3", 3, 2)
    assert refusal is not None and refusal.code == "FENCED_BROKER_EPOCH"


def test_a_fenced_server_does_not_join() -> None:
    known = three_servers()
    known["r3"] = ServerState("r3", "", 3, fenced=True)
    leader = leader_of_three("r1 r2", known=known)
    leader.on_fetch("r3", 3, 0, 0.1)
    assert leader.proposal is None


def test_a_new_life_of_a_follower_may_have_less() -> None:
    leader = leader_of_three(log_end=10)
    leader.on_fetch("r2", 2, 10, 0.1)
    leader.on_fetch("r2", 2, 8, 0.2)
    assert leader.followers["r2"].durable == 10, "within one life: an older message came late"
    leader.on_fetch("r2", 20, 3, 0.3)
    assert leader.followers["r2"].durable == 3


def test_B10_a_follower_that_never_fetches_again_is_removed_by_the_leaders_timer() -> None:
    leader = leader_of_three()
    for node, life in (("r2", 2), ("r3", 3)):
        leader.on_fetch(node, life, 0, 1.0)
    assert leader.deadline() == math.inf, "nobody is behind: no timer"
    leader.on_append(5, 2.0)
    leader.on_durable(5)
    leader.on_fetch("r2", 2, 5, 2.1)
    assert leader.deadline() == 2.0 + LAG
    leader.on_tick(1.9 + LAG)
    assert leader.proposal is None
    leader.on_tick(2.0 + LAG)
    assert leader.proposal is not None
    assert [member.node for member in leader.proposal.isr] == ["r1", "r2"]
    assert leader.proposal.cause == "follower_lagging"
    assert leader.proposal.evidence["r3.behind_ms"] == "10000"


def test_B9_followers_that_have_everything_stay_in_sync_while_nothing_comes() -> None:
    leader = leader_of_three()
    leader.on_append(5, 1.0)
    for node, life in (("r2", 2), ("r3", 3)):
        leader.on_fetch(node, life, 5, 1.1)
    leader.on_tick(41.0)
    assert leader.proposal is None


def test_B11_a_follower_that_is_always_a_little_behind_stays() -> None:
    leader = leader_of_three("r1 r2")
    end = 0
    for step in range(1, 400):
        now = step * 0.1
        leader.on_append(end + 100, now)
        leader.on_fetch("r2", 2, end, now + 0.05)
        leader.on_tick(now + 0.06)
        end += 100
    assert leader.proposal is None


def test_idle_followers_are_notified_once() -> None:
    leader = leader_of_three()
    leader.wait("r2", 7)
    leader.on_append(1, 1.0)
    assert leader.take_notices() == [("r2", 7, 0)], "with what it has: all that was there"
    leader.on_append(2, 1.1)
    assert leader.take_notices() == []
    leader.wait("r2", 7)
    leader.on_source_closed(7)
    leader.on_append(3, 1.2)
    assert leader.take_notices() == []


def test_requests_name_the_leader_epoch() -> None:
    leader = leader_of_three()
    codes = [refusal and refusal.code for refusal in map(leader.refuse_epoch, (2, -1, 1, 3))]
    assert codes == [None, None, "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"]
    refusal = leader.refuse_follower("r9", 1, 2)
    assert refusal is not None and refusal.code == "NOT_REPLICA"


def test_divergence_names_the_epoch_and_its_end() -> None:
    epochs = LeaderEpochCache([(1, 0), (3, 5)])
    assert divergence(7, 3, epochs, 0, 9) is None
    assert divergence(5, 1, epochs, 0, 9) is None
    assert divergence(6, 1, epochs, 0, 9) == (1, 5)
    assert divergence(10, 3, epochs, 0, 9) == (3, 9), "the follower is ahead"
    assert divergence(4, 2, epochs, 0, 9) == (1, 5), "epoch 2 is unknown here"
    assert divergence(3, 0, epochs, 0, 9) == (0, 0), "nothing in common"
    assert divergence(0, -1, epochs, 0, 9) is None


def test_a_replica_that_left_the_isr_does_not_count_until_it_has_fetched_again() -> None:
    """It may have told the controller that what it held is lost: what it told its leader before is worth nothing."""
    leader = leader_of_three(log_end=10)
    leader.on_fetch("r2", 2, 10, 1.0)
    leader.on_fetch("r3", 3, 10, 1.0)
    leader.wait("r3", 77)
    leader.on_state(three_replicas("r1 r2", epoch=6), 2.0)
    assert leader.proposal is None
    assert [waiting.node for waiting in leader.take_notices()] == ["r3"], "it is asked to fetch"
    stamp = leader.stamp("r3", 2.0)
    leader.on_fetch("r3", 3, 10, 2.1, stamp - 1)
    assert leader.proposal is None, "this one was on its way"
    leader.on_fetch("r3", 3, 10, 2.2, stamp)
    assert leader.proposal is not None and len(leader.proposal.isr) == 3
