"""Compaction among servers: each in its own time, all with the same table in the end."""

from __future__ import annotations

from replica_net import Net
from test_compaction import NOW, records, stored, table
from tidelog.records import NewRecord, encode_batch
from tidelog.types import TopicConfig
from tidelog_replica.log.compaction import Compaction
from tidelog_replica.log.files import CLEANED
from tidelog_replica.settings import ReplicaSettings


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
