"""Damage below the place where the leader's log begins by now: it goes, and nothing else with it. Tests
``maintenance/log_repairer.py`` and ``storage/log.py``."""

from __future__ import annotations

import pytest
from support.replica_network import Net
from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import LogSnapshot, LogSnapshotAnswer, Message, Read
from tidelog_replica.replication.producer_state import ProducerState

from unit.replica.maintenance.test_log_repairer import (
    PATH,
    SMALL,
    VALUES,
    break_header,
    cluster,
    files,
    filled,
    happened,
    lives_through,
    segments,
)


def left_behind(net: Net, *damaged: int, count: int = 2) -> int:
    """r3 is away, and these of its segments are damaged; meanwhile retention takes the first ones at the others, and
    the indexes of r3 become durable. Where the logs begin then."""
    files = segments(net, "r3")
    net.stop("r3")
    for which in damaged:
        break_header(net, "r3", files[which])
    disk = net.disks["r3"]
    for file in disk.listdir(PATH):
        disk.replace(f"{PATH}/{file}", disk.read(f"{PATH}/{file}"))
    for name in ("r1", "r2"):
        assert net.partition(name).log.advance_start(int(files[count][:20]))
    return net.partition("r1").log.start


def answer_held(net: Net, answer: Message | TidelogError) -> None:
    """To the one call that is held."""
    ((name, call),) = net.held
    net.held.clear()
    net._answer(name, call.token, answer)
    net.run()


@pytest.mark.parametrize("damaged", [[0], [1], [0, 1]])
def test_a_segment_removed_by_retention_meanwhile_is_not_repaired_and_nothing_else_is_lost(damaged):
    net = filled()
    before = files(net, "r3")
    start = left_behind(net, *damaged)
    net.start("r3")
    net.advance(20)
    assert happened(net, "copy_restarted") == [] and happened(net, "hole_retired") == ["r3"]
    assert happened(net, "producers_forgotten") == []
    one, other = net.partition("r1").log, net.partition("r3").log
    assert other.start == start and "r3" in net.state().isr
    assert files(net, "r3") == {name: data for name, data in before.items() if int(name[:20]) >= start}
    assert other.chain_at(start) == one.chain_at(start) and other.chain_at(other.end) == one.chain_at(one.end)


@pytest.mark.parametrize("behind", [1, 2])
def test_D3_a_hole_behind_which_the_leaders_log_does_not_begin_costs_the_copy(behind: int):
    """It begins in the hole, where no own segment does; or behind it, but with another history."""
    net = filled()
    before, damaged = segments(net, "r3"), segments(net, "r3")[2]
    net.stop("r3")
    break_header(net, "r3", damaged)
    net.hold = lambda name, call: name == "r3" and isinstance(call.message, Read | LogSnapshot)
    net.start("r3")
    net.advance(1)
    start = int(damaged[:20]) + 1 if behind == 1 else int(before[3][:20])
    answer_held(net, refuse("OFFSET_OUT_OF_RANGE", "gone", log_start=start))
    if behind == 2:
        answer_held(net, LogSnapshotAnswer(start, 0, bytes(16), ProducerState([]).to_bytes()))
    net.hold = lambda name, call: False
    net.advance(1)
    net.advance(20)
    assert happened(net, "copy_restarted") == ["r3"]
    assert net.values("r3") == VALUES


def test_leaving_a_hole_behind_may_be_cut_off_at_each_step():
    steps = 0
    while True:
        net = filled()
        start = left_behind(net, 1)
        net.disks["r3"].lose_power(after=steps)
        if not lives_through(net, steps):
            break
        assert net.partition("r3").log.start == start, steps
        assert net.values("r3") == net.values("r1"), steps
        assert happened(net, "copy_restarted") == [], steps
        steps += 1
    assert steps > 10


def test_the_producer_state_below_a_hole_comes_from_the_leader():
    """Snapshots at rolls are not synced: after a power loss none may be there."""
    net = cluster(3, config=SMALL)
    net.send("r1", b"first", producer_id=7, producer_epoch=0, base_sequence=0)
    for value in VALUES:
        net.send("r1", value)
    net.advance(20)
    start = left_behind(net, 0)
    disk, written = net.disks["r3"], net.partition("r1").producers.snapshot()
    for name in disk.listdir(PATH):
        if name.startswith("producers-"):
            disk.unlink(f"{PATH}/{name}")
    net.start("r3")
    net.advance(20)
    assert happened(net, "hole_retired") == ["r3"] and net.partition("r3").log.start == start
    for _ in range(2):
        assert list(written) == [7] and net.partition("r3").producers.snapshot() == written
        net.stop("r3", power=True)
        net.start("r3")
        net.advance(20)
