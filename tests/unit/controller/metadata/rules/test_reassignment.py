"""Transfers, reassignments, growth and draining by the rules of the metadata: every step, and every refusal."""

from __future__ import annotations

import pytest
from support.applied_commands import Log, code
from tidelog.types import TopicPartition
from tidelog.wire.messages import SuspectPart
from tidelog_controller.metadata.application import Applied
from tidelog_controller.metadata.commands import (
    AddPartitions,
    LeaveParts,
    SetDraining,
    SetLearners,
    SetReplicas,
    SetSuccessor,
)


def made(*servers: str, replicas: str = "r1 r2 r3", **config: object) -> Log:
    """Return a topic with these replicas, led by the first, and the servers of the cluster."""
    log = Log()
    log.register(*(servers or ("r1", "r2", "r3", "r4", "r5")))
    log.topic(*replicas.split(), **config)
    return log


def name_successor(log: Log, server: str, *, age: int = 0) -> Applied:
    epoch = log.partition.epoch - age
    return log.write(SetSuccessor(0, "id", 0, epoch, server, "operator", {"from": "r1", "to": server}))


def ready(log: Log, node: str, *, age: int = 0) -> Applied:
    p = log.partition
    parts = (SuspectPart("id", 0, p.epoch - age, p.leader_epoch),)
    return log.write(LeaveParts(0, node, log.epoch_of(node), "transfer", parts, lost=False, ready=True))


def replicas(log: Log, servers: str, *, age: int = 0) -> Applied:
    return log.write(SetReplicas(0, "id", 0, log.partition.epoch - age, tuple(servers.split()), "reassign"))


# --- transfer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["isr", "quorum", "leader"])
def test_the_successor_leads_when_the_leader_says_that_it_has_everything(rule: str) -> None:
    log = made(commit_rule=rule)
    name_successor(log, "r2")
    assert (log.partition.leader, log.partition.leader_epoch, log.partition.successor) == ("r1", 0, "r2")
    ready(log, "r1")
    p = log.partition
    assert (p.leader, p.leader_epoch, p.successor, p.isr, p.sealing) == ("r2", 1, None, ("r1", "r2", "r3"), False)
    assert (log.last.event, log.last.cause) == ("leader_elected", "transferred")


def test_a_word_of_another_epoch_or_server_or_without_a_successor_counts_for_nothing() -> None:
    log = made()
    before = log.partition
    ready(log, "r1")
    assert log.partition == before, "nobody was named"
    name_successor(log, "r2")
    named = log.partition
    ready(log, "r1", age=1)
    ready(log, "r3")
    assert log.partition == named
    name_successor(log, "")
    ready(log, "r1", age=1)
    assert (log.partition.leader, log.partition.successor) == ("r1", None)


@pytest.mark.parametrize("event", ["fenced", "restarted", "shrunk"])
def test_a_successor_that_falls_out_is_none_any_more(event: str) -> None:
    log = made()
    name_successor(log, "r2")
    if event == "fenced":
        log.fence("r2")
    elif event == "restarted":
        log.power_up("r2")
    else:
        log.shrink("r1", "r3")
    assert (log.partition.leader, log.partition.successor) == ("r1", None)


def test_another_election_ends_a_transfer() -> None:
    log = made()
    name_successor(log, "r3")
    log.fence("r1")
    assert (log.partition.leader, log.partition.successor) == ("r2", None)


def test_an_unfit_successor_is_refused() -> None:
    log = made()
    log.shrink("r1", "r2")
    before = log.partition
    assert code(name_successor(log, "r3")) == "NOT_IN_SYNC"
    assert code(name_successor(log, "r4")) == "NOT_REPLICA"
    assert code(name_successor(log, "r2", age=1)) == "STALE_EPOCH"
    assert code(log.write(SetSuccessor(0, "gone", 0, 0, "r2", "operator"))) == "UNKNOWN_TOPIC"
    assert code(name_successor(log, "r1")) == "done", "it leads already"
    assert log.partition == before


# --- reassignment ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["isr", "leader"])
def test_learners_join_with_the_isr_and_the_others_go_when_all_of_the_target_is_in_sync(rule: str) -> None:
    log = made(commit_rule=rule)
    replicas(log, "r1 r4 r5")
    p = log.partition
    assert (p.replicas, p.learners, p.target, p.origin) == (
        ("r1", "r2", "r3"),
        ("r4", "r5"),
        ("r1", "r4", "r5"),
        ("r1", "r2", "r3"),
    )
    log.shrink("r1", "r2", "r3", "r4")
    assert (log.partition.replicas, log.partition.learners) == (("r1", "r2", "r3", "r4"), ("r5",))
    log.shrink("r1", "r4")
    assert log.partition.replicas == ("r1", "r2", "r3", "r4"), "r5 is not in sync yet: nobody goes"
    log.shrink("r1", "r4", "r5")
    p = log.partition
    assert (p.replicas, p.isr, p.learners, p.target, p.origin) == (
        ("r1", "r4", "r5"),
        ("r1", "r4", "r5"),
        (),
        (),
        (),
    )
    assert p.departed == ("r2", "r3")


def test_quorum_changes_one_replica_at_a_time() -> None:
    log = made(commit_rule="quorum")
    replicas(log, "r1 r4 r5")
    before = log.partition
    assert code(log.write(log.proposal("r1", "r2", "r3", "r4", "r5"))) == "UNSUPPORTED"
    assert log.partition == before
    log.shrink("r1", "r2", "r3", "r4")
    log.shrink("r1", "r2", "r3", "r4", "r5")
    log.shrink("r1", "r3", "r4", "r5")
    assert (log.partition.replicas, log.partition.isr) == (("r1", "r3", "r4", "r5"), ("r1", "r3", "r4", "r5"))
    log.shrink("r1", "r4", "r5")
    assert (log.partition.replicas, log.partition.target) == (("r1", "r4", "r5"), ())


def test_a_leader_outside_the_target_drops_nobody() -> None:
    log = made()
    replicas(log, "r2 r3")
    log.shrink("r1", "r2", "r3")
    assert log.partition.replicas == ("r1", "r2", "r3")
    name_successor(log, "r2")
    ready(log, "r1")
    log.shrink("r2", "r3")
    assert (log.partition.replicas, log.partition.leader) == (("r2", "r3"), "r2")


def test_a_learner_that_restarted_since_it_was_proposed_does_not_join() -> None:
    log = made()
    replicas(log, "r1 r2 r4")
    proposal = log.proposal("r1", "r2", "r3", "r4")
    log.power_up("r4")
    assert code(log.write(proposal)) == "STALE_EPOCH"
    assert log.partition.learners == ("r4",)


def test_a_learner_outside_the_target_does_not_join() -> None:
    log = made()
    log.write(SetLearners(0, "id", 0, ("r4",)))
    assert code(log.write(log.proposal("r1", "r2", "r3", "r4"))) == "NOT_REPLICA"
    replicas(log, "r1 r2 r5")
    log.write(SetLearners(0, "id", 0, ()))
    assert log.partition.learners == ("r5",), "who is to join is nobody's to take away"


def test_another_order_is_there_at_once() -> None:
    log = made()
    replicas(log, "r3 r1 r2")
    p = log.partition
    assert (p.replicas, p.isr, p.leader, p.target) == (("r3", "r1", "r2"), ("r3", "r1", "r2"), "r1", ())


def test_cancelled_before_and_after_somebody_joined() -> None:
    log = made()
    replicas(log, "r1 r2 r4")
    replicas(log, "r1 r2 r3")
    assert (log.partition.learners, log.partition.target) == ((), ())
    replicas(log, "r1 r4 r5")
    log.shrink("r1", "r2", "r3", "r4")
    replicas(log, "r1 r2 r3")
    p = log.partition
    assert (p.target, p.origin, p.learners) == (("r1", "r2", "r3"), ("r1", "r2", "r3"), ())
    log.shrink("r1", "r2", "r3")
    assert (log.partition.replicas, log.partition.target) == (("r1", "r2", "r3"), ())


def test_B4_a_removed_replica_that_comes_back_starts_a_new_leader_epoch() -> None:
    log = made()
    replicas(log, "r1 r2")
    log.shrink("r1", "r2")
    assert (log.partition.departed, log.partition.leader_epoch) == (("r3",), 0)
    replicas(log, "r1 r2 r4")
    assert log.partition.leader_epoch == 0, "r4 told this leader nothing"
    replicas(log, "r1 r2 r3")
    assert (log.partition.leader_epoch, log.partition.leader, log.partition.departed) == (1, "r1", ())
    log.write(SetLearners(0, "id", 0, ("r5", "r3")))
    log.write(SetLearners(0, "id", 0, ("r3",)))
    log.write(SetLearners(0, "id", 0, ("r3", "r5")))
    assert log.partition.leader_epoch == 2, "a learner likewise"


def test_invalid_replica_sets_are_refused() -> None:
    log = made(min_insync_replicas=2)
    log.fence("r5")
    before = log.state
    assert code(replicas(log, "")) == "INVALID_REPLICAS"
    assert code(replicas(log, "r1")) == "INVALID_REPLICAS", "fewer than min_insync_replicas"
    assert code(replicas(log, "r1 r1 r2")) == "INVALID_REPLICAS"
    assert code(replicas(log, "r1 r2 r5")) == "INVALID_REPLICAS", "r5 is fenced"
    assert code(replicas(log, "r1 r2 r9")) == "INVALID_REPLICAS", "nobody knows r9"
    assert code(replicas(log, "r1 r2 r4", age=1)) == "STALE_EPOCH"
    assert (log.state.topics, log.state.history) == (before.topics, before.history)


def test_a_replica_that_is_away_may_stay_one() -> None:
    log = made()
    log.fence("r3")
    assert code(replicas(log, "r1 r3 r4")) == "done"


# --- growth, draining ------------------------------------------------------------------------------------


def test_a_topic_grows_once() -> None:
    log = made()
    before = log.partition
    grow = AddPartitions(5, "id", 1, (("r2", "r3"), ("r4", "r5")))
    applied = log.write(grow)
    assert [p.leader for p in log.state.topics["id"].partitions] == ["r1", "r2", "r4"]
    assert log.partition == before and [t.topic_id for t in applied.topics] == ["id"]
    assert [key for key, _ in applied.changes] == [TopicPartition("id", 1), TopicPartition("id", 2)]
    assert [len(entries) for entries in log.state.history["id"]] == [1, 1, 1]
    assert code(log.write(grow)) == "STALE_EPOCH", "the same wish of another gateway"
    assert len(log.state.topics["id"].partitions) == 3
    log.fence("r4", "r5")
    assert code(log.write(AddPartitions(5, "id", 3, (("r4", "r5"),)))) == "INVALID_REPLICATION_FACTOR"


def test_draining_lasts_over_lives() -> None:
    log = made()
    log.write(SetDraining(0, "r1", True))
    log.power_up("r1")
    assert log.state.servers["r1"].draining
    log.write(SetDraining(0, "r1", False))
    assert not log.state.servers["r1"].draining
    assert code(log.write(SetDraining(0, "r9", True))) == "UNKNOWN_SERVER"
