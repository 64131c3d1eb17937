"""The demands on commit rule ``quorum``: every majority that may elect has everything committed."""

from __future__ import annotations

import pytest
from scenarios.stage import Stage
from tidelog.testing.invariants.ghost import Violation
from tidelog.testing.invariants.views import view
from tidelog.wire.messages import Fetch


def quorum() -> Stage:
    """Return a stage with commit rule ``quorum``, in sync, with a committed record."""
    stage = Stage(commit_rule="quorum", flush="fsync")
    stage.put(b"m0")
    return stage


def check(stage: Stage) -> None:
    """Run the checks that follow every commit and every change of the metadata."""
    stage.invariants._check_members(stage.key, "now")


def forget(stage: Stage, *nodes: str) -> None:
    """Remove the records of these servers, unnoticed."""
    for node in nodes:
        del stage.invariants._held[node, stage.key]


def test_one_of_three_members_may_lack_what_is_committed():
    stage = quorum()
    stage.settle()
    forget(stage, stage.others[0])
    check(stage)


def test_two_of_three_may_not_whether_they_live_or_not():
    stage = quorum()
    stage.settle()
    forget(stage, *stage.others)
    with pytest.raises(Violation, match=r"^R3 0: \['r.', 'r.'\] of the ISR"):
        check(stage)


def test_a_server_that_died_in_a_step_keeps_what_it_reported_before():
    """Found by seeds 239 and 384: the server had flushed a record and reported it, and died in a step of another
    partition before the leader's own disk answered; the commit that followed was right."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.kill(third)
    stage.stall_flushes(first)
    pending = stage.send(b"m1", patience=30.0)
    stage.until(lambda: stage.durable(second) == stage.end(first) and b"m1" in stage.values(second))
    stage.run_for(0.01)
    assert not pending.result
    stage.replica(second).stop(power=True, in_mid_step=True)
    stage.resume_flushes()
    stage.until(lambda: pending.result != "")
    stage.settle()


def test_a_server_with_a_new_disk_is_no_member_and_is_not_counted_as_lacking_records():
    """Found by seed 486: the third never had the record, and the second is wiped. Both that are left in the ISR are
    needed for an election, and one of them has it."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.kill(third)
    stage.put(b"m1")
    stage.kill(second)
    stage.replace_disk(second)
    check(stage)
    stage.hold(lambda sender, receiver, body: sender == second and isinstance(body, Fetch))
    stage.restart(second)
    stage.until(lambda: stage.replica(second).broker_epoch_known())
    assert second not in stage.now.isr
    check(stage)
    stage.kill(second)
    check(stage)
    assert first in stage.now.isr
    stage.settle()


def test_a_commit_needs_a_majority_of_the_replicas_not_of_those_that_are_left():
    """The third replica has lost its disk. No election fails when the second lacks the record too: both are asked."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.kill(third)
    stage.replace_disk(third)
    stage.hold(lambda sender, receiver, body: sender == third and isinstance(body, Fetch))
    stage.restart(third)
    stage.until(lambda: stage.replica(third).broker_epoch_known())
    stage.put(b"m1")
    leader = view(stage.partition(first))
    assert leader.isr == stage.now.isr == tuple(node for node in stage.now.replicas if node != third)
    stage.invariants._check_members(stage.key, "now", leader)
    forget(stage, second)
    check(stage)
    with pytest.raises(Violation, match=r"^R4 0: only \['r.'\] of"):
        stage.invariants._check_members(stage.key, "now", leader)


def test_an_unclean_leader_that_brings_back_lost_records_commits_nothing_by_that():
    """Found with the rule in every topic: the empty log of a new disk led first, then one with all records."""
    stage = Stage(commit_rule="quorum", flush="fsync", unclean_election="true")
    stage.put(b"m0")
    stage.run_for(2.0)
    first, (second, third) = stage.first, stage.others
    stage.kill(*stage.replicas)
    stage.replace_disk(first)
    stage.until(lambda: not stage.leader)
    stage.restart(first)
    stage.until(lambda: stage.leads(first))
    assert stage.values(first) == [] and stage.invariants.committed_end(stage.key) == 0
    stage.kill(first)
    stage.until(lambda: not stage.leader)
    stage.restart(second)
    stage.until(lambda: stage.leads(second))
    assert stage.hw(second) > 0 and stage.now.isr == (second,)
    stage.restart(third)
    stage.settle()
    assert b"m0" in stage.read_all()
