"""Followers that acknowledge one way what came with a notice: two messages fewer, and nothing else is different."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.replica_network import KEY, Net, cluster
from tidelog.feature_levels import NEWEST, PROGRESS
from tidelog.sansio.effects import Post
from tidelog.types import TopicConfig
from tidelog.wire.messages import Fetch, FetchPart, Notify, NotifyPart, Progress
from tidelog_replica.replication import progress


def sparse(flush: str = "os", level: int = NEWEST, **options: Any) -> Net:
    """A cluster whose followers idle, and found nothing more when they asked after their last notice."""
    config = TopicConfig(min_insync_replicas=2, flush=flush, **options)
    net = cluster(config=config, level=level)
    for value in (b"first", b"second"):
        net.send("r1", value)
        net.advance(1)
    net.sent.clear()
    return net


def told(net: Net, message: Progress) -> list[NotifyPart]:
    """What the leader sends back over the link, which is that of r2."""
    effects = net.nodes["r1"].on_request(net.names.index("r2"), None, message, net.now)
    posts = [effect for effect in effects if isinstance(effect, Post) and isinstance(effect.message, Notify)]
    assert all(net.names[post.source] == "r2" for post in posts)
    return [part for post in posts for part in post.message.parts]  # type: ignore[union-attr]


def progress_of(net: Net, **changed: Any) -> Progress:
    """What r2 would tell now."""
    log = net.partition("r2").log
    part = FetchPart(*KEY, net.state().leader_epoch, log.end, log.epoch_at(log.end), log.durable)
    return Progress("r2", net.servers["r2"].broker_epoch, (replace(part, **changed),))


@pytest.mark.parametrize(("flush", "messages"), [("os", 1), ("fsync", 2)])
def test_a_single_record_costs_each_follower_a_notice_and_a_word_for_each_step(flush: str, messages: int) -> None:
    """Written, and where that is another thing, flushed."""
    net = sparse(flush)
    assert net.acks[net.send("r1", b"third")].offset == 2
    assert len(net.messages(Progress, "r2")) == len(net.messages(Progress, "r3")) == messages
    assert not net.messages(Fetch)


def test_below_the_feature_level_it_is_asked_as_ever() -> None:
    net = sparse(level=PROGRESS - 1)
    assert net.acks[net.send("r1", b"third")].offset == 2
    assert not net.messages(Progress) and len(net.messages(Fetch)) == 2


def test_a_follower_that_lacks_something_is_notified_and_asks() -> None:
    net = sparse()
    parts = told(net, progress_of(net, offset=1, last_epoch=net.state().leader_epoch, durable=1))
    assert [part.size for part in parts] == [0]
    net.nodes["r1"].on_request(net.names.index("r2"), None, progress_of(net), net.now)  # it has all, and idles again
    net._take("r2", net.nodes["r2"].on_request(0, None, Notify(tuple(parts)), net.now))
    net.run()
    assert len(net.messages(Fetch, "r2")) >= 1 and not net.messages(Progress, "r2")


def test_after_a_notice_without_data_it_asks_until_asking_brought_nothing_once_more() -> None:
    net = sparse()
    part = NotifyPart(*KEY, net.state().leader_epoch)
    net._take("r2", net.nodes["r2"].on_request(0, None, Notify((part,)), net.now))
    net.run()
    net.sent.clear()
    net.send("r1", b"third")
    assert net.messages(Fetch, "r2") and not net.messages(Progress, "r2")
    net.sent.clear()
    net.send("r1", b"fourth")
    assert net.messages(Progress, "r2") and not net.messages(Fetch, "r2")


def test_a_word_of_another_leader_epoch_moves_nothing_and_is_asked_about() -> None:
    net = sparse()
    before = net.partition("r1").high_watermark
    ahead = net.state().leader_epoch + 1
    assert [part.size for part in told(net, progress_of(net, leader_epoch=ahead, offset=9, durable=9))] == [0]
    assert net.partition("r1").high_watermark == before


def test_a_word_of_an_earlier_life_is_passed_over() -> None:
    net = sparse()
    late = replace(progress_of(net, offset=9, durable=9), broker_epoch=0)
    assert not told(net, late)


def test_a_lost_word_costs_no_more_than_an_idle_wait() -> None:
    net = sparse()
    net.cut |= {("r2", "r1"), ("r3", "r1")}
    number = net.send("r1", b"third")
    assert number not in net.acks
    net.cut.clear()
    net.advance(net.settings.replica_max_idle_wait_s)
    assert net.acks[number].offset == 2


def test_where_readers_wait_at_a_follower_it_asks() -> None:
    """The answer tells it how far the log is committed."""
    net = sparse()
    number = net.read("r2", 2, any_replica=True, max_wait_ms=5000)
    net.send("r1", b"third")
    net.advance(net.settings.replica_max_idle_wait_s)
    assert net.messages(Fetch, "r2") and not net.messages(Progress, "r2")
    assert number in net.answers


def test_a_follower_that_is_behind_by_just_as_many_records_as_it_may_is_not_overdue() -> None:
    follower = progress.FollowerProgress(
        caught_up_at=50.0, mark_end=0, mark_time=0.0, durable=90, asked_end=100, asked_at=1.0
    )
    assert follower.overdue_at(10.0, 10) == 60.0
    assert follower.overdue_at(10.0, 9) == 1.0 + progress.RECORDS_PATIENCE * 10.0 < 60.0
