"""What followers that idle are told (B16): one question per leader server, and still nothing is missed."""

from __future__ import annotations

from typing import Any

import pytest
from support.replica_network import Net, cluster
from tidelog.sansio.effects import Call
from tidelog.types import TopicConfig
from tidelog.wire.messages import Fetch, FetchAnswer, ReportLeader

IDLE_S = 3.3
OS = TopicConfig(min_insync_replicas=2, flush="os")


def settled(partitions: int = 1, **options: Any) -> Net:
    """A cluster in which every follower has shown that it knows all, and no timer is left of its beginning."""
    net = cluster(partitions=partitions, **options)
    net.advance(4 * IDLE_S)
    return net


def fetches(net: Net, seconds: float, name: str | None = None) -> list[Fetch]:
    """What is asked in that time."""
    before = len(net.messages(Fetch, name))
    net.advance(seconds)
    return net.messages(Fetch, name)[before:]


def test_B16_an_idle_follower_asks_one_empty_question_per_idle_wait() -> None:
    net = settled(partitions=50)
    asked = fetches(net, 10 * IDLE_S + 0.1)
    assert 2 * 9 <= len(asked) <= 2 * 10
    assert all(fetch.news and not fetch.parts for fetch in asked)


def test_after_a_burst_a_follower_asks_twice_more_for_what_has_changed_only() -> None:
    net = settled(partitions=50)
    for _ in range(5):
        net.send("r1", b"a", partition=7)
    asked = fetches(net, 10 * IDLE_S, "r2")
    assert [part.partition for fetch in asked for part in fetch.parts] in ([7], [7, 7])


def test_an_idle_follower_learns_the_high_watermark_within_an_idle_wait() -> None:
    net = settled(config=OS)
    net.send("r1", b"a")
    assert min(net.partition(name).high_watermark for name in ("r2", "r3")) == 0
    net.advance(IDLE_S)
    assert [net.partition(name).high_watermark for name in net.names] == [1, 1, 1]


def test_a_late_copy_of_an_old_question_settles_nothing() -> None:
    """Its answer goes nowhere, so what that told the follower does not know."""
    net = settled(config=OS)
    net.send("r1", b"a")
    behind = next(name for name in ("r2", "r3") if net.partition(name).high_watermark == 0)
    source, last = net.names.index(behind), net.messages(Fetch, behind)[-1]
    answer = net.nodes["r1"].on_request(source, 1_000_000, last, net.now)
    assert any(getattr(effect, "message", None) for effect in answer)
    assert net.partition(behind).high_watermark == 0
    net.advance(IDLE_S)
    assert net.partition(behind).high_watermark == 1


def test_a_late_copy_of_the_question_for_news_takes_nothing_away() -> None:
    net = settled(config=OS)
    net.send("r1", b"a")
    for name in ("r2", "r3"):
        question = Fetch(name, net.nodes[name].broker_epoch, 1 << 20, (), True)
        net.nodes["r1"].on_request(net.names.index(name), 1_000_000, question, net.now)
    net.advance(IDLE_S)
    assert [net.partition(name).high_watermark for name in net.names] == [1, 1, 1]


def test_an_idle_follower_learns_where_the_log_begins_within_an_idle_wait() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2, flush="os", segment_max_bytes=400))
    for number in range(20):
        net.send("r1", b"%d" % number)
    net.advance(3 * IDLE_S)
    net.reconfigure(retention_records=5, segment_max_bytes=400)
    net.advance(300)
    before = net.partition("r1").log.start
    assert before > 0
    assert [net.partition(name).following.leader_start for name in ("r2", "r3")] == [before, before]


def test_a_lost_link_has_everything_asked_for_again() -> None:
    net = settled(partitions=3)
    before = len(net.messages(Fetch, "r2"))
    net._take("r1", net.nodes["r1"].on_link_closed(net.names.index("r2"), net.now))
    net._take("r2", net.nodes["r2"].on_peer_down("r1", net.now))
    net.run()
    net.advance(0.1)
    asked = net.messages(Fetch, "r2")[before:]
    assert sorted({part.partition for fetch in asked for part in fetch.parts}) == [0, 1, 2]


def test_a_link_of_which_only_the_leader_knows_that_it_broke_costs_an_idle_wait() -> None:
    net = settled(partitions=3)
    net._take("r1", net.nodes["r1"].on_link_closed(net.names.index("r2"), net.now))
    asked = fetches(net, IDLE_S, "r2")
    assert sorted({part.partition for fetch in asked for part in fetch.parts}) == [0, 1, 2]


def test_a_leader_that_falls_silent_while_all_idles_is_reported() -> None:
    net = settled()
    net.silent.add("r1")
    net.advance(IDLE_S)
    assert {m.node for m in net.messages(ReportLeader)} == {"r2", "r3"}


def test_a_partition_that_goes_offline_while_all_idles_is_reported_by_its_followers() -> None:
    net = settled(partitions=2)
    net.partition("r1", 1).fail("its disk failed")
    net.advance(IDLE_S)
    reports = net.messages(ReportLeader)
    assert {(m.node, m.reason) for m in reports} == {("r2", "offline"), ("r3", "offline")}
    assert {part.partition for m in reports for part in m.parts} == {1}


def test_a_leader_that_lists_no_unaware_partitions_is_asked_for_all_of_them() -> None:
    """One of an older version, or one that owes too much."""
    net = settled(partitions=3)

    def deaf(name: str, call: Call) -> bool:
        if isinstance(call.message, Fetch) and call.message.news:
            net._answer(name, call.token, FetchAnswer(()))
            return True
        return False

    net.hold = deaf
    asked = fetches(net, IDLE_S, "r2")
    assert sorted(part.partition for fetch in asked for part in fetch.parts) == [0, 1, 2]


def test_a_question_for_news_that_failed_is_asked_again() -> None:
    net = settled(config=OS)
    net.send("r1", b"a")
    net.cut.add(("r2", "r1"))
    net.cut.add(("r3", "r1"))
    net.advance(IDLE_S)
    net.cut.clear()
    net.advance(0.6)
    assert [net.partition(name).high_watermark for name in net.names] == [1, 1, 1]


def owed(net: Net, name: str) -> int:
    """How much a server holds back for others."""
    return sum(len(net.nodes[name].idle_followers.of(other)) for other in net.names)


@pytest.mark.parametrize("first", ["", "steps down", "goes offline"])
def test_nothing_is_owed_for_partitions_that_others_lead_by_now(first: str) -> None:
    net = settled()
    net.send("r1", b"a")
    assert owed(net, "r1") == 2
    if first == "steps down":
        net.partition("r1").step_down("another leads")
        assert owed(net, "r1") == 0
    if first == "goes offline":
        net.partition("r1").fail("its log is damaged")
        assert owed(net, "r1") == 2
    net.lead("r2", "r1 r2 r3")
    assert owed(net, "r1") == 0
    net.advance(3 * IDLE_S)
    assert owed(net, "r2") == 1 * (first == "goes offline"), "r1 does not follow"
