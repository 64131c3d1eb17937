"""A server that is stopped in order: others lead, and nobody waits for it. Tests ``node.py`` and
``registration/session.py``."""

from __future__ import annotations

from support.replica_network import KEY, Net, cluster, code
from tidelog.types import TopicConfig
from tidelog.wire.messages import AlterIsr, Fetch, HandOver


def leave(net: Net, name: str) -> None:
    net._take(name, net.nodes[name].leave(net.now))
    net.run()


def test_C15_a_leader_hands_over_and_takes_nothing_that_its_successor_may_lack() -> None:
    net = cluster()
    leave(net, "r1")
    (message,) = net.hand_overs
    assert (message.node, message.reason, message.lost) == ("r1", "shutdown", False)
    assert [(part.topic_id, part.partition, part.leader_epoch) for part in message.parts] == [(*KEY, 0)]
    assert not net.nodes["r1"].is_drained
    error = net.acks[net.send("r1", b"a")].error
    assert error is not None and (error.code, error.detail) == ("OFFLINE", {"handing_over": "1"}), "it is sent again"
    net.lead("r2", "r2 r3")
    assert net.nodes["r1"].is_drained
    assert code(net.acks[net.send("r1", b"b")]) == "NOT_LEADER"
    assert code(net.acks[net.send("r2", b"b")]) == ""
    assert net.close("r1")


def test_C15_it_asks_again_until_it_is_granted() -> None:
    net = cluster()
    leave(net, "r1")
    net.advance(1.6)
    assert len(net.messages(HandOver)) == 4
    net.grants_hand_overs = True
    net.advance(0.5)
    assert net.nodes["r1"].is_drained
    count = len(net.messages(HandOver))
    net.advance(5)
    assert len(net.messages(HandOver)) == count


def test_C15_no_leader_waits_for_a_follower_that_leaves_and_none_takes_it_back() -> None:
    net = cluster()
    net.grants_hand_overs = True
    leave(net, "r3")
    assert net.state().isr == ("r1", "r2")
    assert net.nodes["r3"].is_drained
    before = len(net.messages(Fetch, "r3"))
    assert code(net.acks[net.send("r1", b"a")]) == ""
    net.advance(9)
    assert net.state().isr == ("r1", "r2")
    assert len(net.messages(Fetch, "r3")) == before
    assert net.values("r3") == []


def test_C15_one_that_was_only_thought_gone_is_taken_back_when_it_asks() -> None:
    net = cluster()
    net.push(isr=("r1", "r2"))
    net.run()
    assert net.state().isr == ("r1", "r2", "r3"), "it was told to ask"
    assert len(net.messages(AlterIsr)) == 1


def test_a_server_without_others_is_drained_at_once() -> None:
    net = cluster(1)
    leave(net, "r1")
    assert net.nodes["r1"].is_drained
    assert not net.hand_overs
    assert code(net.acks[net.send("r1", b"a")]) == ""


def test_a_server_that_is_not_registered_has_nothing_to_hand_over() -> None:
    net = Net(1)
    net.controller_up = False
    net.start()
    leave(net, "r1")
    assert net.nodes["r1"].is_drained


def test_a_quorum_follower_just_ends_the_others_do_not_wait_for_it() -> None:
    net = cluster(config=TopicConfig(commit_rule="quorum"))
    leave(net, "r3")
    assert net.nodes["r3"].is_drained
    assert not net.hand_overs
    leave(net, "r1")
    assert [message.node for message in net.hand_overs] == ["r1"]
