"""D. Power lost everywhere, and a flipped bit in synced data above the recovery point."""

from __future__ import annotations

import pytest
from tidelog.batch.format import read_header

from scenarios.stage import Stage

VALUES = [(b"%d" % number).ljust(400) for number in range(12)]


def written(**config: str) -> Stage:
    """Return a stage in which everything is synced by all, committed, and read; only the first sync made a recovery
    point durable."""
    stage = Stage(replicas=int(config.pop("replicas", "3")), **{"min_insync_replicas": "2", **config})
    for value in VALUES:
        stage.put(value)
    stage.until(stage.in_sync)
    assert stage.read_all() == VALUES
    return stage


def flip(stage: Stage, node: str, number: int) -> None:
    """Invert a bit in the body of that batch of a server's last segment."""
    path = stage.files(node, ".log")[-1]
    data, position = stage.replica(node).disk.read(path), 0
    for _ in range(number):
        position += read_header(data, position).size
    stage.flip(node, path, position + 200)


def is_doubtful(stage: Stage, node: str) -> bool:
    return node in stage.now.doubtful


@pytest.mark.parametrize("rule", ["isr", "quorum", "leader"])
@pytest.mark.parametrize("minimum", ["1", "2"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("order", ["together", "victim first", "victim last"])
@pytest.mark.parametrize("number", [3, len(VALUES) - 1], ids=["within", "last batch"])
def test_D11_a_flipped_bit_in_one_synced_tail_costs_nothing_when_all_lose_power(rule, minimum, place, order, number):
    stage = written(commit_rule=rule, min_insync_replicas=minimum)
    victim = stage.now.replicas[place]
    others = [node for node in stage.replicas if node != victim]
    stage.lose_power(*stage.replicas)
    flip(stage, victim, number)
    groups = {"together": [stage.replicas], "victim first": [[victim], others], "victim last": [others, [victim]]}
    for group in groups[order]:
        stage.restart(*group)
        stage.run_for(0.4)
    stage.until(stage.in_sync)
    assert all(stage.values(node) == VALUES for node in stage.replicas)
    stage.settle()


def test_D11_a_doubtful_member_waits_for_the_other_one_and_does_not_lead():
    stage = written()
    stage.lose_power(*stage.replicas)
    stage.until(lambda: not stage.leader)
    alone, others = stage.now.isr[0], stage.now.elr
    flip(stage, alone, 3)
    stage.always(lambda: pytest.fail("it leads without what others hold") if stage.leads(alone) else None)
    stage.restart(alone)
    stage.run_for(30.0)
    assert is_doubtful(stage, alone) and not stage.leader
    assert (stage.now.isr, stage.now.elr) == ((alone,), others)
    stage.restart(*others)
    stage.until(lambda: bool(stage.leader))
    stage.settle()
    assert stage.read_all() == VALUES


def test_D11_each_copy_has_another_hole_and_nothing_is_lost():
    stage = written()
    stage.lose_power(*stage.replicas)
    for number, node in enumerate(stage.replicas):
        flip(stage, node, 2 + 3 * number)
    stage.until(lambda: not stage.leader)
    stage.restart(*stage.replicas)
    stage.until(stage.in_sync, 30.0)
    assert all(stage.values(node) == VALUES for node in stage.replicas)
    assert stage.happened("log_doubtful") and not stage.happened("records_possibly_lost")
    stage.settle()


@pytest.mark.parametrize("alone", ["only replica", "isr of one"])
def test_D11_the_only_member_opens_at_once_and_reports_possible_losses(alone):
    stage = Stage(replicas=1 if alone == "only replica" else 3, min_insync_replicas="1")
    if alone == "isr of one":
        stage.kill(*stage.others)
        stage.until(lambda: stage.now.isr == (stage.first,))
    for value in VALUES:
        stage.put(value)
    node = stage.first
    stage.run_for(0.2)
    stage.lose_power(node)
    flip(stage, node, 3)
    stage.invariants.lost_copies.add((node, stage.key))
    began = stage.loop.now
    stage.invariants._allow_loss(stage.key, 1, 3)
    stage.restart(node)
    stage.until(lambda: bool(stage.happened("records_possibly_lost")), 12.0)
    assert stage.loop.now - began < (1.0 if alone == "only replica" else 8.0)
    (change,) = [change for change in stage.changes if change.event == "records_possibly_lost"]
    assert (change.cause, change.evidence["start"], change.evidence["end"]) == ("doubtful_tail", "3", "12")


def test_D11_a_copy_keeps_its_tail_while_its_leader_is_one_that_the_metadata_name_only():
    """The metadata name a server that died with the others: the records behind the copy's own hole are still
    needed."""
    stage = written(min_insync_replicas="1")
    one, two, three = stage.now.replicas
    stage.lose_power(*stage.replicas)
    flip(stage, three, 2)
    flip(stage, two, 8)
    stage.restart(three)
    stage.run_for(0.3)
    stage.restart(one)
    stage.run_for(0.3)
    stage.kill(one)
    assert stage.now.isr == (two,)
    stage.restart(two)
    stage.until(lambda: stage.leads(two))
    assert stage.values(two)[: len(VALUES)] == VALUES
    stage.settle()
