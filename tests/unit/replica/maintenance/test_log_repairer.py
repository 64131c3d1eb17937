"""Damage: a log that is damaged anywhere comes back whole from the leader, and counts for nothing until then."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from support.replica_network import KEY, Net, cluster, code
from tidelog.errors import TimedOut, refuse
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog.types import TopicConfig
from tidelog.wire.messages import Read, ReadAnswer
from tidelog_replica.maintenance.log_repairer import STALLED_S
from tidelog_replica.storage.log import Log

PATH = f"/data/{KEY.topic_id}-0"
SMALL = TopicConfig(min_insync_replicas=1, segment_max_bytes=400)
VALUES = [f"{number:02}".encode() * 20 for number in range(12)]


def filled(nodes: int = 3, config: TopicConfig = SMALL) -> Net:
    """A cluster whose logs have several segments, everything committed; r1 leads."""
    net = cluster(nodes, config=config)
    for value in VALUES:
        net.send("r1", value)
    net.advance(20)
    assert len(segments(net, "r1")) > 3
    return net


def segments(net: Net, name: str) -> list[str]:
    return [file for file in net.disks[name].listdir(PATH) if file.endswith(".log")]


def files(net: Net, name: str) -> dict[str, bytes]:
    """The segments' bytes."""
    return {file: net.disks[name].read(f"{PATH}/{file}") for file in segments(net, name)}


def flip(disk: SimDisk, file: str, at: int = 100) -> None:
    """A bit of a file is another, and what would tell it at once is gone."""
    data = bytearray(disk.read(f"{PATH}/{file}"))
    data[at] ^= 1
    disk.replace(f"{PATH}/{file}", bytes(data))


def break_header(net: Net, name: str, file: str) -> None:
    """The first batch of a segment has no magic any more; its index does not hide that."""
    flip(net.disks[name], file, 16)
    index = f"{PATH}/{file.replace('.log', '.index')}"
    if index.rpartition("/")[2] in net.disks[name].listdir(PATH):
        net.disks[name].unlink(index)
        net.disks[name].sync_dir(PATH)


def happened(net: Net, event: str) -> list[str]:
    return [name for name, _ in net.happened(event)]


def test_D2_a_follower_whose_log_is_damaged_fetches_the_segment_again():
    net = filled()
    before, damaged = files(net, "r3"), segments(net, "r3")[1]
    net.stop("r3")
    break_header(net, "r3", damaged)
    whole = net.disks["r3"].read(f"{PATH}/{damaged}")
    net.start("r3")
    net.advance(20)
    assert [message.reason for message in net.hand_overs] == ["corrupt_log"] and net.hand_overs[0].lost
    assert files(net, "r3") == before, "byte by byte"
    assert net.disks["r3"].read(f"{PATH}/{damaged.replace('.log', '.quarantined')}") == whole, "it is kept"
    assert happened(net, "segment_quarantined") == happened(net, "segment_repaired") == ["r3"]
    assert "r3" in net.state().isr
    assert net.values("r3") == VALUES


def test_a_copy_with_a_hole_does_not_count_until_it_is_closed():
    net = filled()
    damaged = segments(net, "r3")[1]
    net.stop("r3")
    break_header(net, "r3", damaged)
    net.hold = lambda name, call: isinstance(call.message, Read)
    net.start("r3")
    net.advance(30)
    assert KEY not in net.nodes["r3"].partitions
    assert net.state().isr == ("r1", "r2")
    assert not any(type(call.message).__name__ in ("Fetch", "EpochOffset") for name, call in net.held if name == "r3")
    sent = len(net.sent)
    net.send("r1", b"meanwhile")
    net.advance(5)
    assert [m for name, m in net.sent[sent:] if name == "r3" and type(m).__name__ == "Fetch"] == []
    refused = net.answers[net.read("r3", 0)]
    assert refused.code == "OFFLINE" and "being fetched again" in refused.message
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    net.advance(20)
    assert net.values("r3") == [*VALUES, b"meanwhile"]


def test_D3_a_leader_that_meets_damage_resigns_and_is_repaired_by_its_successor():
    net = filled()
    damaged = segments(net, "r1")[1]
    before = files(net, "r1")
    read = int(damaged[:20])
    break_header(net, "r1", damaged)
    net.partition("r1").log.segments.forget_tail()
    net.partition("r1").log.segments[1]._index = None
    net.partition("r1").log.segments[1].release()
    assert code(net.answers[net.read("r1", read)]) == "OFFLINE"
    assert net.hand_overs[0].lost and net.state().leader == "r2"
    net.advance(20)
    assert net.stopped == []
    assert files(net, "r1") == before
    assert "r1" in net.state().isr
    id = net.send("r2", b"after")
    assert net.acks[id].error is None and net.values("r1") == [*VALUES, b"after"]


@pytest.mark.parametrize("which", [1, -1])
def test_a_full_segment_that_cannot_be_read_is_as_good_as_damaged(monkeypatch: pytest.MonkeyPatch, which: int):
    net = filled()
    log = net.partition("r1").log
    log.segments.forget_tail()
    segment = log.segments[which]

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "bad sector", segment.path)

    monkeypatch.setattr(segment.file, "pread", fail)
    assert code(net.answers[net.read("r1", segment.base)]) == "OFFLINE"
    net.advance(20)
    if which == -1:
        assert net.stopped == ["r1"], "what is written and cannot be read is a failing disk"
    else:
        assert net.stopped == [] and net.state().leader == "r2"
        assert net.values("r1") == VALUES and happened(net, "segment_repaired") == ["r1"]


def test_damage_to_the_last_segment_cuts_it_off_and_the_rest_is_fetched():
    net = filled()
    damaged = segments(net, "r3")[-1]
    net.stop("r3")
    break_header(net, "r3", damaged)
    net.start("r3")
    net.advance(20)
    assert happened(net, "segment_quarantined") == ["r3"] and happened(net, "segment_repaired") == []
    assert net.values("r3") == VALUES and "r3" in net.state().isr


def test_a_log_that_is_gone_starts_over():
    net = filled()
    net.stop("r3")
    for file in segments(net, "r3"):
        net.disks["r3"].unlink(f"{PATH}/{file}")
    net.start("r3")
    net.advance(20)
    assert net.hand_overs[0].lost
    assert net.values("r3") == VALUES and "r3" in net.state().isr


def test_several_segments_are_repaired_one_after_the_other():
    net = filled()
    before = files(net, "r3")
    net.stop("r3")
    for file in segments(net, "r3")[:-1]:
        break_header(net, "r3", file)
    net.start("r3")
    net.advance(60)
    assert files(net, "r3") == before
    assert len(happened(net, "segment_repaired")) == len(before) - 1


def test_with_nobody_else_the_partition_is_offline_and_nothing_of_it_is_touched():
    net = filled(1)
    net.stop("r1")
    break_header(net, "r1", segments(net, "r1")[1])
    before = {file: net.disks["r1"].read(f"{PATH}/{file}") for file in net.disks["r1"].listdir(PATH)}
    net.start("r1")
    net.advance(30)
    refused = net.answers[net.read("r1", 0)]
    assert refused.code == "OFFLINE" and "nobody else leads" in refused.message and "damaged" in refused.message
    after = {file: net.disks["r1"].read(f"{PATH}/{file}") for file in net.disks["r1"].listdir(PATH)}
    assert after == before


def test_nothing_is_touched_before_the_controller_has_agreed():
    net = filled()
    net.stop("r3")
    break_header(net, "r3", segments(net, "r3")[1])
    before = files(net, "r3")
    net.hold = lambda name, call: type(call.message).__name__ == "HandOver"
    net.start("r3")
    net.advance(5)
    assert files(net, "r3") == before and "r3" in net.state().isr
    ((name, call),) = net.held
    net._answer(name, call.token, TimedOut("lost"))
    net.advance(5)
    assert len(net.held) == 2, "it asks again"
    assert files(net, "r3") == before
    net.hold = lambda name, call: False
    net.deliver(*net.held[1])
    net.run()
    net.advance(20)
    assert "r3" in net.state().isr and happened(net, "segment_repaired") == ["r3"]


def test_an_unclean_leader_serves_what_precedes_the_damage():
    net = filled(1)
    net.stop("r1")
    damaged = segments(net, "r1")[1]
    break_header(net, "r1", damaged)
    net.start("r1")
    net.advance(5)
    epoch = net.state().leader_epoch + 1
    net.push(leader="r1", isr=("r1",), leader_epoch=epoch, unclean_epoch=epoch)
    net.run()
    assert net.partition("r1").leading is not None
    assert net.partition("r1").log.end == int(damaged[:20])
    assert net.values("r1") == VALUES[: int(damaged[:20])]


def test_a_repair_that_does_not_fit_starts_the_copy_over():
    net = filled()
    damaged = segments(net, "r3")[1]
    net.stop("r3")
    break_header(net, "r3", damaged)
    asked: list[Any] = []

    def hold(name: str, call: Any) -> bool:
        if name == "r3" and isinstance(call.message, Read):
            asked.append(call)
            return True
        return False

    net.hold = hold
    net.start("r3")
    net.advance(1)
    assert asked
    net.disks["r3"].write_atomic(f"{PATH}/leader-epochs", b"")  # what tells what was there
    net.hold = lambda name, call: False
    net.deliver("r3", asked[0])
    net.run()
    net.advance(20)
    assert happened(net, "copy_restarted") == ["r3"]
    assert net.values("r3") == VALUES and "r3" in net.state().isr


@pytest.mark.parametrize("refusal", ["", "OFFSET_NOT_AVAILABLE"])
def test_a_repair_does_not_wait_for_ever_for_records_that_the_leader_never_commits(refusal):
    """Also where it says that it cannot commit more: perhaps it lacks just this member of the ISR."""
    net = filled()
    damaged = segments(net, "r3")[1]
    net.stop("r3")
    break_header(net, "r3", damaged)

    def answer_nothing(name: str, call: Any) -> bool:
        if name == "r3" and isinstance(call.message, Read):
            empty = ReadAnswer(0, int(damaged[:20]), 0, b"")
            net._answer(name, call.token, refuse(refusal, "not yet") if refusal else empty)
            return True
        return False

    net.hold = answer_nothing
    net.start("r3")
    net.advance(STALLED_S / 2)
    assert happened(net, "copy_restarted") == []
    net.advance(STALLED_S)
    assert happened(net, "copy_restarted") == ["r3"]
    net.advance(20)
    assert net.values("r3") == VALUES


def test_a_topic_deleted_while_its_log_is_damaged_or_being_closed_goes():
    net = filled()
    net.stop("r3")
    break_header(net, "r3", segments(net, "r3")[1])
    net.hold = lambda name, call: isinstance(call.message, Read)
    net.start("r3")
    net.advance(2)
    net.slow_flush["r1"] = []
    net.send("r1", b"flushing")
    net.partition("r1").guard(lambda: _raise(net))
    net._take("r1", net.nodes["r1"].on_tick(net.now))
    net.run()
    assert KEY not in net.nodes["r1"].partitions
    net.delete()
    assert net.disks["r3"].listdir("/data") == ["meta", "meta-copy"]
    net.flush("r1", net.slow_flush["r1"].pop(0))
    net.run()
    assert net.disks["r1"].listdir("/data") == ["meta", "meta-copy"]
    for name, call in net.held:
        net.deliver(name, call)
    net.run()


def _raise(net: Net) -> None:
    from tidelog_replica.storage.segment import CorruptLog

    raise CorruptLog(f"{PATH}/{segments(net, 'r1')[0]}", "found by a test")


def lives_through(net: Net, steps: int) -> bool:
    """r3 starts, and the power goes when it comes to that; then it starts again. False: it does not come to it."""
    try:
        net.start("r3")
        net.advance(20)
    except PowerLost:
        net._queue.clear()
        net.nodes.pop("r3", None)
        net.watchers = [name for name in net.watchers if name != "r3"]
        net.disks["r3"].crash(Random(steps))
        for name in ("r1", "r2"):
            net._take(name, net.nodes[name].on_peer_down("r3", net.now))
        net.run()
        net.start("r3")
        net.advance(30)
        return True
    return False


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_repair_may_be_cut_off_at_each_step(which: int):
    """Power is lost at every change of the disk; the next life finishes it."""
    steps = 0
    while True:
        net = filled()
        before, damaged = files(net, "r3"), segments(net, "r3")[which]
        net.stop("r3")
        break_header(net, "r3", damaged)
        net.disks["r3"].lose_power(after=steps)
        if not lives_through(net, steps):
            break
        assert net.values("r3") == VALUES, steps
        assert "r3" in net.state().isr
        if which >= 0:
            assert files(net, "r3") == before
        steps += 1
    assert steps > 5


def test_a_step_that_the_disk_did_not_do_is_not_tried_again_in_the_same_life():
    """The second sync of a directory may answer though the first one's names are lost. The next life begins anew."""
    net = filled()
    net.stop("r3")
    break_header(net, "r3", segments(net, "r3")[1])
    net.slow_job["r3"] = []
    net.start("r3")
    (opening,) = net.slow_job.pop("r3")
    net.disks["r3"].fail_syncs(after=1)  # between the two of the quarantine
    net.work("r3", opening)
    net.run()
    assert net.stopped == ["r3"]
    net.disks["r3"].heal()
    net.lead("r1", "r1 r2")
    net.advance(20)
    assert not net.happened("segment_quarantined"), "the process is about to end"
    net.stop("r3")
    net.start("r3")
    net.advance(20)
    assert net.values("r3") == VALUES
    assert "r3" in net.state().isr


def test_only_the_hole_is_read_and_the_log_opens_as_it_was():
    net = filled()
    damaged = segments(net, "r3")[2]
    net.stop("r3")
    break_header(net, "r3", damaged)
    sent = len(net.sent)
    net.start("r3")
    net.advance(20)
    reads = [message for name, message in net.sent[sent:] if isinstance(message, Read)]
    following = sorted(segments(net, "r3"))[3]
    assert reads and all(int(damaged[:20]) <= read.offset < int(following[:20]) for read in reads)
    log = Log.open(net.disks["r3"], PATH, SMALL)
    assert log.end == len(VALUES)


def test_a_repaired_segment_is_durable():
    net = filled()
    before, damaged = files(net, "r3"), segments(net, "r3")[1]
    net.stop("r3")
    break_header(net, "r3", damaged)
    net.start("r3")
    while not net.happened("segment_repaired"):
        net.advance(0.1)
    for seed in range(20):
        disk = net.disks["r3"].clone()
        disk.crash(Random(seed))
        assert disk.read(f"{PATH}/{damaged}") == before[damaged]
