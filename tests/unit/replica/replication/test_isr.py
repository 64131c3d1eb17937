"""Which ISR a leader proposes while replicas come and go, and when it hands over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.types import PartitionState, ServerState
from tidelog_replica.replication.leader_state import LeaderState

SERVERS = {n: ServerState(n, f"ws://{n}", 1, fenced=False) for n in ("r1", "r2", "r3", "r4", "r5")}


def state(replicas: str, isr: str = "", *, epoch: int = 5, **more: object) -> PartitionState:
    nodes = tuple(replicas.split())
    return PartitionState(nodes, tuple((isr or replicas).split()), "r1", 2, epoch, **more)  # type: ignore[arg-type]


def leader(at: PartitionState, rule: str = "isr") -> LeaderState:
    return LeaderState(
        "r1",
        1,
        at,
        SERVERS,
        min_insync_replicas=1,
        max_lag_s=10.0,
        retry_s=1.0,
        high_watermark=5,
        log_end=5,
        durable=5,
        now=0.0,
        commit_rule=rule,
    )


def proposed(core: LeaderState) -> tuple[str, tuple[str, ...]]:
    """Cause and members; ("", ()) where there is none."""
    found = core.proposal
    return ("", ()) if found is None else (found.cause, tuple(member.node for member in found.isr))


def fetch(core: LeaderState, *nodes: str, now: float = 1.0, to: int = 5) -> None:
    for node in nodes:
        core.on_fetch(node, 1, to, now, stamp=1 << 40)


def begin_epoch(core: LeaderState) -> None:
    """The control batch of the leader's epoch is in its log."""
    core.on_append(6, 1.0)
    core.on_durable(6)


MOVING = {"learners": ("r4", "r5"), "target": ("r1", "r4", "r5"), "origin": ("r1", "r2", "r3")}
LEAVING = {"target": ("r1", "r4", "r5"), "origin": ("r1", "r2", "r3")}


def test_learners_of_the_target_are_proposed_when_they_have_caught_up_and_count_from_then_on() -> None:
    core = leader(state("r1 r2 r3", **MOVING))
    assert proposed(core) == ("", ())
    fetch(core, "r4")
    assert proposed(core) == ("follower_caught_up", ("r1", "r2", "r3", "r4"))
    assert core.maximal_isr == ("r1", "r2", "r3", "r4"), "the controller may elect it before this leader hears"
    core.on_append(8, 1.5)
    core.on_durable(8)
    for node in ("r2", "r3"):
        core.on_fetch(node, 1, 8, 1.6, stamp=1 << 40)
    assert core.high_watermark == 5, "nothing is committed without it"


def test_other_learners_are_not_proposed() -> None:
    core = leader(state("r1 r2 r3", learners=("r4",)))
    fetch(core, "r4")
    core.on_tick(2.0)
    assert proposed(core) == ("", ())


def test_with_quorum_one_joins_and_one_goes_at_a_time() -> None:
    core = leader(state("r1 r2 r3", **MOVING), "quorum")
    fetch(core, "r4", "r5")
    assert proposed(core)[1] == ("r1", "r2", "r3", "r4")
    core = leader(state("r1 r2 r3 r4 r5", **LEAVING), "quorum")
    begin_epoch(core)
    fetch(core, "r2", "r3", to=6)
    core.due_proposal(1.0)
    assert proposed(core) == ("reassigned", ("r1", "r3", "r4", "r5"))


def test_with_quorum_nobody_goes_before_a_majority_of_those_that_are_left_has_all_that_is_committed() -> None:
    """What two steps may leave with r1 alone of three, the others could elect without (found by simulation seed
    50322)."""
    core = leader(state("r1 r2 r3 r4 r5", **LEAVING), "quorum")
    fetch(core, "r2", "r3", "r4", "r5")
    assert proposed(core) == ("", ()), "nor before this leader has committed anything in its epoch"
    begin_epoch(core)
    fetch(core, "r2", "r3", to=6)
    assert core.due_proposal(1.0) is not None
    core.on_state(state("r1 r3 r4 r5", epoch=6, **LEAVING), 1.0)
    assert (core.due_proposal(1.0), core.high_watermark) == (None, 6), "r1 and r3 only have it: two of four"
    fetch(core, "r5", to=6)
    core.due_proposal(1.0)
    assert proposed(core) == ("reassigned", ("r1", "r4", "r5"))


def test_a_new_leader_drops_at_once_the_replicas_outside_the_target() -> None:
    done = state("r1 r2 r3 r4 r5", target=("r1", "r4", "r5"), origin=("r1", "r2", "r3"))
    core = leader(done)
    assert proposed(core) == ("reassigned", ("r1", "r4", "r5"))
    assert core.maximal_isr == done.replicas, "those that go count until the controller has said so"


@pytest.mark.parametrize("missing", ["r1", "r4"])
def test_nobody_is_dropped_before_all_of_the_target_is_in_sync_the_leader_too(missing: str) -> None:
    at = state("r1 r2 r3 r4 r5", target=("r1", "r4", "r5"), origin=("r1", "r2", "r3"))
    lacking = {"r1": replace(at, target=("r4", "r5")), "r4": replace(at, isr=("r1", "r2", "r3", "r5"))}
    assert proposed(leader(lacking[missing])) == ("", ())


def test_a_cancelled_learner_counts_no_more_when_the_state_says_so() -> None:
    core = leader(state("r1 r2 r3", **MOVING))
    fetch(core, "r4")
    core.on_state(state("r1 r2 r3", epoch=6), 2.0)
    assert (proposed(core), core.maximal_isr) == (("", ()), ("r1", "r2", "r3"))
    assert core.refuse_follower("r4", 1, 2) is not None


def test_with_quorum_a_leader_that_is_to_be_succeeded_needs_the_successors_word_that_nobody_else_leads() -> None:
    """A successor leads without seals: a majority without it proves nothing any more."""
    for successor, proved in ((None, True), ("r3", False)):
        core = leader(state("r1 r2 r3", successor=successor), "quorum")
        core.on_durable(5)
        core.ask_confirmation(1.0)
        stamp = core.stamp("r2", 1.5)
        core.on_fetch("r2", 1, 5, 2.0, stamp)
        assert (core._confirmed_since() >= 1.0) == proved
