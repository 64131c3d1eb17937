"""Compaction among servers: each in its own time, all with the same table in the end. Tests ``node.py`` and
``maintenance/log_cleaner.py``."""

from __future__ import annotations

import pytest
from support.replica_network import KEY, Net
from tidelog.batch.format import NewRecord, decode_batch, encode_batch, split
from tidelog.types import TopicConfig
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import Read, ReadAnswer
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.node import StartJob
from tidelog_replica.storage.checkpoints import CLEANED
from tidelog_replica.storage.compaction import Compaction
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.retention import DeleteSegments

from unit.replica.storage.test_compaction import NOW, records, stored, table


def test_every_replica_compacts_when_enough_is_dirty_and_all_hold_the_same_table():
    config = TopicConfig(min_insync_replicas=2, segment_max_bytes=600, cleanup="compact")
    net = Net(config=config, settings=ReplicaSettings(retention_check_interval_s=10, fetch_max_bytes=64 << 10))
    net.wall_ms = NOW
    net.start()
    net.create()
    for number in range(60):
        value = b"%d" % number
        rows = [NewRecord(b"." * 100, b"key-%d" % (number % 3)), NewRecord(value, b"key-%d" % (number % 3))]
        net.send_batch("r1", encode_batch(rows))
    net.advance(60)
    assert {name for name, _ in net.happened("log_compacted")} == set(net.names)
    for name in net.names:
        log = net.partition(name).log
        assert table(records(stored(log))) == {b"key-%d" % k: b"%d" % (57 + k) for k in range(3)}
        assert len(records(stored(log))) < 20 and log.end == 120
        assert log.chain_at(120) == net.partition("r1").log.chain_at(120)
    [(_, event), *_] = net.happened("log_compacted")
    assert event.fields["bytes_after"] < event.fields["bytes_before"]


def test_D6_without_room_for_its_new_files_a_compaction_waits_and_the_server_lives():
    config = TopicConfig(min_insync_replicas=2, segment_max_bytes=600, cleanup="compact")
    net = Net(config=config, settings=ReplicaSettings(retention_check_interval_s=10))
    net.wall_ms = NOW
    net.start()
    net.create()
    for number in range(40):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number, b"key")]))
    net.slow_job["r1"] = []
    net.advance(15)
    (job,) = net.slow_job.pop("r1")
    assert isinstance(job.job, Compaction)
    before, disk = stored(net.partition("r1").log), net.disks["r1"]
    disk.full = True
    net.work("r1", job)
    net.run()
    assert not net.stopped and net.partition("r1").offline is None
    [(name, event)] = net.happened("compaction_without_room")
    assert name == "r1" and "no space" in str(event.fields["reason"])
    assert stored(net.partition("r1").log) == before and not any(CLEANED in path for path in disk.files())
    disk.full = False
    net.advance(30)
    assert "r1" in {name for name, _ in net.happened("log_compacted")}


def read_values(net: Net, name: str) -> list[bytes | None]:
    """What a reader of that server gets, from the beginning on."""
    values: list[bytes | None] = []
    offset, end = 0, net.partition(name).high_watermark
    while offset < end:
        answer = net.answers[net.ask(name, Read(*KEY, offset, any_replica=True))]
        assert isinstance(answer, ReadAnswer)
        for header, batch in split(payload_view(answer.payload)):
            values += [record.value for record in decode_batch(batch)]
            offset = header.end_offset
    return values


def test_a_deleted_value_is_not_served_from_memory_once_it_is_compacted_away():
    config = TopicConfig(min_insync_replicas=2, segment_max_bytes=600, cleanup="compact")
    net = Net(config=config, settings=ReplicaSettings(retention_check_interval_s=10))
    net.wall_ms = NOW
    net.start()
    net.create()
    net.send_batch("r1", encode_batch([NewRecord(b"secret", b"key")]))
    net.send_batch("r1", encode_batch([NewRecord(None, b"key")]))
    for number in range(20):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number * 100, b"other")]))
    net.advance(5)
    assert all(b"secret" in read_values(net, name) for name in net.names), "every server has it in memory"
    net.advance(60)
    assert {name for name, _ in net.happened("log_compacted")} == set(net.names)
    assert not any(b"secret" in read_values(net, name) for name in net.names)


def test_a_deleted_value_goes_within_the_maximal_lag_however_little_is_written():
    """The segment that is written is far from full, and the producer's clock is years ahead."""
    config = TopicConfig(min_insync_replicas=2, cleanup="compact", max_compaction_lag_ms=60_000)
    settings = ReplicaSettings(retention_check_interval_s=10, compaction_min_dirty_ratio=1)
    net = Net(config=config, settings=settings)
    net.wall_ms = NOW
    net.start()
    net.create()
    future = 10**13
    net.send_batch("r1", encode_batch([NewRecord(b"%d" % n, b"key-%d" % n, future) for n in range(50)]))
    for _ in range(3):
        net.advance(30)
        net.wall_ms += 30_000
    assert len(net.happened("log_compacted")) == 3, "what is clean is a large part from now on"
    net.send_batch("r1", encode_batch([NewRecord(None, b"key-7", future)]))
    took_s = 0
    while took_s < 60 + 2 * 10:
        assert took_s >= 50 or all(b"7" in read_values(net, name) for name in net.names)
        net.advance(10)
        net.wall_ms += 10_000
        took_s += 10
    assert not any(b"7" in read_values(net, name) for name in net.names)
    assert all(read_values(net, name).count(b"8") == 1 for name in net.names)


def test_the_maximal_lag_holds_for_segments_that_a_restart_has_found():
    config = TopicConfig(
        min_insync_replicas=1, segment_max_bytes=600, cleanup="compact", max_compaction_lag_ms=3_600_000
    )
    settings = ReplicaSettings(retention_check_interval_s=10, compaction_min_dirty_ratio=1)
    net = Net(1, config=config, settings=settings)
    net.wall_ms = NOW
    net.start()
    net.create()
    net.send_batch("r1", encode_batch([NewRecord(b"secret", b"key", 10**13)]))
    for number in range(20):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number * 100, b"key-%d" % number, 10**13)]))
    net.advance(15)
    net.wall_ms += 15_000
    net.send_batch("r1", encode_batch([NewRecord(None, b"key", 10**13)]))
    net.partition("r1").log.roll()
    net.stop("r1")
    net.start()
    net.lead("r1", "r1")
    net.advance(15)
    assert b"secret" not in read_values(net, "r1")


def test_a_pass_that_cannot_remember_all_keys_is_followed_by_the_next_one_at_once(monkeypatch):
    monkeypatch.setattr(Log.begin_compaction, "__defaults__", (4,))
    config = TopicConfig(min_insync_replicas=1, segment_max_bytes=600, cleanup="compact")
    settings = ReplicaSettings(retention_check_interval_s=10, compaction_min_dirty_ratio=0.01)
    net = Net(1, config=config, settings=settings)
    net.wall_ms = NOW
    net.start()
    net.create()
    for number in range(60):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number * 40, b"key-%d" % (number % 20))]))
    net.advance(11)
    log = net.partition("r1").log
    assert len(net.happened("log_compacted")) > 1 and log.compacted_to == log.segments.extents()[-1].base


def after_a_pass(net: Net) -> list[StartJob]:
    """Jobs that are begun when the first of several passes of r1 has ended."""
    while not net.happened("log_compacted"):
        (job,) = net.slow_job["r1"]
        net.slow_job["r1"] = []
        net.work("r1", job)
        net.run()
    return net.slow_job["r1"]


def with_a_pass_under_way(monkeypatch: pytest.MonkeyPatch) -> Net:
    """All records grow older than ``retention_ms`` during the first of several passes."""
    monkeypatch.setattr(Log.begin_compaction, "__defaults__", (4,))
    config = TopicConfig(
        min_insync_replicas=1, segment_max_bytes=600, cleanup="compact,delete", retention_ms=3_600_000
    )
    settings = ReplicaSettings(retention_check_interval_s=10, compaction_min_dirty_ratio=0.01)
    net = Net(1, config=config, settings=settings)
    net.wall_ms = NOW
    net.start()
    net.create()
    for number in range(60):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number * 40, b"key-%d" % (number % 20), NOW)]))
    net.slow_job["r1"] = []
    net.advance(11)
    net.wall_ms += 7_200_000
    return net


def test_retention_has_its_turn_between_passes_that_follow_each_other(monkeypatch: pytest.MonkeyPatch):
    net = with_a_pass_under_way(monkeypatch)
    (next_one,) = after_a_pass(net)
    assert isinstance(next_one.job, DeleteSegments) and len(net.happened("log_start_moved")) == 1


def test_no_log_is_cut_by_retention_after_a_pass_where_its_leader_is_not_known(monkeypatch: pytest.MonkeyPatch):
    net = with_a_pass_under_way(monkeypatch)
    net.push(leader=None, leader_epoch=net.state().leader_epoch + 1)
    net.run()
    assert after_a_pass(net) == [] and net.partition("r1").log.start == 0
