"""A controller comes back with an old copy of its disk: it is recognised, does not count, and is refilled."""

from __future__ import annotations

from tidelog_controller.core.raft import RaftSettings

from raft_net import LATER, Net, Node

BEAT_S = RaftSettings().heartbeat_s


def one_behind() -> tuple[Net, Node]:
    """c1 leads; c2 has acknowledged ten commands and comes back with the copy that it had after the first two."""
    net = Net(3, named=True)
    net.elect("c1")
    net.propose(b"1")
    net.propose(b"2")
    copy = net["c2"].copy_disk()
    for number in range(3, 11):
        net.propose(b"%d" % number)
    net.run(2 * BEAT_S)
    net["c2"].restore_disk(copy, net.now)
    return net, net["c2"]


def test_it_is_refilled_and_then_two_of_three_go_on_without_the_third() -> None:
    net, old = one_behind()
    net.run(5 * BEAT_S)
    assert old.raft.log.last_index == net["c1"].raft.log.last_index
    net.blocked = lambda sender, to: "c3" in (sender, to)
    net.propose(b"last")
    assert net["c1"].applied[-1].data == b"last" == old.disk.entries[-1].data
