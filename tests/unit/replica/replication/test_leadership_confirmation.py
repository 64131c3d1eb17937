"""The proof that nobody else led: what a fetch proves, whose it takes, when the controller is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tidelog.types import PartitionState, ServerState
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.leadership_confirmation import ASKED_S

LIVES = {"r1": 1, "r2": 2, "r3": 3}
NEVER = -math.inf


def state(isr: str, elr: str = "", epoch: int = 5) -> PartitionState:
    return PartitionState(("r1", "r2", "r3"), tuple(isr.split()), "r1", 2, epoch, tuple(elr.split()))


def make(
    isr: str = "r1 r2 r3", *, elr: str = "", log_end: int = 0, replicas: tuple[str, ...] = tuple(LIVES), **fields: Any
) -> LeaderState:
    return LeaderState(
        "r1",
        1,
        replace(state(isr, elr), replicas=replicas),
        {node: ServerState(node, "", life, fenced=False) for node, life in LIVES.items()},
        min_insync_replicas=1,
        max_lag_s=10.0,
        retry_s=0.5,
        high_watermark=0,
        log_end=log_end,
        durable=log_end,
        now=0.0,
        patience_s=0.2,
        **fields,
    )


def fetch(leader: LeaderState, node: str, stamp: int, now: float) -> None:
    """A fetch whose sender has seen ``stamp`` arrives, and is to wait."""
    leader.on_fetch(node, LIVES[node], 0, now, stamp)
    leader.wait(node, LIVES[node])


def test_a_fetch_proves_no_more_than_what_its_sender_had_seen() -> None:
    leader = make("r1 r2")
    fetch(leader, "r2", 0, 1.0)
    assert leader.confirmed_at == NEVER, "it may have been sent at any time"
    first, second = leader.stamp("r2", 1.0), leader.stamp("r2", 2.0)
    fetch(leader, "r2", first, 9.0)
    assert leader.confirmed_at == 1.0
    fetch(leader, "r2", second, 9.1)
    assert leader.confirmed_at == 2.0
    fetch(leader, "r2", first, 9.2)
    assert leader.confirmed_at == 2.0, "a late copy"


def test_a_late_answer_confirms_the_round_that_it_answers() -> None:
    leader = make("r1 r2")
    stamps = [leader.stamp("r2", float(number)) for number in range(30)]
    fetch(leader, "r2", stamps[3], 50.0)
    assert leader.confirmed_at == NEVER, "so long ago that it is forgotten"
    fetch(leader, "r2", stamps[27], 51.0)
    assert leader.confirmed_at == 27.0


def test_every_member_of_the_isr_must_have_vouched() -> None:
    leader = make()
    fetch(leader, "r2", leader.stamp("r2", 3.0), 3.1)
    assert leader.confirmed_at == NEVER
    fetch(leader, "r3", leader.stamp("r3", 2.0), 3.2)
    assert leader.confirmed_at == 2.0


def test_a_proposed_member_counts_it_may_be_elected() -> None:
    leader = make("r1 r2")
    fetch(leader, "r2", leader.stamp("r2", 1.0), 1.1)
    assert leader.confirmed_at == 1.0
    fetch(leader, "r3", 0, 1.2)
    assert leader.proposal is not None
    assert leader.confirmed_at == NEVER


def test_an_eligible_replica_outside_the_isr_counts() -> None:
    leader = make("r1 r2", elr="r3")
    fetch(leader, "r2", leader.stamp("r2", 1.0), 1.1)
    assert leader.confirmed_at == NEVER
    leader.on_state(state("r1 r2", epoch=6), 2.0)
    assert leader.confirmed_at == 1.0


def test_where_anybody_may_be_elected_everybody_must_vouch() -> None:
    leader = make("r1 r2", unclean_election=True)
    fetch(leader, "r2", leader.stamp("r2", 1.0), 1.1)
    assert leader.confirmed_at == NEVER


def test_under_rule_quorum_a_majority_suffices() -> None:
    leader = make(commit_rule="quorum")
    fetch(leader, "r2", leader.stamp("r2", 1.0), 1.1)
    assert leader.confirmed_at == 1.0
    fetch(leader, "r3", leader.stamp("r3", 2.0), 2.1)
    assert leader.confirmed_at == 2.0


def test_nothing_is_confirmed_before_the_high_watermark_reaches_the_start_of_the_epoch() -> None:
    leader = make("r1 r2", log_end=10)
    fetch(leader, "r2", leader.stamp("r2", 1.0), 1.1)
    assert leader.confirmed_at == NEVER
    leader.on_fetch("r2", 2, 10, 1.2, 0)
    assert leader.confirmed_at == 1.0


def test_a_request_for_confirmation_wakes_the_idle_followers() -> None:
    leader = make()
    for node in ("r2", "r3"):
        fetch(leader, node, 0, 1.0)
    leader.ask_confirmation(2.0)
    assert [waiting.node for waiting in leader.take_notices()] == ["r2", "r3"]
    for node in ("r2", "r3"):
        fetch(leader, node, leader.stamp(node, 2.0), 2.1)
    assert leader.confirmed_at == 2.0
    assert leader.take_notices() == []


def test_a_fetch_that_was_on_its_way_when_somebody_asked_is_answered_by_a_notice() -> None:
    leader = make("r1 r2")
    old = leader.stamp("r2", 1.0)
    leader.ask_confirmation(2.0)
    fetch(leader, "r2", old, 2.05)
    assert leader.confirmed_at == 1.0
    assert [waiting.node for waiting in leader.take_notices()] == ["r2"]


def test_a_leader_without_voters_asks_the_controller_at_once() -> None:
    leader = make("r1")
    leader.ask_confirmation(2.0)
    assert leader.deadline() == 2.0
    assert leader.due_confirmation(2.0)
    assert not leader.due_confirmation(2.0), "it is on its way"
    leader.on_confirmation(2.0, True, 2.3)
    assert leader.confirmed_at == 2.0
    assert not leader.due_confirmation(9.0)
    assert leader.deadline() == math.inf


def test_a_request_while_the_controller_is_being_asked_has_it_asked_again() -> None:
    leader = make("r1")
    leader.ask_confirmation(2.0)
    assert leader.due_confirmation(2.0)
    leader.ask_confirmation(2.2)
    leader.on_confirmation(2.0, True, 2.3)
    assert leader.due_confirmation(2.3)


def test_the_controller_is_asked_where_followers_are_silent() -> None:
    leader = make("r1 r2")
    leader.ask_confirmation(2.0)
    assert not leader.due_confirmation(2.1)
    assert leader.deadline() == 2.2
    assert leader.due_confirmation(2.2)
    leader.on_confirmation(2.2, False, 3.0)
    assert leader.deadline() == 3.5
    assert leader.due_confirmation(3.5)
    leader.on_confirmation(3.5, True, 3.6)
    assert leader.confirmed_at == 3.5


def test_nobody_is_asked_for_ever() -> None:
    leader = make("r1")
    leader.ask_confirmation(2.0)
    assert not leader.due_confirmation(2.0 + ASKED_S)
    assert leader.deadline() == math.inf


def test_followers_that_vouch_in_time_spare_the_controller() -> None:
    leader = make("r1 r2")
    leader.ask_confirmation(2.0)
    fetch(leader, "r2", leader.stamp("r2", 2.05), 2.1)
    assert leader.deadline() == math.inf
    assert not leader.due_confirmation(2.2)


def test_under_rule_quorum_a_future_replica_is_no_voter_yet() -> None:
    """Of three replicas two may elect without this leader while it hears of the fourth alone."""
    joining = replace(state("r1 r2 r3"), learners=("r4",), target=("r1", "r2", "r3", "r4"))
    leader = LeaderState(
        "r1",
        1,
        joining,
        {node: ServerState(node, "", life, fenced=False) for node, life in (LIVES | {"r4": 4}).items()},
        min_insync_replicas=1,
        max_lag_s=10.0,
        retry_s=0.5,
        high_watermark=0,
        log_end=0,
        durable=0,
        now=0.0,
        commit_rule="quorum",
    )
    leader.on_fetch("r4", 4, 0, 1.0, 0)
    assert leader.proposal is not None and "r4" in leader.maximal_isr
    leader.on_fetch("r4", 4, 0, 1.2, leader.stamp("r4", 1.1))
    assert leader.confirmed_at == NEVER and leader.unconfirmed(0.0) == ("r2", "r3")
    leader.on_fetch("r2", 2, 0, 1.4, leader.stamp("r2", 1.3))
    assert leader.confirmed_at == 1.3 and leader.unconfirmed(1.0) == ()


def test_a_request_to_the_voters_only_does_not_prolong_the_requests_to_the_controller() -> None:
    """A linearizable read has the controller asked. What is asked afterwards, for clients that are content with the
    voters, does not have it asked for longer."""
    leader = make("r1 r2")
    leader.ask_confirmation(2.0)
    assert leader.due_confirmation(2.2)
    leader.on_confirmation(2.2, False, 3.0)
    for now in (3.0, 20.0, 2.0 + ASKED_S):
        leader.ask_voters(now)
    assert not leader.due_confirmation(2.0 + ASKED_S)


def test_the_last_in_sync_needs_the_word_of_every_replica_for_the_proof() -> None:
    """It may not have heard that unclean elections are allowed. The followers here lag too far to join the ISR."""
    leader = make("r1", log_end=10)
    leader.confirm_alone(5.0)
    assert leader.confirmed_at == NEVER and leader.fresh_at == 5.0
    fetch(leader, "r2", 0, 5.5)
    fetch(leader, "r3", 0, 5.5)
    leader.take_notices()
    leader.ask_confirmation(6.0)
    assert [waiting.node for waiting in leader.take_notices()] == ["r2", "r3"]
    fetch(leader, "r2", leader.stamp("r2", 6.0), 6.1)
    assert leader.confirmed_at == NEVER, "r3 may lead"
    fetch(leader, "r3", leader.stamp("r3", 6.0), 6.2)
    assert leader.confirmed_at == 6.0 and leader.proposal is None


def test_a_single_replica_needs_nobody_for_the_proof() -> None:
    leader = make("r1", replicas=("r1",))
    leader.confirm_alone(5.0)
    assert leader.confirmed_at == leader.fresh_at == 5.0
