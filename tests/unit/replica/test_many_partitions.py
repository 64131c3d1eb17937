"""What a server has to say about many partitions goes out in several messages, none longer than others take. Tests
``node.py``, ``fetcher/fetcher.py`` and ``assignment/isr_proposals.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.fake_controller import KEY
from support.replica_network import Net, cluster
from tidelog.errors import Unreachable
from tidelog.types import TopicConfig, TopicPartition
from tidelog.wire import codec
from tidelog.wire.messages import AlterIsr, EpochOffset, Fetch, HandOver, MetadataUpdate, ReportLeader, Seal
from tidelog.wire.metadata_image import encode_delta
from tidelog_replica.assignment import isr_proposals as proposals
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.fetcher import fetcher as upstream
from tidelog_replica.maintenance import checkpointer as checkpoints

AT_ONCE = 3
PARTITIONS = 7


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_PARTS", AT_ONCE)
    monkeypatch.setattr(upstream, "PARTS", AT_ONCE)
    monkeypatch.setattr(checkpoints, "AT_ONCE", AT_ONCE)
    monkeypatch.setattr(proposals, "AT_ONCE", AT_ONCE)


def shares(net: Net, kind: Any, name: str, since: int = 0) -> list[list[int]]:
    """The partitions of each of a node's messages of that kind."""
    return [[part.partition for part in message.parts] for message in net.messages(kind, name)[since:]]


def assert_shared_out(found: list[list[int]]) -> None:
    """All partitions, none twice, in as few messages as it takes."""
    assert sorted(number for share in found for number in share) == list(range(PARTITIONS))
    assert sorted(map(len, found)) == [1, AT_ONCE, AT_ONCE]


def test_a_follower_asks_for_some_after_the_others_and_for_none_in_vain() -> None:
    net = cluster(partitions=PARTITIONS)
    for _ in range(2):
        for number in range(PARTITIONS):
            net.send("r1", b"x", partition=number, run=False)
        net.run()
    for name in ("r2", "r3"):
        assert [net.values(name, number) for number in range(PARTITIONS)] == [[b"x"] * 2] * PARTITIONS
        assert max(map(len, shares(net, Fetch, name))) == AT_ONCE
    assert len(net.acks) == 2 * PARTITIONS


def test_followers_of_a_new_leader_compare_their_logs_with_it_some_at_a_time() -> None:
    net = cluster(partitions=PARTITIONS)
    net.cut.add(("r3", "r2"))
    for number in range(PARTITIONS):
        net.send("r1", b"x", partition=number)
        net.lead("r2", "r1 r2 r3", number)
    since = len(net.messages(EpochOffset, "r3"))
    net.cut.clear()
    net.advance(1)
    asked = shares(net, EpochOffset, "r3", since)
    for number in range(PARTITIONS):
        net.send("r2", b"y", partition=number)
    assert {number for share in asked for number in share} == set(range(PARTITIONS))
    assert max(map(len, asked)) == AT_ONCE
    assert [net.values("r3", number) for number in range(PARTITIONS)] == [[b"x", b"y"]] * PARTITIONS


def test_a_follower_that_is_behind_gets_all_and_a_live_partition_first() -> None:
    net = cluster(partitions=PARTITIONS, config=TopicConfig(min_insync_replicas=1, flush="os"))
    net.stop("r3")
    for number in range(PARTITIONS):
        net.lead("r1", "r1 r2", number)
        net.send("r1", b"x", partition=number)
    net.push(PARTITIONS - 1, isr=("r1", "r2", "r3"))
    net.run()
    since = len(net.messages(Fetch, "r3"))
    net.start("r3")
    net.advance(1)
    assert shares(net, Fetch, "r3", since)[0][0] == PARTITIONS - 1
    assert [net.partition("r3", number).log.end for number in range(PARTITIONS)] == [1] * PARTITIONS


def test_a_dead_leader_is_reported_for_all_of_its_partitions() -> None:
    net = cluster(partitions=PARTITIONS)
    net.stop("r1")
    net.advance(0.001)
    assert_shared_out(shares(net, ReportLeader, "r2")[:3])


def test_a_server_that_ends_hands_everything_over() -> None:
    net = cluster(partitions=PARTITIONS)
    net._take("r1", net.nodes["r1"].leave(net.now))
    net.run()
    assert_shared_out(shares(net, HandOver, "r1")[:3])


def test_all_logs_are_sealed() -> None:
    net = cluster(partitions=PARTITIONS, config=TopicConfig(commit_rule="quorum"), settings=ReplicaSettings())
    for number in range(PARTITIONS):
        state = net.state(number)
        net.push(number, leader=None, leader_epoch=state.leader_epoch + 1, sealing=True)
    since = len(net.messages(Seal, "r2"))
    net.run()
    net.advance(net.settings.heartbeat_s)
    sealed = shares(net, Seal, "r2", since)
    assert {number for share in sealed for number in share} == set(range(PARTITIONS))
    assert max(map(len, sealed)) == AT_ONCE


def led_by(net: Net, name: str) -> int:
    """How many partitions this node leads, as far as it knows."""
    return sum(partition.leading is not None for partition in net.nodes[name].partitions.values())


def test_news_of_many_partitions_is_acted_on_some_at_a_time() -> None:
    net = cluster(partitions=PARTITIONS, settings=ReplicaSettings(reserve_bytes=0, changes_at_once=AT_ONCE))
    net.advance(1)
    news = [
        (number, replace(net.state(number), leader="r2", leader_epoch=1, epoch=9)) for number in range(PARTITIONS)
    ]
    delta = encode_delta((), (), (), [(TopicPartition(KEY.topic_id, number), state) for number, state in news])
    node = net.nodes["r2"]
    net._take("r2", node.on_metadata(MetadataUpdate(net.index + 1, payload=delta), net.now))
    led = [led_by(net, "r2")]
    for _ in range(2):  # what else is due comes between
        net._take("r2", node.on_tick(net.now + 0.001))
        net.advance(0.001)
        led.append(led_by(net, "r2"))
    assert led == [AT_ONCE, 2 * AT_ONCE, PARTITIONS]


def test_a_partition_that_changes_again_while_it_waits_is_acted_on_as_it_is_then() -> None:
    net = cluster(partitions=PARTITIONS, settings=ReplicaSettings(reserve_bytes=0, changes_at_once=AT_ONCE))
    net.advance(1)
    for number in range(PARTITIONS):
        net.lead("r2", "r1 r2 r3", number)
    net.lead("r3", "r1 r2 r3", PARTITIONS - 1)
    net.advance(1)
    assert (led_by(net, "r2"), led_by(net, "r3")) == (PARTITIONS - 1, 1)


def test_a_topic_that_is_deleted_while_its_news_waits_is_gone() -> None:
    net = cluster(partitions=PARTITIONS, settings=ReplicaSettings(reserve_bytes=0, changes_at_once=AT_ONCE))
    net.delete()
    net.advance(1)
    assert [len(node.partitions) for node in net.nodes.values()] == [0, 0, 0]
    assert not any(node.assignment.unopened for node in net.nodes.values())


def test_high_watermarks_are_written_some_at_a_time_and_each_once() -> None:
    net = cluster(partitions=PARTITIONS)
    for number in range(PARTITIONS):
        net.send("r1", b"x", partition=number)
    logs = [net.partition("r1", number).log for number in range(PARTITIONS)]
    written = []
    net.now += net.settings.checkpoint_interval_s
    for _ in range(3):
        net._take("r1", net.nodes["r1"].on_tick(net.now))
        written.append(sum(log.read_high_watermark() == 1 for log in logs))
        net.now += checkpoints.PAUSE_S
    assert written == [AT_ONCE, 2 * AT_ONCE, PARTITIONS]


def proposing() -> Net:
    """The ISRs of all partitions are to shrink, and the controller does not answer."""
    net = cluster(partitions=PARTITIONS)
    net.hold = lambda name, call: isinstance(call.message, AlterIsr)
    net.stop("r3")
    for number in range(PARTITIONS):
        net.send("r1", b"x", partition=number)
    net.advance(net.config.replica_max_lag_ms / 1000 + 1)
    return net


def answer(net: Net) -> None:
    """Now the controller does."""
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()


def test_few_proposals_are_unanswered_at_a_time_and_all_are_made() -> None:
    net = proposing()
    assert len(net.held) == AT_ONCE
    answer(net)
    assert [net.state(number).isr for number in range(PARTITIONS)] == [("r1", "r2")] * PARTITIONS


def test_a_proposal_that_is_settled_while_it_waits_is_not_made() -> None:
    net = proposing()
    for number in range(PARTITIONS):
        net.push(number, isr=("r1", "r2"))
    net.run()
    answer(net)
    assert len(net.proposals) == AT_ONCE


def test_proposals_that_wait_for_a_controller_are_made_even_if_those_before_them_are_settled_meanwhile() -> None:
    net = proposing()
    late, net.held = net.held, []
    for name, call in late:
        net.advance(net.settings.isr_retry_s / 4)
        net._answer(name, call.token, Unreachable("no controller"))
        net.push(call.message.partition, isr=("r1", "r2"))
        net.run()
    assert net.held == []
    net.advance(net.settings.isr_retry_s)
    answer(net)
    assert [net.state(number).isr for number in range(PARTITIONS)] == [("r1", "r2")] * PARTITIONS


def test_where_no_controller_is_found_few_proposals_are_tried_at_a_time() -> None:
    net = cluster(partitions=PARTITIONS)
    net.stop("r3")
    for number in range(PARTITIONS):
        net.send("r1", b"x", partition=number)
    net.controller_up = False
    tried = []
    for _ in range(3):
        net.advance(net.config.replica_max_lag_ms / 1000 if not tried else net.settings.isr_retry_s)
        tried.append(len(net.messages(AlterIsr, "r1")))
    assert tried == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]
    net.controller_up = True
    net.reconnect_controller()
    net.advance(net.settings.isr_retry_s)
    assert [net.state(number).isr for number in range(PARTITIONS)] == [("r1", "r2")] * PARTITIONS
