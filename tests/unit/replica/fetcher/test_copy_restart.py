"""A follower whom retention at its leader has overtaken starts its copy over (D8). Tests ``fetcher/fetcher.py``
and ``recovery/reset.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.replica_network import KEY, Net, code
from tidelog.errors import TimedOut
from tidelog.types import TopicConfig, TopicPartition
from tidelog.wire.messages import LogSnapshot

PATH = f"/data/{KEY.topic_id}-{KEY.partition}"
CONFIG = TopicConfig(min_insync_replicas=1, segment_max_bytes=600)


def left_behind(config: TopicConfig = CONFIG, records: int = 40) -> Net:
    """r3 was away, its log ends at 1; the leader's has grown."""
    net = Net(config=config)
    net.start()
    net.create()
    net.send("r1", b"first", producer_id=7, producer_epoch=0, base_sequence=0)
    net.advance(4)
    net.stop("r3")
    net.lead("r1", "r1 r2")
    for number in range(1, records):
        net.send("r1", b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    net.advance(4)
    return net


def overtaken() -> Net:
    """Now the leader's log begins later than that."""
    net = left_behind()
    retire(net)
    assert net.partition("r1").log.start > 1
    return net


def retire(net: Net) -> None:
    """Retention at r1 and r2: about the last four records stay."""
    for name in ("r1", "r2"):
        log = net.partition(name).log
        log.advance_start(log.end - 4)


def same(net: Net, *names: str) -> None:
    """The logs hold the same, and say the same of what came before it."""
    logs = [net.partition(name).log for name in names]
    start = max(log.start for log in logs)
    assert len({log.end for log in logs}) == 1
    assert len({log.chain_at(log.end) for log in logs}) == 1
    assert len({log.epoch_at(start) for log in logs}) == 1
    assert len({str(log.producers.snapshot()) for log in logs}) == 1


def test_D8_the_copy_starts_over_where_the_leaders_log_begins_and_says_so() -> None:
    net = overtaken()
    start = net.partition("r1").log.start
    net.start("r3")
    net.advance(4)
    ((name, event),) = net.happened("copy_restarted")
    assert (name, event.fields["old_end"], event.fields["start"]) == ("r3", 1, start)
    assert net.partition("r3").log.start == start
    assert net.partition("r3").offline is None
    same(net, "r1", "r2", "r3")


def test_D8_afterwards_it_is_a_replica_like_the_others() -> None:
    net = overtaken()
    net.start("r3")
    net.advance(4)
    assert net.state().isr == ("r1", "r2", "r3")
    net.lead("r3", "r1 r2 r3")
    again = net.send("r3", b"39", producer_id=7, producer_epoch=0, base_sequence=39)
    assert (net.acks[again].duplicate, net.acks[again].offset) == (True, 39), "its producers are known"
    assert net.acks[net.send("r3", b"next", producer_id=7, producer_epoch=0, base_sequence=40)].offset == 40
    net.advance(4)
    same(net, "r1", "r2", "r3")


def test_D8_a_reader_below_the_new_log_start_gets_an_error_with_it() -> None:
    net = overtaken()
    net.start("r3")
    net.advance(4)
    answer = net.answers[net.read("r3", 0, any_replica=True)]
    assert code(answer) == "OFFSET_OUT_OF_RANGE"
    assert answer.detail["log_start"] == net.partition("r3").log.start


def test_D8_a_crash_after_the_restart_keeps_the_new_beginning() -> None:
    net = overtaken()
    net.start("r3")
    net.advance(4)
    net.stop("r3", power=True)
    net.start("r3")
    net.advance(4)
    assert len(net.happened("copy_restarted")) == 1
    same(net, "r1", "r3")


def test_D8_a_lost_snapshot_is_asked_for_again() -> None:
    net = overtaken()
    net.hold = lambda name, call: isinstance(call.message, LogSnapshot)
    net.start("r3")
    net.advance(1)
    ((name, call),) = net.held
    net.hold = lambda name, call: False
    net._answer(name, call.token, TimedOut("lost"))
    net.run()
    net.advance(4)
    assert len(net.happened("copy_restarted")) == 1
    same(net, "r1", "r3")


def test_D8_nothing_is_fetched_between_question_and_answer_and_retention_may_go_on() -> None:
    net = overtaken()
    net.hold = lambda name, call: isinstance(call.message, LogSnapshot)
    net.start("r3")
    for number in range(40, 60):
        net.send("r1", b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    net.advance(1.5)
    assert len(net.held) == 1
    retire(net)
    net.hold = lambda name, call: False
    net.deliver(*net.held[0])
    net.run()
    net.advance(4)
    same(net, "r1", "r3")


@pytest.mark.parametrize("commit_rule", ["isr", "leader"])
def test_D8_a_beginning_that_is_not_durable_at_the_leader_is_waited_for(commit_rule: str) -> None:
    """Also by a copy of which nothing is known to be the leader's: it must not start over at the old beginning, below
    what it knows to be committed. (seed 215584, 3 s)"""
    net = left_behind(replace(CONFIG, commit_rule=commit_rule))
    log = net.partition("r1").log
    advance = log.begin_advance(log.end - 4)
    net.start("r3")
    net.advance(2)
    assert not net.happened("copy_restarted")
    advance.run()
    log.complete_advance(advance)
    net.advance(4)
    ((_, event),) = net.happened("copy_restarted")
    assert event.fields["start"] == log.start > 1
    same(net, "r1", "r3")


def test_D8_a_snapshot_of_another_leader_epoch_is_dropped() -> None:
    net = overtaken()
    net.hold = lambda name, call: isinstance(call.message, LogSnapshot)
    net.start("r3")
    net.hold = lambda name, call: False
    net.lead("r2", "r1 r2")
    net.deliver(*net.held[0])
    net.run()
    net.advance(4)
    same(net, "r1", "r2", "r3")


def test_a_snapshot_is_for_followers_of_this_leader_epoch() -> None:
    net = overtaken()

    def ask(node: str, broker_epoch: int, leader_epoch: int) -> Any:
        message = LogSnapshot(node, broker_epoch, *TopicPartition(*KEY), leader_epoch)
        return net.answers[net.ask("r1", message)]

    life, epoch = net.servers["r2"].broker_epoch, net.state().leader_epoch
    assert ask("r2", life, epoch).log_start == net.partition("r1").log.start
    assert code(ask("r2", life, epoch - 1)) == "FENCED_LEADER_EPOCH"
    assert code(ask("r2", 0, epoch)) == "FENCED_BROKER_EPOCH"
    assert code(ask("r9", 99, epoch)) == "NOT_REPLICA"


def test_an_unclean_leader_that_ends_before_the_own_log_begins_is_copied_from_its_start() -> None:
    """Retention has left r2 nothing of what the new leader, r3, has: no end of r2's log is a beginning of r3's."""
    net = overtaken()
    net.stop("r1")
    old = net.partition("r2").log
    begin, end = old.start, old.end
    epoch = net.state().leader_epoch + 1
    net.push(leader="r3", isr=("r3",), leader_epoch=epoch, unclean_epoch=epoch)
    net.start("r3")
    net.advance(4)
    net.send("r3", b"other line")
    net.advance(4)
    assert net.partition("r3").log.end == 2 < begin
    ((name, event),) = net.happened("copy_restarted")
    assert (name, event.fields["old_end"], event.fields["start"]) == ("r2", end, 0)
    ((name, event),) = net.happened("committed_records_lost")
    assert (name, event.fields["start"], event.fields["end"]) == ("r2", begin, end)
    assert net.values("r2") == [b"first", b"other line"]
    same(net, "r2", "r3")


def test_an_uncommitted_tail_does_not_outlive_the_leaders_log_start() -> None:
    """r1's tail is longer than what retention has removed at r2; the epoch in which they part is forgotten there."""
    net = Net(config=CONFIG)
    net.start()
    net.create()
    net.send("r1", b"first")
    net.advance(4)
    net.stop("r2")
    net.stop("r3")
    for number in range(60):
        net.send("r1", b"stale %d" % number)
    net.stop("r1")
    net.start("r2")
    net.start("r3")
    net.lead("r2", "r2 r3")
    for number in range(40):
        net.send("r2", b"%d" % number)
    net.advance(4)
    for name in ("r2", "r3"):
        log = net.partition(name).log
        log.advance_start(log.end - 4)
    start = net.partition("r2").log.start
    assert 1 < start < 61
    net.start("r1")
    net.advance(4)
    same(net, "r1", "r2", "r3")
    assert net.partition("r1").log.start == start
    assert not any(value.startswith(b"stale") for value in net.values("r1"))


def test_a_copy_that_has_forgotten_silent_producers_reports_it() -> None:
    net = overtaken()
    net.start("r3")
    net.advance(4)
    for name in ("r2", "r3"):
        net.stop(name)
        for file in net.disks[name].listdir(PATH) if name == "r3" else ():
            if file.startswith("producers-"):
                net.disks[name].replace(f"{PATH}/{file}", b"spoilt")
        net.start(name)
    net.advance(4)
    ((name, event),) = net.happened("producers_forgotten")
    assert (name, event.fields["start"]) == ("r3", net.partition("r3").log.start)
    assert net.partition("r3").offline is None
