"""D. Doubtful tails on learners, and below the feature level that introduced them."""

from __future__ import annotations

import pytest
from tidelog.feature_levels import ALL, DOUBTFUL_TAILS, Levels
from tidelog.wire.messages import AlterIsr, Done, RaiseLevel, Reassign

from scenarios.stage import Stage
from scenarios.test_d_tails import VALUES, flip

BEFORE = DOUBTFUL_TAILS - 1


def with_learner(rule: str) -> tuple[Stage, str]:
    """Return a stage with a replica that is being added: it has synced everything that the leader has, and is not in
    sync yet because the leader's proposal does not arrive."""
    stage = Stage(servers=4, commit_rule=rule, min_insync_replicas="2")
    (new,) = set(stage.replicas) - set(stage.now.replicas)
    proposals = stage.hold(lambda sender, receiver, body: isinstance(body, AlterIsr))
    stage.ask(stage.active, Reassign("t", 0, (*stage.now.replicas, new)))
    for value in VALUES:
        stage.put(value)
    stage.until(lambda: stage.durable(new) == stage.end(stage.first))
    proposals.lose()
    assert stage.now.learners == (new,)
    return stage, new


@pytest.mark.parametrize("rule", ["isr", "quorum", "leader"])
@pytest.mark.parametrize("order", ["together", "learner first", "learner last"])
@pytest.mark.parametrize("number", [3, len(VALUES) - 1], ids=["within", "last batch"])
def test_D11_a_learner_with_a_doubtful_tail_fetches_it_again_and_joins(rule, order, number):
    stage, new = with_learner(rule)
    members = [node for node in stage.replicas if node != new]
    stage.lose_power(*stage.replicas)
    flip(stage, new, number)
    groups = {"together": [stage.replicas], "learner first": [[new], members], "learner last": [members, [new]]}
    for group in groups[order]:
        stage.restart(*group)
        stage.run_for(0.4)
    stage.settle()
    stage.until(lambda: new in stage.now.isr)
    assert not stage.now.learners and not stage.now.doubtful
    assert all(stage.values(node) == VALUES for node in stage.replicas)
    assert not stage.happened("records_possibly_lost")


@pytest.mark.parametrize("rule", ["isr", "quorum", "leader"])
def test_D11_members_fetch_missing_records_from_a_learner_that_has_a_hole_of_its_own(rule):
    stage, new = with_learner(rule)
    stage.lose_power(*stage.replicas)
    flip(stage, new, 3)
    for node in stage.now.replicas:
        flip(stage, node, 8)
    stage.restart(*stage.replicas)
    stage.settle()
    assert all(stage.values(node) == VALUES for node in stage.replicas)
    assert stage.happened("log_doubtful") and not stage.happened("records_possibly_lost")


# --- below the feature level ---------------------------------------------------------------------------------


def below(**config: str) -> Stage:
    """Return a stage as ``written`` does, with processes that support more than the feature level of the cluster."""
    stage = Stage(levels=Levels(newest=BEFORE), min_insync_replicas="2", **config)
    assert stage.invariants.metadata.level == BEFORE
    for value in VALUES:
        stage.put(value)
    stage.until(stage.in_sync)
    stage.run_for(1.0)  # every copy is durable, and knows what is committed
    return stage


@pytest.mark.parametrize("rule", ["isr", "quorum"])
@pytest.mark.parametrize("order", ["together", "victim first", "victim last"])
def test_D11_below_the_level_a_doubtful_copy_is_handed_over_as_lost_and_copied_anew(rule, order):
    stage = below(commit_rule=rule)
    victim = stage.now.replicas[1]
    others = [node for node in stage.replicas if node != victim]
    stage.lose_power(*stage.replicas)
    flip(stage, victim, 3)
    groups = {"together": [stage.replicas], "victim first": [[victim], others], "victim last": [others, [victim]]}
    for group in groups[order]:
        stage.restart(*group)
        stage.run_for(0.4)
    stage.settle()
    assert stage.invariants.metadata.level == BEFORE
    assert all(stage.values(node) == VALUES for node in stage.replicas)
    assert not stage.happened("records_possibly_lost")


def test_D11_below_the_level_the_only_member_is_cut_and_says_so():
    """Only the leader commits, and the replicas that return first leave the ISR: the copy with the flipped bit is the
    only member."""
    stage = below(commit_rule="leader")
    victim = stage.now.replicas[1]
    others = [node for node in stage.replicas if node != victim]
    stage.lose_power(*stage.replicas)
    flip(stage, victim, 3)
    stage.restart(*others)
    stage.run_for(0.4)
    assert stage.now.isr == (victim,)
    stage.restart(victim)
    stage.settle()
    (event,) = stage.happened("records_possibly_lost", victim)
    assert (event.fields["start"], event.fields["end"]) == (3, len(VALUES))
    assert all(stage.values(node) == VALUES[:3] for node in stage.replicas)


def test_D11_the_level_is_raised_while_a_copy_is_doubtful():
    """The copy was handed over as lost and waits for a leader; at the new level it is treated as all doubtful
    copies."""
    stage = below()
    victim = stage.now.replicas[1]
    others = [node for node in stage.replicas if node != victim]
    stage.lose_power(*stage.replicas)
    flip(stage, victim, 3)
    stage.restart(victim)
    stage.until(lambda: bool(stage.happened("log_doubtful", victim)))
    for process in stage.processes.values():
        process.levels = ALL
    stage.kill(*stage.controllers, victim)
    stage.restart(*stage.controllers, victim, *others)
    stage.until(lambda: any(stage.processes[name].core.active for name in stage.controllers))
    stage.run_for(1.0)
    assert isinstance(stage.ask(stage.active, RaiseLevel(DOUBTFUL_TAILS)), Done)
    stage.settle()
    assert stage.invariants.metadata.level == DOUBTFUL_TAILS
    assert all(stage.values(node) == VALUES for node in stage.replicas)
    assert not stage.happened("records_possibly_lost")
