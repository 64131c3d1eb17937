"""What a log must know of its producers to be cut is read by a job, never beside the heartbeats."""

from __future__ import annotations

import pytest
from support.log_builders import open_log
from support.log_with_history import COUNT, HEADERS, STORED, filled
from support.replica_network import KEY, Net, cluster, code
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import EpochOffset, Fetch
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage import log as log_module
from tidelog_replica.storage.producer_snapshots import RebuildProducerState
from tidelog_replica.storage.segment import CorruptLog, Segment

CONFIG = TopicConfig(min_insync_replicas=1, segment_max_bytes=400)

# --- the log ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retired", [0, 8])
@pytest.mark.parametrize("every", [log_module.SNAPSHOT_BATCHES, 3])
def test_the_job_rebuilds_the_producer_state_below_each_cut(retired, every, monkeypatch):
    monkeypatch.setattr(log_module, "SNAPSHOT_BATCHES", every)
    for end in range(8, COUNT):
        log = filled(SimDisk())
        log.advance_start(retired)
        recall = log.begin_rebuild(end)
        assert recall is not None
        rebuilt = recall.run()
        assert rebuilt.snapshot() == ProducerState(HEADERS[:end]).snapshot()
        log.truncate(end, rebuilt)
        assert log.producers.snapshot() == ProducerState(HEADERS[:end]).snapshot()


def test_the_job_reads_the_headers_behind_the_newest_snapshot_alone(monkeypatch):
    """In a segment that is far from full."""
    monkeypatch.setattr(log_module, "SNAPSHOT_BATCHES", 12)  # as many as four for each of the three producers
    log = filled(SimDisk(), TopicConfig(segment_max_bytes=1 << 20))
    assert len(log.segments) == 1
    read = []
    walk = Segment.headers
    monkeypatch.setattr(
        Segment, "headers", lambda self, start: (read.append(each) or each for each in walk(self, start))
    )
    monkeypatch.setattr(Segment, "_scan_index", lambda self: pytest.fail("the whole segment is read"))
    recall = log.begin_rebuild(COUNT - 1)
    assert recall is not None
    assert recall.run().snapshot() == ProducerState(HEADERS[: COUNT - 1]).snapshot()
    assert [header.base_offset for header in read] == [*range(24, COUNT)]


def test_appends_during_the_rebuild_do_it_no_harm():
    log = open_log(SimDisk())
    for each in STORED[:20]:
        log.append([each])
    recall = log.begin_rebuild(9)
    assert recall is not None
    for each in STORED[20:]:
        log.append([each])
    assert recall.run().snapshot() == ProducerState(HEADERS[:9]).snapshot()


def test_a_cut_that_takes_nothing_of_a_producer_needs_no_job_and_reads_nothing(monkeypatch):
    log = filled(SimDisk())
    assert log.begin_rebuild(COUNT) is None
    monkeypatch.setattr(ProducerState, "reaches", lambda self, offset: False)
    monkeypatch.setattr(log.segments, "headers", lambda start=None: pytest.fail("read"))
    assert log.begin_rebuild(9) is None
    log.truncate(9)


def test_a_state_reaches_above_each_offset_below_its_last_batchs_end():
    state = ProducerState(HEADERS[:9])
    assert [state.reaches(offset) for offset in (0, 8, 9, 10)] == [True, True, False, False]
    assert not ProducerState().reaches(0)


def test_the_rebuild_raises_an_error_for_damage():
    log = filled(SimDisk())
    segment = log.segments[0]
    log._disk.replace(segment.path, bytes(segment.size))
    for name in log._disk.listdir(log._directory):
        if name.startswith("producers-"):
            log._disk.unlink(f"{log._directory}/{name}")
    recall = log.begin_rebuild(9)
    assert recall is not None
    with pytest.raises(CorruptLog):
        recall.run()


# --- the follower ----------------------------------------------------------------------------------------


def parted() -> Net:
    """r1 has led, and has records of a producer that nobody else has; now r2 leads. r1's job is under way."""
    net = cluster(3, config=CONFIG)
    for number in range(10):
        net.send("r1", b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
    net.advance(1)
    net.cut |= {("r2", "r1"), ("r3", "r1")}
    net.drop_notify = True
    net.hold = lambda name, call: isinstance(call.message, Fetch)
    for number in range(10, 15):
        net.send("r1", b"%d" % number, acks=Acks.LEADER, producer_id=7, producer_epoch=0, base_sequence=number)
    net.drop_notify, net.hold = False, lambda name, call: False
    net.slow_job["r1"] = []
    net.lead("r2", "r2 r3")
    assert [type(effect.job) for effect in net.slow_job["r1"]] == [RebuildProducerState]
    return net


def finish(net: Net) -> None:
    """The jobs that are under way at r1 end."""
    for effect in net.slow_job.pop("r1"):
        net.work("r1", effect)
    net.run()


def asked(net: Net) -> int:
    """How often r1 has asked for something of the partition."""
    fetches = [message for message in net.messages(Fetch, "r1") if message.parts]
    return len(fetches) + len(net.messages(EpochOffset, "r1"))


def test_a_follower_does_not_fetch_until_its_producer_state_is_rebuilt_and_its_log_is_cut():
    net = parted()
    before = asked(net)
    net.send("r2", b"new", producer_id=7, producer_epoch=0, base_sequence=10)
    net.advance(5)
    assert asked(net) == before and net.partition("r1").log.end == 15
    finish(net)
    (cut,) = [event for name, event in net.happened("log_truncated") if name == "r1"]
    assert (cut.fields["log_end"], cut.fields["end"]) == (15, 10)
    net.advance(1)
    assert net.values("r1") == net.values("r2") == [*(b"%d" % number for number in range(10)), b"new"]
    assert net.partition("r1").producers.snapshot() == net.partition("r2").producers.snapshot()
    assert "r1" in net.state().isr


def test_a_replica_that_leads_again_before_the_job_has_ended_keeps_its_log():
    """The controller may still take it from the ISR of its own epoch: nothing is cut for a leader of the past."""
    net = parted()
    net.lead("r1", "r1 r2 r3")
    finish(net)
    assert net.partition("r1").log.end == 15 and net.partition("r1").leading is not None
    net.cut.clear()
    net.advance(5)
    assert len({tuple(net.values(name)) for name in ("r1", "r2", "r3")}) == 1


def test_a_follower_in_a_later_leader_epoch_begins_again():
    net = parted()
    net.lead("r3", "r2 r3")
    net.advance(1)
    finish(net)
    net.advance(5)
    assert net.values("r1") == net.values("r3")
    assert net.partition("r1").producers.snapshot() == net.partition("r3").producers.snapshot()
    assert "r1" in net.state().isr


def test_an_error_of_the_disk_in_the_job_is_the_partitions():
    net = parted()
    (effect,) = net.slow_job.pop("r1")
    net._take("r1", net.nodes["r1"].on_job(effect.key, effect.job, OSError("no such luck"), net.now))
    net.run()
    assert net.stopped == ["r1"]
    assert code(net.answers[net.read("r1", 0)]) == "OFFLINE"


def test_a_snapshot_of_the_producers_that_nobody_understands_is_asked_for_again():
    from unit.replica.fetcher.test_copy_restart import overtaken, same

    net = overtaken()
    net.slow_job["r3"] = []
    net.start("r3")
    net.work("r3", net.slow_job["r3"].pop())
    net.run()
    (effect,) = net.slow_job.pop("r3")
    net._take("r3", net.nodes["r3"].on_job(KEY, effect.job, None, net.now))
    net.run()
    assert not net.happened("copy_restarted")
    net.advance(4)
    assert len(net.happened("copy_restarted")) == 1
    same(net, "r1", "r2", "r3")
