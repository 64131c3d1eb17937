"""Links that become mute and do not end: what is lost, and when each side notices."""

from __future__ import annotations

import random

import pytest
from tidelog.testing.clients.producer import ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.hardware.loop import Loop
from tidelog.testing.hardware.network import PEER_SILENCE_S, SILENCE_S, Frame, Network, SimLink


class Peer:
    """A process that records the messages that it got, and when its link ended."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.got: list[int | None] = []
        self.ended: list[float] = []
        self.link: SimLink | None = None
        network.attach(self)

    def on_accept(self, link: SimLink) -> None:
        self.link = link

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        self.got.append(frame.id)

    def on_close(self, link: SimLink) -> None:
        self.ended.append(round(self.network.loop.now, 1))

    def on_gone(self, name: str) -> None:
        self.got.append(None)

    def on_datagram(self, sender: str, message: object) -> None:
        raise AssertionError


def linked(client: str, server: str) -> tuple[Loop, Network, Peer, Peer]:
    """Return two processes with an open link."""
    loop = Loop()
    network = Network(loop, random.Random(1))
    one, other = Peer(network, client), Peer(network, server)
    one.link = network.connect(one, server)
    loop.run_until(1.0)
    assert other.link is one.link
    return loop, network, one, other


def say(peer: Peer, id: int) -> None:
    assert peer.link is not None
    peer.link.send(peer, Frame("post", id, ValueError()))


@pytest.mark.parametrize(("client", "patience"), [("p1", SILENCE_S), ("r2", PEER_SILENCE_S)])
def test_a_side_that_hears_nothing_closes_the_link_and_the_other_side_sees_it_close(
    client: str, patience: float
) -> None:
    loop, network, one, other = linked(client, "r1")
    network.mute("r1", client, until=0.0)
    say(other, 1)
    say(one, 2)
    loop.run_until(1.0 + patience - 0.1)
    assert (one.got, other.got, one.ended, other.ended) == ([], [2], [], []) and network.unnoticed == 2
    loop.run_until(30.0)
    assert one.ended == other.ended == [round(1.0 + patience, 1)] and network.unnoticed == 0


def test_a_side_that_still_hears_the_other_finds_nothing_out_until_that_gives_up() -> None:
    loop, network, one, other = linked("p1", "r1")
    network.mute("p1", "r1", until=0.0)
    for second in range(2, 20):
        loop.at(second, lambda: say(other, 1))
    loop.run_until(4.5)
    assert len(one.got) == 3 and not one.ended
    loop.run_until(30.0)
    assert one.ended == other.ended == [1.0 + SILENCE_S]


def test_where_both_directions_are_mute_each_side_finds_out_by_itself_also_that_the_other_has_ended() -> None:
    loop, network, one, other = linked("r2", "r1")
    network.mute("r1", "r2", until=0.0)
    network.mute("r2", "r1", until=0.0)
    network.detach(one, slow=False)
    loop.run_until(30.0)
    assert (one.ended, other.ended) == ([], [1.0 + SILENCE_S]) and network.unnoticed == 0


def test_new_links_work_at_once_or_after_a_while() -> None:
    loop, network, one, other = linked("r2", "r1")
    network.mute("r2", "r1", until=2.0)
    one.link = network.connect(one, "r1")
    say(one, 1)
    loop.run_until(2.0)
    assert other.got == []
    loop.run_until(6.0)
    one.link = network.connect(one, "r1")
    say(one, 2)
    loop.run_until(7.0)
    assert other.got == [2]


def test_a_leader_whose_every_link_goes_silent_is_replaced_and_nothing_acknowledged_is_lost() -> None:
    options = Options(7, topics=(TopicOptions("t"),), producers=(ProducerOptions(window=3, pace=0.05),), consumers=1)
    cluster = Cluster(options)
    cluster.until(cluster.ready)
    cluster.run_for(1.0)
    leader, others = cluster.state().leader, [name for name in cluster.processes if name != cluster.state().leader]
    assert leader is not None
    epoch, end = cluster.state().leader_epoch, cluster.invariants.committed_end(cluster.partitions[0])
    cluster.faults.mute(cluster.processes[leader], others, out=True, back=True, seconds=3.0)
    cluster.until(lambda: cluster.state().leader_epoch > epoch and cluster.state().leader not in (None, leader))
    cluster.until(lambda: cluster.invariants.committed_end(cluster.partitions[0]) > end)
    cluster.run()


def test_the_seeds_that_are_always_run_have_silent_links() -> None:
    assert sum(Options.draw(seed).swarm.mutes for seed in range(180)) > 30
