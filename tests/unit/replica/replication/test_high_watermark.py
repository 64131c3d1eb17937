"""The high watermark: it never goes back (R5), and waits for every replica that counts. Tests
``replication/leader_state.py``, ``replication/follower_state.py`` and ``replication/isr.py`` (the barrier)."""

from __future__ import annotations

from support.leader_states import LAG, leader_of_three, three_replicas, three_servers
from tidelog.wire.messages import IsrMember
from tidelog_replica.replication.follower_state import FollowerState
from tidelog_replica.replication.leader_state import LeaderState


def test_the_high_watermark_is_the_least_durable_offset_of_the_isr() -> None:
    leader = leader_of_three()
    leader.on_append(10, 1.0)
    leader.on_fetch("r2", 2, 10, 1.1)
    leader.on_fetch("r3", 3, 6, 1.1)
    assert leader.high_watermark == 0, "the leader's own flush counts too"
    leader.on_durable(8)
    assert leader.high_watermark == 6
    leader.on_fetch("r3", 3, 10, 1.2)
    assert leader.high_watermark == 8


def test_R5_the_high_watermark_never_goes_back() -> None:
    leader = leader_of_three(log_end=10, high_watermark=7)
    leader.on_fetch("r2", 2, 5, 1.0)
    leader.on_fetch("r3", 3, 5, 1.0)
    assert leader.high_watermark == 7


def test_a_follower_counts_for_nothing_until_it_has_fetched_in_this_epoch() -> None:
    leader = leader_of_three("r1 r2", log_end=10)
    assert leader.high_watermark == 0
    leader.on_fetch("r2", 2, 10, 1.0)
    assert leader.high_watermark == 10


def test_the_high_watermark_is_frozen_below_min_insync_replicas() -> None:
    leader = leader_of_three("r1", log_end=10, high_watermark=4)
    assert not leader.has_quorum
    leader.on_append(12, 1.0)
    leader.on_durable(12)
    assert leader.high_watermark == 4
    leader.on_fetch("r2", 2, 12, 2.0)
    assert leader.high_watermark == 4, "a proposed member does not make the committed ISR larger"
    leader.on_state(three_replicas("r1 r2", 6), 2.1)
    assert leader.high_watermark == 12


def test_B1_a_proposed_member_counts_from_the_proposal_on() -> None:
    leader = leader_of_three("r1 r2", log_end=0)
    leader.on_fetch("r2", 2, 0, 0.1)
    leader.on_fetch("r3", 3, 0, 0.1)
    proposal = leader.due_proposal(0.1)
    assert proposal is not None
    assert leader.maximal_isr == ("r1", "r2", "r3")
    leader.on_append(5, 0.2)
    leader.on_durable(5)
    leader.on_fetch("r2", 2, 5, 0.3)
    assert leader.high_watermark == 0
    leader.on_fetch("r3", 3, 5, 0.4)
    assert leader.high_watermark == 5


def test_a_removal_takes_effect_only_with_the_controllers_new_state() -> None:
    leader = leader_of_three()
    leader.on_append(5, 1.0)
    leader.on_durable(5)
    leader.on_fetch("r2", 2, 5, 1.1)
    leader.on_tick(LAG)
    proposal = leader.due_proposal(LAG)
    assert proposal is not None
    assert proposal.isr == (IsrMember("r1", 1), IsrMember("r2", 2))
    assert proposal.epoch == 5
    assert leader.high_watermark == 0
    leader.on_state(three_replicas("r1 r2", 6), LAG + 0.1)
    assert leader.high_watermark == 5


def test_B12_a_lagging_replica_that_joins_does_not_take_the_high_watermark_back() -> None:
    leader = leader_of_three("r1 r2")
    leader.on_append(10, 1.0)
    leader.on_durable(10)
    leader.on_fetch("r2", 2, 10, 2.0)
    leader.on_append(20, 2.0)
    leader.on_fetch("r3", 3, 10, 2.1)
    leader.on_state(three_replicas("r1 r2 r3", 6), 2.2)
    assert leader.high_watermark == 10


def test_B17_the_end_is_known_when_the_high_watermark_reaches_the_start_of_the_epoch() -> None:
    leader = leader_of_three("r1 r2", log_end=10, high_watermark=4)
    leader.on_append(12, 0.1)
    leader.on_durable(12)
    leader.on_fetch("r2", 2, 9, 0.2)
    assert not leader.knows_end
    leader.on_fetch("r2", 2, 10, 0.3)
    assert leader.knows_end


def test_B13_the_high_watermark_is_never_above_the_own_log_end_and_never_goes_back() -> None:
    follower = FollowerState("r1", 1, 2)
    assert follower.on_high_watermark(10, log_end=5)
    assert follower.high_watermark == 5
    assert not follower.on_high_watermark(3, log_end=5)
    assert follower.high_watermark == 5


# --- who joins under a steady load -----------------------------------------------------------------------


def steady(leader: LeaderState, seconds: float, *, behind: int = 5, begin: float = 1.0) -> float:
    """A record every 10 ms, flushed at once; r2 fetches as often, and what it says is ``behind`` records old. Returns
    when it was proposed, or the end."""
    first, now = leader.epoch_start, begin
    for number in range(round(seconds * 100)):
        now = begin + number / 100
        end = first + number + 1
        leader.on_append(end, now)
        leader.on_durable(end)
        leader.on_tick(now)
        leader.on_fetch("r2", 2, max(first, end - behind), now, 1)
        if leader.proposal is not None:
            break
    return now


def test_a_follower_that_keeps_up_joins_a_leader_that_is_always_a_round_trip_ahead() -> None:
    leader = leader_of_three("r1", minimum=1)
    assert steady(leader, 5.0) < 1.3, "nothing but a pause of the load would let it, if the HW did not wait for it"
    assert leader.proposal is not None and [member.node for member in leader.proposal.isr] == ["r1", "r2"]
    assert leader.high_watermark == leader.followers["r2"].durable


def test_the_high_watermark_does_not_wait_for_a_lagging_follower() -> None:
    leader = leader_of_three("r1", minimum=1)
    steady(leader, 5.0, behind=150)
    assert leader.proposal is None
    assert leader.high_watermark == 500


def test_the_high_watermark_waits_not_long_for_a_follower_that_falls_silent_before_it_joins() -> None:
    leader = leader_of_three("r1", minimum=1, log_end=10)
    leader.on_append(20, 0.1)
    leader.on_durable(20)
    leader.on_fetch("r2", 2, 15, 0.2)
    leader.on_append(30, 0.3)
    leader.on_durable(30)
    assert (leader.proposal, leader.high_watermark) == (None, 20), "it had everything a moment ago"
    assert leader.deadline() == 1.0
    leader.on_tick(1.0)
    assert leader.high_watermark == 30


def test_the_high_watermark_does_not_wait_for_a_follower_that_may_not_join() -> None:
    leader = leader_of_three("r1", minimum=1, log_end=10, known=three_servers(r2=9))
    leader.on_fetch("r2", 2, 10, 0.5)
    leader.on_append(20, 0.6)
    leader.on_durable(20)
    assert leader.high_watermark == 20, "it is not in the life that the metadata knows"


def test_a_replica_that_left_the_isr_is_not_awaited_until_it_has_fetched_again() -> None:
    leader = leader_of_three("r1", minimum=1, log_end=10)
    leader.on_append(20, 0.1)
    leader.on_durable(20)
    leader.on_fetch("r2", 2, 15, 0.2)
    leader.on_append(30, 0.3)
    leader.on_state(three_replicas("r1", 6), 0.4)
    leader.on_durable(30)
    assert leader.high_watermark == 30
