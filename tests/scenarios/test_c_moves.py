"""C. Leadership and replicas move on request, under load and under faults."""

from __future__ import annotations

from typing import Any

import pytest
from tidelog.errors import TidelogError
from tidelog.testing.processes.replica_server import DATA
from tidelog.types import Acks, PartitionState
from tidelog.wire.messages import (
    AlterIsr,
    CancelReassignment,
    DrainServer,
    Fetch,
    GrowTopic,
    HandOver,
    IsrMember,
    Reassign,
    Rebalance,
    TransferLeader,
)
from tidelog_controller.config import BalanceSettings

from scenarios.stage import Stage

RULES = ("isr", "quorum", "leader")


def wish(stage: Stage, message: Any) -> None:
    """Send a request to the active controller; it must succeed."""
    answer = stage.ask(stage.active, message)
    assert not isinstance(answer, TidelogError), answer


def refusal(stage: Stage, message: Any) -> str:
    """Send a request that must be refused and change nothing, and return the error code."""
    before = stage.invariants.metadata.topics, stage.invariants.metadata.servers
    answer = stage.ask(stage.active, message)
    assert isinstance(answer, TidelogError), answer
    assert (stage.invariants.metadata.topics, stage.invariants.metadata.servers) == before
    return answer.code


def flow(stage: Stage, name: str, count: int = 10) -> list[Any]:
    """Send records one after the other without waiting, by a producer that keeps their order."""
    return [stage.send(f"{name}{number}".encode(), by="load", window=100) for number in range(count)]


def transfer(stage: Stage, server: str) -> TransferLeader:
    return TransferLeader("t", 0, server)


# --- transfer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_C9_transfer_under_load_completes_without_loss_duplicate_or_refusal(rule: str):
    stage = Stage(commit_rule=rule, min_insync_replicas="2")
    second, epoch = stage.others[0], stage.now.leader_epoch
    batches = flow(stage, "m")
    wish(stage, transfer(stage, second))
    batches += flow(stage, "n")
    stage.until(lambda: stage.leads(second))
    stage.until(lambda: all(batch.result for batch in batches))
    assert {batch.result for batch in batches} == {"ok"}
    assert stage.values(second) == [b"%s%d" % (name, n) for name in (b"m", b"n") for n in range(10)]
    assert set(stage.now.isr) == set(stage.now.replicas), "the old leader stays in sync"
    assert stage.now.leader_epoch == epoch + 1, "no sealing in between"
    began, done = stage.changes[-2:]
    assert (began.event, began.cause, done.event, done.cause) == (
        "transfer_began",
        "operator",
        "leader_elected",
        "transferred",
    )
    assert done.evidence["from"] == stage.first and done.evidence["to"] == second
    stage.settle()


def test_C9_the_old_leader_takes_nothing_until_the_successor_has_everything():
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    slow = stage.hold(lambda sender, receiver, m: sender == second and receiver == first and isinstance(m, Fetch))
    one = stage.send(b"m0", by="a", acks=Acks.LEADER)
    stage.until(lambda: stage.end(first) == 1)
    wish(stage, transfer(stage, second))
    stage.until(lambda: stage.partition(first).leading.admission.is_handing_over)
    late = stage.send(b"m1", by="b")
    stage.run_for(0.5)
    assert stage.leader == first and stage.end(first) == 1, "nothing is appended, nobody else leads yet"
    slow.release()
    stage.until(lambda: stage.leads(second))
    stage.until(lambda: bool(one.result and late.result))
    assert (one.result, late.result) == ("ok", "ok")
    stage.until(lambda: stage.values(third) == [b"m0", b"m1"])
    stage.settle()


def test_C9_transfer_to_a_lagging_target_is_given_up_with_nothing_lost():
    stage = Stage(min_insync_replicas="1", replica_max_lag_ms="60000")
    first, (second, _) = stage.first, stage.others
    stage.stall_flushes(second)
    waiting = stage.send(b"m0", patience=60.0)
    wish(stage, transfer(stage, second))
    stage.until(lambda: stage.now.successor == second)
    stage.until(lambda: stage.now.successor is None)
    assert (stage.leader, stage.now.leader_epoch) == (first, 0)
    last = stage.changes[-1]
    assert (last.event, last.cause, last.evidence["successor"]) == (
        "transfer_withdrawn",
        "transfer_timed_out",
        second,
    )
    more = stage.send(b"m1", by="other", patience=60.0)
    stage.until(lambda: stage.values(first) == [b"m0", b"m1"])
    stage.resume_flushes()
    stage.until(lambda: bool(waiting.result and more.result))
    assert (waiting.result, more.result) == ("ok", "ok")
    stage.settle()


@pytest.mark.parametrize("dead", ["leader", "successor"])
def test_C9_the_death_of_either_side_ends_a_transfer(dead: str):
    stage = Stage(min_insync_replicas="1")
    first, (second, _) = stage.first, stage.others
    stage.put(b"m0")
    words = stage.hold(lambda sender, receiver, m: isinstance(m, HandOver))
    wish(stage, transfer(stage, second))
    stage.until(lambda: bool(words.messages))
    gone = first if dead == "leader" else second
    stage.kill(gone)
    stage.until(lambda: stage.leader not in ("", gone) and stage.now.successor is None)
    words.release()
    stage.run_for(1.0)
    assert stage.leader != gone, "the word of another epoch counts no more"
    stage.put(b"m1", by="after")
    stage.settle()


def test_C9_another_controller_goes_on_with_a_transfer_or_gives_it_up():
    stage = Stage(min_insync_replicas="1")
    first, (second, _) = stage.first, stage.others
    words = stage.hold(lambda sender, receiver, m: isinstance(m, HandOver))
    wish(stage, transfer(stage, second))
    stage.until(lambda: bool(words.messages))
    words.lose()
    stage.kill(stage.active)
    stage.until(lambda: stage.now.successor is None, 30.0)
    assert stage.leader == first and stage.changes[-1].cause == "transfer_timed_out"
    stage.put(b"m0")
    stage.settle()


# --- drain and shutdown ----------------------------------------------------------------------------------


def test_a_drained_server_leads_nothing_and_stays_in_sync_until_it_may_lead_again():
    stage = Stage(partitions=6, min_insync_replicas="2")
    stage.put(b"m0")
    wish(stage, DrainServer(stage.first))

    def led() -> list[str | None]:
        return [stage.state(key).leader for key in stage.partitions]

    stage.until(lambda: stage.first not in led())
    assert all(stage.first in stage.state(key).isr for key in stage.partitions)
    assert stage.changes[-2].cause == "draining"
    wish(stage, DrainServer(stage.first, drain=False))
    wish(stage, transfer(stage, stage.first))
    stage.until(lambda: stage.leader == stage.first)
    stage.run_for(2.0)
    assert stage.leader == stage.first, "it may lead again"
    stage.settle()


@pytest.mark.parametrize("rule", RULES)
def test_C15_each_server_is_stopped_in_order_under_load_and_no_produce_fails(rule: str):
    stage = Stage(commit_rule=rule, min_insync_replicas="2")
    batches: list[Any] = []
    for round, node in enumerate((stage.first, *stage.others)):
        batches += flow(stage, f"{round}-", 5)
        process = stage.replica(node)
        process.submit("leave", lambda process=process: process.core.leave(stage.loop.now))
        stage.until(lambda process=process: process.core.is_drained)
        batches += flow(stage, f"{round}+", 5)
        process.stop(power=False)
        stage.restart(node)
        stage.until(stage.in_sync)
    stage.until(lambda: all(batch.result for batch in batches))
    assert {batch.result for batch in batches} == {"ok"}
    stage.settle()


# --- reassignment ----------------------------------------------------------------------------------------


def with_spares(spares: int = 1, **config: str) -> tuple[Stage, list[str]]:
    """Return a stage with a partition on three servers, and further servers without it."""
    stage = Stage(servers=3 + spares, **config)
    return stage, [node for node in stage.replicas if node not in stage.now.replicas]


def test_a_reassignment_copies_joins_moves_leadership_and_deletes_the_old_copy():
    stage, (fourth,) = with_spares(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    for number in range(5):
        stage.put(b"m%d" % number)
    wish(stage, Reassign("t", 0, (fourth, second, third)))
    batches = flow(stage, "n", 5)
    stage.until(lambda: not stage.now.target)
    assert stage.now.replicas == (fourth, second, third)
    assert stage.leader != first
    stage.until(lambda: all(batch.result for batch in batches))
    assert {batch.result for batch in batches} == {"ok"}
    name = stage.directory().rpartition("/")[2]
    stage.until(lambda: name not in stage.replica(first).disk.listdir(DATA))
    assert stage.partition(first) is None
    causes = [(entry.event, entry.cause) for entry in stage.changes]
    assert ("reassignment_began", "reassign") in causes and ("transfer_began", "reassignment") in causes
    assert stage.changes[-1].evidence["replicas"] == f"{fourth} {second} {third}"
    stage.settle()
    assert stage.values(fourth) == [b"m%d" % n for n in range(5)] + [b"n%d" % n for n in range(5)]


@pytest.mark.parametrize("rule", RULES)
def test_the_replication_factor_grows_and_shrinks(rule: str):
    stage, (fourth, fifth) = with_spares(2, commit_rule=rule, min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    wish(stage, Reassign("t", 0, (first, second, third, fourth, fifth)))
    stage.until(lambda: not stage.now.target and len(stage.now.isr) == 5)
    stage.put(b"m1")
    wish(stage, Reassign("t", 0, (fifth,)))
    stage.until(lambda: not stage.now.target)
    assert (stage.now.replicas, stage.now.isr, stage.leader) == ((fifth,), (fifth,), fifth)
    stage.put(b"m2")
    stage.settle()
    assert [value for value in stage.values(fifth) if value] == [b"m0", b"m1", b"m2"]


def test_C17_under_quorum_no_replica_is_removed_while_only_leaving_replicas_hold_committed_records():
    """A leader whose disk stalls is to be the only replica. Its followers commit without it."""
    stage = Stage(replicas=5, commit_rule="quorum", min_insync_replicas="1")
    first = stage.first
    stage.stall_flushes(first)
    sent = stage.send(b"m0")
    stage.until(lambda: sent.result == "ok")
    wish(stage, Reassign("t", 0, (first,)))
    stage.run_for(2.0)
    assert len(stage.now.replicas) == 2, "one more that goes would take the last copy along"
    stage.resume_flushes()
    stage.until(lambda: stage.now.replicas == (first,))
    assert stage.values(first) == [b"m0"]
    stage.settle()


def test_a_reassignment_survives_the_controller_and_waits_for_a_server_that_is_away():
    stage, (fourth,) = with_spares(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(fourth, first)
    wish(stage, Reassign("t", 0, (first, second, fourth)))
    stage.kill(stage.active)
    stage.kill(fourth)
    stage.run_for(3.0)
    assert (stage.now.target, stage.now.replicas) == ((first, second, fourth), (first, second, third))
    stage.network.heal()
    stage.restart(fourth)
    stage.until(lambda: not stage.now.target)
    assert stage.now.replicas == (first, second, fourth)
    stage.settle()


def test_a_cancelled_reassignment_ends_with_the_replicas_that_there_were():
    stage, (fourth, fifth) = with_spares(2, min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(fifth)
    stage.until(lambda: stage.invariants.metadata.servers[fifth].fenced)
    assert refusal(stage, Reassign("t", 0, (fourth, second, fifth))) == "INVALID_REPLICAS"
    stage.restart(fifth)
    stage.until(lambda: not stage.invariants.metadata.servers[fifth].fenced)
    stage.cut(fifth, first)
    wish(stage, Reassign("t", 0, (fourth, second, fifth)))
    stage.until(lambda: fourth in stage.now.isr)
    wish(stage, CancelReassignment("t", 0))
    stage.until(lambda: not stage.now.target)
    assert (stage.now.replicas, stage.now.learners) == ((first, second, third), ())
    assert any(entry.cause == "reassignment_cancelled" for entry in stage.changes)
    assert refusal(stage, CancelReassignment("t", 0)) == "NO_REASSIGNMENT"
    stage.settle()


def test_B4_a_replica_that_goes_and_comes_back_before_it_hears_of_it_counts_for_nothing_it_had():
    """It hears of its removal late, when the leader already counts it as a learner that has everything."""
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    for controller in stage.controllers:
        stage.cut(third, controller, until=stage.loop.now + 1.0)
    wish(stage, Reassign("t", 0, (first, second)))
    stage.until(lambda: third not in stage.now.replicas)
    epoch = stage.now.leader_epoch
    wish(stage, Reassign("t", 0, (first, second, third)))
    stage.until(lambda: third in stage.now.isr, 30.0)
    assert stage.now.leader_epoch > epoch, "what it told the leader in the old epoch is of a copy that is gone"
    assert stage.values(third) == [b"m0"]
    stage.settle()


def test_growth_gives_new_partitions_and_leaves_the_old_ones_alone():
    stage = Stage(min_insync_replicas="2")
    stage.put(b"m0")
    before = stage.now
    wish(stage, GrowTopic("t", 4))
    stage.until(lambda: len(stage.partitions) == 4 and stage.in_sync())
    assert stage.now == before
    assert [stage.state(key).epoch for key in stage.partitions[1:]] == [0, 0, 0]
    assert refusal(stage, GrowTopic("t", 4)) == "INVALID_CONFIG"
    stage.settle()


def test_growth_takes_the_replica_count_that_most_partitions_have():
    """Only partition 0 was reassigned to two servers."""
    stage = Stage(partitions=2, min_insync_replicas="1")
    first, others = stage.first, stage.others
    wish(stage, Reassign("t", 0, (first, others[0])))
    stage.until(lambda: len(stage.now.replicas) == 2)
    wish(stage, GrowTopic("t", 3))
    stage.until(lambda: len(stage.partitions) == 3 and stage.in_sync())
    assert [len(stage.state(key).replicas) for key in stage.partitions] == [2, 3, 3]
    wish(stage, Reassign("t", 1, (first, others[0])))
    stage.until(lambda: len(stage.state(stage.partitions[1]).replicas) == 2)
    wish(stage, GrowTopic("t", 4))
    stage.until(lambda: len(stage.partitions) == 4 and stage.in_sync())
    assert [len(stage.state(key).replicas) for key in stage.partitions] == [2, 2, 3, 2]
    stage.settle()


# --- what is refused -------------------------------------------------------------------------------------


def test_wishes_that_cannot_be_are_refused_and_change_nothing():
    stage, (fourth,) = with_spares(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.kill(third)
    stage.until(lambda: third not in stage.now.isr)
    stage.kill(fourth)
    stage.until(lambda: stage.invariants.metadata.servers[fourth].fenced)
    for message, code in (
        (transfer(stage, third), "NOT_IN_SYNC"),
        (transfer(stage, fourth), "NOT_REPLICA"),
        (transfer(stage, "r99"), "UNKNOWN_SERVER"),
        (TransferLeader("t", 7, first), "UNKNOWN_TOPIC"),
        (TransferLeader("nope", 0, first), "UNKNOWN_TOPIC"),
        (Reassign("t", 0, ()), "INVALID_REPLICAS"),
        (Reassign("t", 0, (first, first, second)), "INVALID_REPLICAS"),
        (Reassign("t", 0, (first,)), "INVALID_REPLICAS"),
        (Reassign("t", 0, (first, second, fourth)), "INVALID_REPLICAS"),
        (Reassign("t", 0, (first, second, "r99")), "UNKNOWN_SERVER"),
        (GrowTopic("t", 1), "INVALID_CONFIG"),
        (GrowTopic("t", 1 << 20), "INVALID_CONFIG"),
        (GrowTopic("nope", 2), "UNKNOWN_TOPIC"),
        (DrainServer("r99"), "UNKNOWN_SERVER"),
        (CancelReassignment("t", 0), "NO_REASSIGNMENT"),
    ):
        assert refusal(stage, message) == code, message
    stage.settle()


def test_an_isr_proposal_that_names_a_server_without_a_copy_is_refused():
    stage, (fourth,) = with_spares(min_insync_replicas="1")
    state = stage.now
    servers = stage.invariants.metadata.servers
    members = tuple(IsrMember(node, servers[node].broker_epoch) for node in (*state.isr, fourth))
    forged = AlterIsr(
        stage.first, servers[stage.first].broker_epoch, *stage.key, state.leader_epoch, state.epoch, members, "forged"
    )
    assert refusal(stage, forged) == "NOT_REPLICA"
    stage.settle()


def test_a_drained_server_is_emptied_a_few_moves_at_a_time_over_the_end_of_a_controller():
    stage = Stage(partitions=12, servers=4)
    drained = stage.others[0]
    under_way: list[int] = []

    def partitions() -> list[PartitionState]:
        return [p for topic in stage.invariants.metadata.topics.values() for p in topic.partitions]

    def waiting() -> int:
        return len(stage.invariants.metadata.queue)

    held = sum(drained in p.replicas for p in partitions())
    assert held > BalanceSettings().moves_per_server
    stage.always(lambda: under_way.append(sum(drained in p.origin and bool(p.target) for p in partitions())))
    stage.put(b"m0")
    wish(stage, DrainServer(drained))
    wish(stage, Rebalance(empty_drained=True))
    stage.until(lambda: 0 < waiting() < held)
    stage.kill(stage.active)
    stage.until(lambda: not waiting() and not any(p.target for p in partitions()))
    assert max(under_way) == BalanceSettings().moves_per_server
    assert not any(drained in p.replicas for p in partitions())
    assert {len(p.isr) for p in partitions()} == {3}
    wish(stage, DrainServer(drained, drain=False))
    stage.settle()
