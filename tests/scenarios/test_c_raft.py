"""C16: the failures that Raft must survive, message by message (the cores alone; ``support/raft_network.py``)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.raft_network import FIVE, LATER, THREE, Net, append, core, log, sent, terms_of
from tidelog.wire.messages import AppendResult, RequestVote, Vote
from tidelog_controller.raft.log import Entry, PersistentState


def test_C16_double_vote_after_restart():
    net = Net(THREE)
    net.deliver("c2", "c1", RequestVote(5, 0, 0))
    net["c1"].restart(net.now)
    net.flying.clear()
    net.deliver("c3", "c1", RequestVote(5, 0, 0))
    assert net.flying == [("c1", "c3", Vote(5, False))]


def test_C16_double_vote_after_a_lost_disk():
    """The empty store knows no configuration and gives no vote; if it did, the second candidate would not count
    it."""
    net = Net(THREE, spares=["c9"])
    for candidate in ("c2", "c3"):
        node = net[candidate]
        node.perform(node.raft.on_tick(LATER))
        net.deliver("c1", candidate, Vote(1, True, pre=True, store="c1.1"))
    assert net["c2"].raft.role == net["c3"].raft.role == "candidate"
    net.flying = [flight for flight in net.flying if flight[1] == "c1" and not getattr(flight[2], "pre", False)]
    requests = {sender: message for sender, _, message in net.flying}
    net.flying.clear()
    net.deliver("c2", "c1", requests["c2"])
    net["c1"].lose_store(net.now)
    net.deliver("c3", "c1", requests["c3"])
    assert [message.granted for _, _, message in net.flying] == [True, False]
    net.deliver("c1", "c3", replace(net.flying.pop()[2], granted=True))
    net.settle()
    assert net["c2"].raft.role == "leader" and net["c3"].raft.role != "leader"


def test_C16_stale_append_entries_after_newer_ones():
    raft = core(term=2)
    raft.on_message("c2", append(2, (0, 0), log(2, 2, 2)), 0.0)
    (answer,) = sent(raft.on_message("c2", append(2, (0, 0), log(2)), 0.0))
    assert answer == AppendResult(2, True, 1)
    assert terms_of(raft) == [2, 2, 2], "an older, shorter message erases nothing"


def figure_8() -> Net:
    """Return a network in state (b): S1 has led term 2 and brought its entry to S2 and S3; S5 has led term 3 and
    written its own."""
    logs = ([1, 2], [1, 2], [1, 2], [1], [1, 3])
    return Net(FIVE, stored={f"c{n}": PersistentState(3, None, log(*terms)) for n, terms in enumerate(logs, 1)})


def test_C16_leader_completeness_figure_8():
    """(e) S1 replicates an entry of term 4 behind that of term 2 to a majority: both are then safe from S5."""
    net = figure_8()
    net.isolate("c4", "c5")
    net.elect("c1")
    committed = net["c1"].raft.commit_index
    assert committed == 3 and net["c1"].raft.log.term_at(3) == 4, "with the entry of term 4, not before"
    net.isolate("c1")
    net.run(30.0)
    assert net.leader.node_id != "c5" and terms_of(net.leader.raft)[:3] == [1, 2, 4]


def test_C16_an_entry_that_figure_8_overwrites_was_not_committed():
    """(c) The entry of term 2 is on a majority, and S1 knows that in term 4; (d) S5 is elected and overwrites it."""
    net = figure_8()
    net.isolate("c4", "c5")
    s1, net.now = net["c1"], LATER
    for _ in ("elected", "heartbeat"):
        s1.perform(s1.raft.on_tick(net.now))
        while net.flying:
            sender, to, message = net.flying.pop(0)
            if not net.blocked(sender, to) and not getattr(message, "payload", b""):  # nothing of term 4 arrives
                net.deliver(sender, to, message)
        net.now = s1.raft.deadline()
    assert s1.raft.standings()["c2"].match == s1.raft.standings()["c3"].match == 2
    net.isolate("c1")
    s5 = net["c5"]
    for _ in ("hears of term 4", "leads term 5"):
        net.now += LATER
        s5.perform(s5.raft.on_tick(net.now))
        net.settle()
    assert net.leader is s5
    net.isolate()
    net.run(5.0)
    assert [node.applied[1].term for node in net.nodes.values()] == [3] * 5


@pytest.mark.parametrize("size", [2, 4, 6])
def test_C16_even_sized_clusters(size: int):
    """Half of the servers can neither elect a leader nor commit."""
    net = Net(size)
    net.elect("c1")
    half = [f"c{n + 1}" for n in range(size // 2)]
    net.isolate(*half)
    index = net.propose(b"x", net["c1"])
    assert index is not None and net["c1"].raft.commit_index < index
    net.run(30.0)
    assert all(node.raft.role != "leader" for node in net.nodes.values())
    net.isolate()
    net.run(5.0)
    assert net.propose(b"y") is not None
    assert len({tuple(node.applied) for node in net.nodes.values()}) == 1


def test_C16_a_late_acknowledgement_of_a_lost_store_does_not_confuse_the_leader():
    """An acknowledgement of the old store is in flight while the new one is filled; neither confuses the leader."""
    net = Net(THREE, spares=["c9"])
    net.elect("c1")
    for number in range(5):
        net.propose(b"%d" % number)
    late = AppendResult(1, True, 6, store="c2.1")
    net["c2"].lose_store(net.now)
    net.run(1.0)
    for _ in range(3):
        net.deliver("c2", "c1", late)
        net.settle()
        net.run(0.3)
    assert net["c2"].applied == net["c1"].applied
    net.isolate("c3")
    net.propose(b"x")
    assert isinstance(net["c1"].raft.log.slice(7, 7)[0], Entry) and net["c1"].raft.commit_index == 6
