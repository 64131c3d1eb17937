"""What the log of a server has lost by itself, before anybody made it cut something, and who is told. Tests
``recovery/pending_losses.py`` and ``registration/incarnations.py``."""

from __future__ import annotations

import pytest
from support.replica_network import KEY, Net, cluster, code
from tidelog.batch.format import split
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import AlterIsr

from unit.replica.maintenance.test_log_repairer import PATH, VALUES, filled, segments


def torn(net: Net, name: str, records: int) -> None:
    """The server died, and of its log so many records are left."""
    disk, path = net.disks[name], f"/data/{KEY.topic_id}-0/{0:020d}.log"
    left = [bytes(batch) for _, batch in split(memoryview(disk.read(path)))][:records]
    net.stop(name)
    disk.replace(path, b"".join(left))


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "one epoch later"])
def test_an_unclean_leader_reports_the_losses_of_its_own_log(restarted: bool) -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, flush="os"))
    for value in (b"a", b"b", b"c"):
        net.send("r1", value)
    net.advance(6)
    assert net.partition("r1").high_watermark == 3
    net.stop("r2")
    torn(net, "r1", 1)
    net.push(leader="r1", isr=("r1",), leader_epoch=1 + restarted, unclean_epoch=1)
    net.start("r1")
    net.advance(1)
    assert net.values("r1") == [b"a"]
    (loss,) = net.losses
    assert (loss.node, loss.leader_epoch, loss.start, loss.end) == ("r1", 1 + restarted, 1, 3)
    assert len(net.happened("committed_records_lost")) == 1
    assert code(net.acks[net.send("r1", b"d")]) == ""
    net.stop("r1")
    net.push(leader="r1", leader_epoch=3)
    net.start("r1")
    net.advance(1)
    assert net.values("r1") == [b"a", b"d"]
    assert len(net.losses) == 1, "once"


def test_a_follower_of_an_unclean_leader_reports_its_cut_and_its_earlier_loss() -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, flush="os"))
    for value in (b"a", b"b", b"c"):
        net.send("r1", value)
    net.advance(6)
    torn(net, "r2", 2)
    torn(net, "r1", 1)
    net.push(leader="r1", isr=("r1",), leader_epoch=1, unclean_epoch=1)
    net.start("r1", "r2")
    net.advance(1)
    assert sorted((loss.node, loss.start, loss.end) for loss in net.losses) == [("r1", 1, 3), ("r2", 1, 3)]


def test_a_log_that_lost_its_end_and_follows_one_that_has_it_reports_no_loss() -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, flush="os"))
    for value in (b"a", b"b", b"c"):
        net.send("r1", value)
    net.advance(6)
    torn(net, "r2", 1)
    net.push(isr=("r1",))
    net.start("r2")
    net.advance(1)
    assert net.values("r2") == [b"a", b"b", b"c"]
    net.lead("r2", "r2")
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.advance(1)
    assert not net.losses


def test_records_of_an_unclean_history_are_not_committed_by_the_hw_of_the_lost_one() -> None:
    """Whatever was committed there, on the line that is lost; also after another restart."""
    net = cluster(3, config=TopicConfig(min_insync_replicas=2, unclean_election=True, flush="os"))
    for value in (b"a", b"b", b"c"):
        net.send("r1", value)
    net.advance(6)
    for name in ("r1", "r2"):
        torn(net, name, 1)
    net.stop("r3")
    net.push(leader="r1", isr=("r1",), leader_epoch=1, unclean_epoch=1)
    net.start("r1", "r2")
    net.advance(1)
    net.hold = lambda name, call: isinstance(call.message, AlterIsr)
    net.push(leader="r1", isr=("r1",), leader_epoch=2)
    for value in (b"x", b"y", b"z"):
        net.send("r1", value, acks=Acks.LEADER)
    net.stop("r2")
    net.start("r2")
    net.advance(1)
    assert net.partition("r2").log.end == 4 and net.partition("r1").high_watermark == 1
    assert net.partition("r2").high_watermark <= 1


def test_an_unclean_leader_with_an_empty_log_reports_the_loss():
    net = filled(1)
    net.stop("r1")
    for file in segments(net, "r1"):
        net.disks["r1"].unlink(f"{PATH}/{file}")
    net.start("r1")
    net.advance(5)
    epoch = net.state().leader_epoch + 1
    net.push(leader="r1", isr=("r1",), leader_epoch=epoch, unclean_epoch=epoch)
    net.run()
    assert net.partition("r1").leading is not None and net.values("r1") == []
    assert [(loss.start, loss.end) for loss in net.losses] == [(0, len(VALUES))]


def test_where_a_trimmed_leader_knows_no_common_epoch_all_that_was_committed_may_be_lost() -> None:
    """All that its oldest epoch can say of an older one is that this ended before it: the logs may have parted
    anywhere below. (The place may lie within a batch, too: the HW once stayed there, above the log's end.)"""
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, segment_max_bytes=1))
    net.send("r1", b"a")
    net.advance(6)
    net.push(leader="r1", isr=("r1",))
    net.stop("r2")
    net.send("r1", b"b")
    net.stop("r1")
    net.push(leader="r2", isr=("r2",), leader_epoch=1, unclean_epoch=1)
    net.start("r2")
    net.advance(1)
    net.send("r2", b"x", b"y", b"z")
    net.advance(6)
    net.stop("r2")
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.start("r1")
    net.advance(1)
    net.send("r1", b"c")
    net.send("r1", b"d")
    assert net.partition("r1").log.advance_start(3)
    net.losses.clear()
    net.start("r2")
    net.advance(1)
    assert [(loss.node, loss.start, loss.end) for loss in net.losses] == [("r2", 0, 4)]
    assert net.values("r2") == net.values("r1") == [b"d"]


@pytest.mark.parametrize(("start", "lost"), [(4, (0, 3)), (1, (1, 3))], ids=["none known", "one known"])
def test_a_follower_of_a_trimmed_leader_reports_all_possible_losses_and_no_more(
    start: int, lost: tuple[int, int]
) -> None:
    """Where no epoch is common any more its log ends before the leader's begins: nothing is cut, the copy starts
    over."""
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, segment_max_bytes=1))
    net.send("r1", b"a")
    net.advance(6)
    net.push(leader="r1", isr=("r1",))
    net.stop("r1")
    net.push(leader="r2", isr=("r2",), leader_epoch=1, unclean_epoch=1)
    net.run()
    for value in (b"x", b"y"):
        net.send("r2", value)
    net.advance(6)
    net.stop("r2")
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.start("r1")
    net.advance(1)
    for value in (b"c", b"d", b"e", b"f"):
        net.send("r1", value)
    net.advance(6)
    assert net.partition("r1").log.advance_start(start)
    net.losses.clear()
    net.start("r2")
    net.advance(1)
    assert net.values("r2")[-1] == net.values("r1")[-1] == b"f"
    assert [(loss.node, loss.start, loss.end) for loss in net.losses] == [("r2", *lost)]


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_follower_that_had_lost_its_end_itself_reports_what_an_unclean_leader_never_had(left: int) -> None:
    """It has nothing to cut, and the leader does not know of it."""
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, flush="os"))
    net.send("r1", b"a")
    net.advance(6)
    net.push(leader="r2", isr=("r2",), leader_epoch=1)
    net.stop("r1")
    net.run()
    for value in (b"b", b"c"):
        net.send("r2", value)
    net.advance(6)
    torn(net, "r2", left)
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.start("r1")
    net.send("r1", b"x")
    net.start("r2")
    net.advance(1)
    assert net.values("r1") == net.values("r2") == [b"a", b"x"]
    assert [(loss.node, loss.start, loss.end) for loss in net.losses] == [("r2", 1, 3)]


@pytest.mark.parametrize("grows", [False, True])
def test_a_follower_that_had_lost_its_end_and_finds_it_at_the_unclean_leader_reports_nothing(grows: bool) -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1, unclean_election=True, flush="os"))
    for value in (b"a", b"b", b"c"):
        net.send("r1", value)
    net.advance(6)
    torn(net, "r2", 1)
    net.push(leader="r1", isr=("r1",), leader_epoch=1, unclean_epoch=1)
    if grows:
        net.send("r1", b"d")
    net.start("r2")
    net.advance(1)
    assert net.values("r2") == net.values("r1") and not net.losses


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_copy_without_its_end_that_starts_over_at_a_trimmed_leader_reports_all_possible_losses(left: int) -> None:
    """Nothing of its own log is known to be the leader's, and it had had more; also where nothing is left of it."""
    config = TopicConfig(min_insync_replicas=1, unclean_election=True, flush="os", segment_max_bytes=1)
    net = cluster(2, config=config)
    net.send("r1", b"a")
    net.advance(6)
    net.push(leader="r1", isr=("r1",))
    net.stop("r1")
    net.push(leader="r2", isr=("r2",), leader_epoch=1, unclean_epoch=1)
    net.run()
    for value in (b"x", b"y"):
        net.send("r2", value)
    net.advance(6)
    net.stop("r2")
    disk = net.disks["r2"]
    for number in range(left, 3):
        disk.unlink(f"{PATH}/{number:020d}.log")
    net.push(leader="r1", isr=("r1",), leader_epoch=2, unclean_epoch=2)
    net.start("r1")
    net.advance(1)
    for value in (b"c", b"d", b"e", b"f"):
        net.send("r1", value)
    net.advance(6)
    assert net.partition("r1").log.advance_start(4)
    net.losses.clear()
    net.start("r2")
    net.advance(1)
    assert net.values("r2") == net.values("r1")
    assert [(loss.node, loss.start, loss.end) for loss in net.losses] == [("r2", 0, 3)]
