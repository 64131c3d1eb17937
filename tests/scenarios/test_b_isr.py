"""B. Who is in sync: joining and leaving the ISR, in a whole cluster."""

from __future__ import annotations

import pytest
from tidelog.verify.history import OK
from tidelog.wire.messages import AlterIsr, Fetch, FetchAnswer, Notify
from tidelog_replica.fetcher import fetcher as upstream

from scenarios.stage import Stage


@pytest.mark.parametrize("seconds_late", [0.0, 1.0])
def test_B1_a_proposed_member_counts_before_the_answer_comes(seconds_late):
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.kill(third)
    stage.put(b"m0")
    stage.until(lambda: third not in stage.now.isr)
    stage.restart(third)
    proposed = stage.proposals(third)
    stage.until(lambda: bool(proposed))
    for controller in stage.controllers:  # the answer, and the metadata, do not reach the leader
        stage.network.block(controller, first, 1e6)
    stage.network.block(third, first, 1e6)  # and the new member takes nothing more
    stage.until(lambda: third in stage.now.isr)
    stage.run_for(seconds_late)
    batch = stage.send(b"m1")
    stage.run_for(0.5)
    assert batch.result != OK or stage.leader != first, "acked without a member of the ISR"
    stage.kill(first, second)
    stage.until(lambda: stage.leader == third)
    stage.settle()


def test_B1_a_late_copy_of_an_addition_is_refused_when_its_member_has_left_again():
    stage = Stage(min_insync_replicas="1")
    first, (_, third) = stage.first, stage.others
    stage.kill(third)
    stage.until(lambda: third not in stage.now.isr)
    copies = stage.hold(lambda sender, receiver, m: isinstance(m, AlterIsr))
    stage.restart(third)
    stage.until(lambda: bool(copies.messages))
    copies.deliver(again=True)
    copies.holding = False
    stage.until(lambda: third in stage.now.isr)
    stage.cut(third, first)
    stage.put(b"without it")
    assert third not in stage.now.isr
    before = stage.now
    copies.deliver()
    stage.run_for(0.5)
    assert stage.now == before
    stage.settle()


def test_B2_a_follower_that_missed_50_000_records_returns_to_the_isr_only_at_the_hw():
    stage = Stage()
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(third, first)
    for number in range(50):
        stage.put(*(b"%d.%d" % (number, record) for record in range(1000)))
    stage.until(lambda: third not in stage.now.isr)
    assert stage.hw(first) == 50_001
    assert stage.end(third) == 1
    proposed = stage.proposals(third, lambda: (stage.durable(third), stage.hw(first)))
    ends = []
    stage.always(lambda: ends.append(stage.end(third)))
    stage.network.heal()
    stage.until(lambda: third in stage.now.isr)
    assert len(set(ends)) > 5, "it catches up in many steps"
    ((durable, high_watermark),) = proposed
    assert durable >= high_watermark == 50_001
    stage.settle()


def test_B1_a_proposal_that_is_not_answered_is_sent_again_as_it_was():
    """The replica that it adds is fenced meanwhile, which alone would be a reason to drop the proposal. Later the
    first copy is applied."""
    stage = Stage(min_insync_replicas="1")
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(third)
    stage.until(lambda: third not in stage.now.isr)
    copies = stage.hold(lambda sender, receiver, m: isinstance(m, AlterIsr))
    stage.restart(third)
    stage.until(lambda: bool(copies.messages))
    stage.cut(third, first)
    stage.cut(third, *stage.controllers, until=stage.loop.now + 4.0)
    stage.until(lambda: stage.partition(first).leading.core._servers[third].fenced)
    pending = stage.send(b"m1", patience=30.0)
    stage.until(lambda: len(copies.messages) > 3)
    assert len(set(map(repr, copies.messages))) == 1
    assert not pending.result, "its member counts as long as it may be applied"
    stage.until(lambda: not stage.invariants.metadata.servers[third].fenced)
    copies.release()
    stage.until(lambda: third in stage.now.isr)
    stage.settle()
    assert pending.result == OK


def test_B4_a_member_that_returns_empty_is_not_added_for_what_it_once_had():
    """It is removed and added again, empty, before the leader hears of either: its former position must be
    forgotten."""
    stage = Stage(min_insync_replicas="1")
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    silence = stage.hold(lambda sender, receiver, m: sender == third and receiver == first)
    stage.kill(third)
    stage.replace_disk(third)
    stage.restart(third)
    stage.until(lambda: third not in stage.now.isr)
    proposed = stage.proposals(third)
    stage.run_for(3.0)
    assert stage.leader == first and stage.follows(third, first)
    assert not proposed, "it has not fetched in this life"
    assert stage.end(third) == 0
    silence.release()
    stage.until(lambda: third in stage.now.isr)
    assert stage.values(third) == [b"m0"]
    stage.settle()


def test_B5_an_addition_that_arrives_when_the_added_one_lives_again_without_its_disk_is_refused():
    stage = Stage(min_insync_replicas="1")
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(third)
    stage.until(lambda: third not in stage.now.isr)
    addition = stage.hold(lambda sender, receiver, m: isinstance(m, AlterIsr))
    stage.restart(third)
    stage.until(lambda: bool(addition.messages))
    assert third in [member.node for member in addition.messages[0].isr]
    stage.kill(third)
    stage.replace_disk(third)
    stage.cut(third, first)  # it cannot catch up
    before = stage.invariants.metadata.servers[third].broker_epoch
    stage.restart(third)
    stage.until(lambda: stage.invariants.metadata.servers[third].broker_epoch > before)
    addition.release()
    stage.until(lambda: stage.changes[-1].event == "isr_refused")
    assert stage.changes[-1].evidence["unfit"] == third
    assert third not in stage.now.isr
    stage.put(b"m1")
    stage.settle()


def test_B5_a_fetch_of_a_fenced_follower_does_not_count_for_its_next_incarnation():
    stage = Stage(min_insync_replicas="1")
    first, (_, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(third, *stage.controllers)
    stage.until(lambda: third not in stage.now.isr)
    stage.put(b"m1")
    stage.until(lambda: stage.partition(first).leading.core.followers[third].durable == stage.hw(first) == 2)
    assert stage.invariants.metadata.servers[third].fenced, "or the leader would have proposed it"
    stage.kill(third)
    stage.replace_disk(third)
    stage.network.heal()
    stage.cut(third, first)  # it cannot catch up
    stage.restart(third)
    stage.until(lambda: not stage.invariants.metadata.servers[third].fenced)
    stage.run_for(2.0)
    assert third not in stage.now.isr
    stage.network.heal()
    stage.put(b"m2")
    stage.settle()


def test_B8_records_pending_when_the_isr_gets_too_small_fail_clearly_and_a_retry_leaves_one_copy():
    stage = Stage(min_insync_replicas="2")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(first, *others)
    batch = stage.send(b"m1", patience=20.0)
    stage.until(lambda: b"m1" in stage.values(first))
    stage.kill(*others)
    stage.until(lambda: stage.now.isr == (first,))
    stage.until(lambda: bool(batch.errors))
    assert batch.errors[0] == "NOT_ENOUGH_REPLICAS"
    assert batch.doubt and not batch.result, "it may still be committed: the producer tries again"
    assert stage.hw(first) == 1
    stage.network.heal()
    stage.restart(*others)
    stage.until(lambda: batch.result == OK)
    assert batch.offset == 1, "where the first try put it"
    assert stage.read_all() == [b"m0", b"m1"]
    stage.settle()


def test_B10_a_dead_follower_is_removed_by_the_leaders_timer_and_the_hw_moves_on():
    stage = Stage()
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(third, first)  # it keeps its session: only the leader can notice
    began = stage.loop.now
    stage.put(b"m1")
    assert stage.loop.now - began < 2.0 + 1.0, "replica_max_lag_ms and the way to the controller"
    assert stage.now.isr == tuple(node for node in stage.now.replicas if node != third)
    assert stage.leader == first
    assert stage.hw(first) == 2
    stage.until(lambda: stage.hw(second) == 2)
    stage.settle()


def test_B11_in_a_burst_of_10_000_records_no_healthy_follower_leaves_the_isr():
    stage = Stage()
    for producer in range(34):
        stage.put(b"%d is here" % producer, by=f"p{producer}")
    stage.network.weather.latency = 0.02
    before = stage.now
    batches = [
        stage.send(*(b"%d.%d.%d" % (producer, number, record) for record in range(100)), by=f"p{producer}")
        for producer in range(34)
        for number in range(3)
    ]
    behind = []
    stage.always(lambda: behind.append(stage.end(stage.first) - stage.end(stage.others[1])))
    stage.until(lambda: all(batch.result == OK for batch in batches))
    assert sum(len(batch.values) for batch in batches) > 10_000
    assert max(behind) > 5_000, "they were far behind for a while"
    assert stage.now == before, "not once did the ISR change"
    stage.settle()


def fetches(stage: Stage, seconds: float) -> int:
    """Return the number of fetches of the followers in that time."""
    before = stage.counts.get("fetches", 0)
    stage.run_for(seconds)
    return stage.counts.get("fetches", 0) - before


def count_fetches(stage: Stage) -> None:
    def count(sender: str, receiver: str, message: object) -> bool:
        if isinstance(message, Fetch):
            stage.count("fetches")
            for _ in message.parts:
                stage.count("parts")
        return False

    stage.hold(count)


def idle_fetches(stage: Stage, seconds: float) -> float:
    """Return the number of fetches of two followers that ask once per idle wait."""
    return 2 * seconds / stage.replica_settings.replica_max_idle_wait_s


def test_B16_an_idle_cluster_asks_once_per_idle_wait():
    stage = Stage()
    stage.put(b"m0")
    stage.run_for(2.0)
    count_fetches(stage)
    steps = stage.loop.steps
    assert fetches(stage, 10.0) <= idle_fetches(stage, 10.0) + 2
    assert stage.counts.get("parts", 0) == 0, "for no partition in particular"
    assert stage.loop.steps - steps < 3000, "messages, answers, heartbeats and timers of six processes"


def test_B16_a_lost_notify_costs_no_more_than_an_idle_wait():
    stage = Stage()
    stage.put(b"m0")
    lost = stage.hold(lambda sender, receiver, m: isinstance(m, Notify))
    for number in range(1, 6):
        stage.run_for(0.7)
        began = stage.loop.now
        stage.put(b"m%d" % number)
        assert stage.loop.now - began < stage.replica_settings.replica_max_idle_wait_s + 0.1
    assert lost.messages
    assert len(stage.now.isr) == 3
    stage.settle()


def test_B16_an_idle_follower_learns_of_the_commit_though_every_notice_and_one_answer_are_lost():
    stage = Stage()
    stage.put(b"m0")
    stage.run_for(2.0)
    stage.hold(lambda sender, receiver, m: isinstance(m, Notify))
    answers: list[str] = []

    def is_first(sender: str, receiver: str, message: object) -> bool:
        if isinstance(message, FetchAnswer) and message.news:
            answers.append(receiver)
        return len(answers) == 1 and isinstance(message, FetchAnswer) and bool(message.news)

    stage.hold(is_first)
    stage.put(b"m1")
    stage.run_for(upstream.PATIENCE * stage.replica_settings.replica_max_leader_timeout_s + 1.0)
    assert len(set(answers)) == 2
    assert [stage.hw(node) for node in (stage.first, *stage.others)] == [2, 2, 2]


@pytest.mark.parametrize("when", ["at once", "after the next append"])
def test_B16_a_notify_that_comes_twice_or_late_costs_no_more_than_a_fetch(when):
    stage = Stage()
    stage.put(b"m0")
    stage.run_for(2.0)
    count_fetches(stage)
    held = stage.hold(lambda sender, receiver, m: isinstance(m, Notify))
    stage.send(b"m1", by="one")
    stage.until(lambda: len(held.messages) >= 2)
    if when == "after the next append":
        second = stage.send(b"m2", by="two")
        stage.until(lambda: b"m2" in stage.values(stage.first))
        assert not second.result
    began = stage.loop.now
    for _ in range(5):
        held.deliver(again=True)
    held.release()
    stage.until(lambda: stage.hw(stage.first) == stage.end(stage.first) > 1)
    assert stage.loop.now - began < 0.1
    assert fetches(stage, 1.0) <= 30
    assert fetches(stage, 10.0) <= idle_fetches(stage, 10.0) + 2
    stage.settle()


def test_B9_a_leader_whose_disk_stalls_hands_over_and_its_followers_stay_in_the_isr():
    stage = Stage(min_insync_replicas="2")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    stage.stall_flushes(first)
    batch = stage.send(b"m1", patience=60.0)
    stage.until(lambda: all(b"m1" in stage.values(node) for node in others))
    began = stage.loop.now
    stage.always(lambda: None if set(others) <= set(stage.now.isr) else pytest.fail("a follower left the ISR"))
    stage.until(lambda: stage.leader in others)
    assert stage.loop.now - began < 2.0, "sooner than replica_max_lag_ms would have removed anybody"
    assert stage.changes[-1].cause == "handed_over"
    stage.until(lambda: batch.result == OK)
    stage.put(b"m2")
    stage.run_for(40.0 - (stage.loop.now - began))
    assert first not in stage.now.isr, "nobody waits for a disk that does not answer"
    assert stage.read_all() == [b"m0", b"m1", b"m2"]
    stage.settle()


def test_B10_with_commit_rule_leader_and_nothing_else_set_all_goes_on_when_both_followers_are_dead():
    stage = Stage(commit_rule="leader")
    stage.put(b"m0")
    stage.kill(*stage.others)
    stage.until(lambda: stage.partition(stage.first).leading.core.isr == (stage.first,))
    stage.put(b"m1")
    stage.settle()
