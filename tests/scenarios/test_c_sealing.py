"""C. Commit rule ``quorum``: how an epoch is sealed, who leads the next, and what that makes of the logs.

The first record of every leader epoch is the leader's own, without a value.
"""

from __future__ import annotations

from tidelog.types import Acks
from tidelog.wire.messages import FetchAnswer, MetadataUpdate, ReportLeader, Seal

from scenarios.stage import Stage
from scenarios.test_c_fencing import report


def quorum() -> Stage:
    """Return a stage with the commit rule ``quorum`` and three replicas in sync; the record ``m0`` is at offset 1."""
    stage = Stage(commit_rule="quorum", flush="fsync")
    stage.put(b"m0")
    stage.until(stage.in_sync)
    return stage


def records(stage: Stage, node: str) -> list[bytes]:
    """Return the values in the log of a node, without the leaders' own empty records."""
    return [value for value in stage.values(node) if value]


def sealed_by(*nodes: str):
    """Return a filter for `Stage.hold` that selects the messages `Seal` that one of these nodes sends."""
    return lambda sender, receiver, message: sender in nodes and isinstance(message, Seal)


def test_C18_one_seal_of_three_elects_nobody():
    """The only replica that seals lacks a record that the other two have committed."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.cut(second, first, third)
    stage.put(b"m1")
    stage.kill(first, third)
    stage.until(lambda: stage.now.sealing and stage.partition(second).is_sealed)
    stage.run_for(3.0)
    assert stage.now.sealing and not stage.leader
    stage.restart(third)
    stage.until(lambda: stage.leader == third)
    assert stage.changes[-1].evidence["seals"] == "2"
    stage.settle()
    assert records(stage, second) == [b"m0", b"m1"]


def test_C18_of_two_that_sealed_the_one_that_has_more_leads():
    """The third replica leads, although the second is before it in the order of the replicas."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.cut(second, first)
    stage.put(b"m1")
    stage.kill(first)
    stage.until(lambda: stage.leader != "" and stage.leader != first)
    assert stage.leader == third
    stage.settle()
    assert records(stage, second) == [b"m0", b"m1"]


def test_C18_a_later_epoch_goes_before_a_longer_log():
    """The log of the first leader is longer, by records that no other replica has."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.cut(first, second, third)
    longer = stage.send(*(b"x%d" % number for number in range(5)), acks=Acks.LEADER, by="hasty")
    stage.until(lambda: longer.result == "ok")
    stage.kill(first)
    stage.until(lambda: stage.leader == second)
    stage.put(b"m1")
    stage.until(lambda: b"m1" in stage.values(third))
    stage.restart(first)
    stage.until(lambda: stage.replica(first).broker_epoch_known())
    stage.kill(second)
    stage.until(lambda: stage.leader not in ("", second))
    assert stage.leader == third
    stage.settle()
    assert records(stage, first) == [b"m0", b"m1"]


def test_C18_a_replica_that_lost_its_disk_does_not_count_as_sealed():
    """The replica is one of the two that had committed the last record; the other one is dead."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.cut(third, first)
    stage.put(b"m1")
    stage.kill(second)
    stage.replace_disk(second)
    stage.cut(second, first, third)
    stage.restart(second)
    stage.until(lambda: stage.replica(second).broker_epoch_known())
    assert second not in stage.now.isr
    stage.kill(first)
    stage.until(lambda: stage.now.sealing and stage.partition(third).is_sealed)
    stage.run_for(3.0)
    assert stage.now.sealing and not stage.leader
    stage.restart(first)
    stage.until(lambda: stage.leader == first)
    stage.settle()
    assert records(stage, second) == records(stage, third) == [b"m0", b"m1"]


def test_C18_a_sealed_replica_takes_no_records_from_the_old_leader():
    """The old leader has not received the new metadata. If the replica took the record, it would be committed, and
    the next leader would lack it."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.cut(second, first)
    stage.cut("hand", *stage.controllers)
    news = stage.hold(lambda sender, receiver, message: receiver == first and isinstance(message, MetadataUpdate))
    seals = stage.hold(sealed_by(second))
    report(stage, second, third)
    assert stage.now.sealing
    stage.until(lambda: bool(seals.messages) and stage.partition(third).is_sealed)
    pending = stage.send(b"m1", patience=20.0)
    stage.until(lambda: b"m1" in stage.values(first))
    stage.run_for(1.0)
    assert not pending.result and records(stage, third) == [b"m0"]
    seals.release()
    stage.until(lambda: stage.leader == second)
    news.release()
    stage.settle()
    stage.until(lambda: pending.result == "ok")
    assert records(stage, third) == [b"m0", b"m1"]


def test_C18_a_seal_reported_for_an_earlier_election_does_not_count():
    """The seal arrives late. Since then its sender has committed a record that the other running replica lacks."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    early = stage.hold(sealed_by(third))
    stage.kill(first)
    stage.until(lambda: bool(early.messages))
    early.deliver(again=True)
    early.holding = False
    stage.until(lambda: stage.leader == second)
    stage.put(b"m1")
    stage.until(lambda: b"m1" in stage.values(third))
    stage.cut(first, second, third)
    stage.restart(first)
    stage.until(lambda: stage.replica(first).broker_epoch_known())
    seals = stage.hold(sealed_by(third))
    stage.kill(second)
    stage.until(lambda: bool(seals.messages) and stage.partition(first).is_sealed)
    stage.run_for(0.2)
    early.deliver()
    stage.run_for(0.2)
    assert stage.now.sealing
    seals.release()
    stage.until(lambda: stage.leader == third)
    stage.settle()
    assert records(stage, first) == [b"m0", b"m1"]


def test_C18_a_record_of_an_earlier_epoch_is_not_committed_by_counting():
    """Figure 8 of Raft's paper: in the end a majority has the record, and a leader with a later epoch overwrites
    it."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.cut(first, second, third)
    large = b"x" * stage.replica_settings.fetch_max_bytes  # an answer holds nothing beside it
    left = stage.send(large, acks=Acks.LEADER, by="hasty")
    stage.until(lambda: left.result == "ok")
    stage.kill(first)
    stage.until(lambda: stage.leads(second))
    stage.cut(second, third)
    stage.run_for(0.1)
    over = stage.send(b"y", acks=Acks.LEADER, by="other")
    stage.until(lambda: over.result == "ok")
    stage.kill(second)
    stage.network.heal()
    stage.hold(lambda sender, receiver, message: isinstance(message, ReportLeader))
    stage.hold(
        lambda sender, receiver, message: (
            isinstance(message, FetchAnswer) and receiver == third and stage.end(third) == 3
        )
    )
    stage.restart(first)
    stage.until(lambda: stage.leads(first))
    stage.until(lambda: stage.partition(first).leading.core.followers[third].durable == 3)
    assert stage.hw(first) < 3, "only the leader has its own batch"
    stage.kill(first)
    stage.restart(second)
    stage.until(lambda: stage.leader == second)
    stage.settle()
    assert records(stage, third) == [b"m0", b"y"]


def test_C18_a_leader_alone_commits_nothing():
    stage = quorum()
    first, others = stage.first, stage.others
    stage.stall_flushes(*others)
    pending = stage.send(b"m1", patience=20.0)
    stage.until(lambda: stage.durable(first) == 3)
    stage.run_for(0.5)
    assert stage.hw(first) == 2 and not pending.result
    stage.resume_flushes()
    stage.until(lambda: pending.result == "ok")
    stage.settle()


def test_C18_a_new_leader_commits_records_of_earlier_epochs_without_new_produce_requests():
    """All replicas have the record, and none of them knew that a majority has it."""
    stage = quorum()
    first, (second, third) = stage.first, stage.others
    stage.stall_flushes(*stage.replicas)
    pending = stage.send(b"m1", acks=Acks.LEADER, by="hasty")
    stage.until(lambda: b"m1" in stage.values(second) and b"m1" in stage.values(third))
    assert not pending.result and stage.hw(first) == 2
    stage.kill(first)
    stage.resume_flushes()
    stage.until(lambda: stage.leads(second))
    stage.until(lambda: stage.hw(second) == stage.end(second))
    assert stage.read_all()[-1] == b"m1"
    stage.settle()
