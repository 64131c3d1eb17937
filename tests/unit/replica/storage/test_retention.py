"""Retention: what has had its time, who decides it, and what followers and readers see of it."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest
from support.replica_network import KEY, Net, code
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.runtime.disk import RealDisk
from tidelog.types import TopicConfig
from tidelog.wire.messages import ListOffset
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.storage.retention import log_start
from tidelog_replica.storage.segment import SegmentExtent

SEGMENTS = [
    SegmentExtent(0, 10, 100, 1000),
    SegmentExtent(10, 30, 100, 3000),
    SegmentExtent(30, 40, 50, 2000),
    SegmentExtent(40, 45, 20, 4000),
]


def start(high_watermark: int = 45, now_ms: int = 0, **limits: int) -> int:
    return log_start(SEGMENTS, high_watermark, TopicConfig(**limits), now_ms)  # type: ignore[arg-type]


def test_nothing_goes_where_nothing_is_asked():
    assert start(now_ms=10**15) == 0


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(0, 0), (1500, 0), (1501, 10), (3500, 10), (3501, 40), (10**15, 40), (-(10**15), 0)]
)
def test_by_age_a_segment_goes_when_its_newest_record_is_old_and_all_before_it_went(now_ms, expected):
    """The third is older than the second and waits for it. The last one is written: it stays."""
    assert start(now_ms=now_ms, retention_ms=500) == expected


@pytest.mark.parametrize(("limit", "expected"), [(0, 40), (20, 40), (21, 30), (70, 30), (71, 10), (171, 0), (999, 0)])
def test_by_bytes_the_rest_holds_at_least_the_limit(limit, expected):
    assert start(retention_bytes=limit) == expected


@pytest.mark.parametrize(("limit", "expected"), [(0, 40), (5, 40), (6, 30), (15, 30), (16, 10), (36, 0)])
def test_by_records_too(limit, expected):
    assert start(retention_records=limit) == expected


def test_any_reason_is_enough():
    assert start(now_ms=1600, retention_ms=500, retention_records=16) == 10
    assert start(now_ms=1600, retention_ms=500, retention_records=15) == 30


@pytest.mark.parametrize(("high_watermark", "expected"), [(0, 0), (9, 0), (10, 10), (39, 30), (40, 40), (45, 40)])
def test_uncommitted_records_are_not_removed(high_watermark, expected):
    assert start(high_watermark, retention_records=0) == expected


def test_a_log_of_one_segment_keeps_it():
    assert log_start(SEGMENTS[:1], 10, TopicConfig(retention_bytes=0), 0) == 0


# --- among servers ---------------------------------------------------------------------------------------

CONFIG = TopicConfig(min_insync_replicas=2, segment_max_bytes=400, retention_ms=5000)


def aged(config: TopicConfig = CONFIG) -> Net:
    """Three servers and thirty records of the year 1970; it is an hour later."""
    net = Net(config=config, settings=ReplicaSettings(retention_check_interval_s=10))
    net.start()
    net.create()
    for number in range(30):
        net.send("r1", b"%d" % number)
    net.wall_ms = 3_600_000
    return net


def starts(net: Net) -> list[int]:
    return [net.partition(name).log.start for name in net.names]


def test_the_leader_decides_and_its_followers_take_it_over():
    net = aged()
    assert starts(net) == [0, 0, 0]
    net.advance(40)
    first = net.partition("r1").log.start
    assert first > 20 and starts(net) == [first] * 3
    assert [e.fields["cause"] for _, e in net.happened("log_start_moved")] == ["retention", "leader", "leader"]
    answer = net.answers[net.ask("r1", ListOffset(*KEY, "earliest"))]
    assert answer.offset == first
    gone = net.answers[net.read("r1", 0)]
    assert code(gone) == "OFFSET_OUT_OF_RANGE" and gone.detail["log_start"] == first
    for name in net.names:
        assert net.values(name)[-1] == b"29"
        net.stop(name)
    net.start()
    assert starts(net) == [first] * 3


def test_retention_that_meets_damage_goes_on_and_says_that_producers_may_be_forgotten():
    net = aged()
    disk, path = net.disks["r2"], f"/data/{KEY.topic_id}-0"
    for name in disk.listdir(path):
        if name.startswith("producers-"):
            disk.unlink(f"{path}/{name}")
    disk.flip(f"{path}/{0:020d}.log", 16, 0)
    net.advance(40)
    assert len(set(starts(net))) == 1 and starts(net)[0] > 20
    ((name, event),) = net.happened("producers_forgotten")
    assert (name, event.fields["start"]) == ("r2", starts(net)[0])
    assert net.partition("r2").offline is None


def test_records_removed_by_the_leader_do_not_come_back_when_a_follower_leads():
    """Followers had it in the segment that they write, and waited for their turn. (seed 209769, 3.5 s)"""
    net = aged()
    log = net.partition("r1").log
    assert log.roll() and log.advance_start(30)
    net.advance(9)
    assert starts(net) == [30] * 3
    assert [len(net.partition(name).log.segments.extents()) for name in net.names] == [1] * 3
    net.stop("r1")
    net.lead("r2", "r2 r3")
    assert net.answers[net.ask("r2", ListOffset(*KEY, "earliest"))].offset == 30


def test_settings_that_change_count_from_then_on():
    net = aged(TopicConfig(min_insync_replicas=2, segment_max_bytes=400))
    net.advance(40)
    assert starts(net) == [0, 0, 0]
    topic = net.topics[KEY.topic_id]
    net.topics[KEY.topic_id] = replace(topic, config=replace(CONFIG, min_insync_replicas=3, max_batch_bytes=200))
    net.broadcast()
    net.run()
    net.advance(40)
    assert min(starts(net)) > 20
    assert code(net.acks[net.send("r1", b"." * 300)]) == "BATCH_TOO_LARGE"
    net.stop("r3")
    net.lead("r1", "r1 r2")
    assert code(net.acks[net.send("r1", b"two of three are in sync")]) == "NOT_ENOUGH_REPLICAS"


def test_a_follower_that_only_lags_keeps_what_it_does_not_know_to_be_committed():
    net = aged()
    net.partition("r3").following.core.high_watermark = 7
    net.partition("r3").following.leader_start = 25
    net.nodes["r3"]._log_cleaner.on_tick(net.now + 10)
    assert net.partition("r3").log.start <= 7


def test_a_topic_that_is_compacted_only_keeps_everything():
    net = aged(TopicConfig(min_insync_replicas=2, segment_max_bytes=400, retention_ms=5000, cleanup="compact"))
    net.advance(40)
    assert starts(net) == [0, 0, 0]


def test_a_full_segment_has_the_state_of_the_producers_written_down_by_a_job():
    net = Net(config=CONFIG)
    net.start()
    net.create()
    net.slow_job = {name: [] for name in net.names}
    for number in range(8):
        net.send("r1", b"%d" % number)
    for name in net.names:
        (job,) = net.slow_job.pop(name)
        assert not any("producers-" in path for path in net.disks[name].files())
        net.work(name, job)
        net.run()
        assert any("producers-" in path for path in net.disks[name].files())
    net.slow_job = {"r2": []}
    for number in range(8):
        net.send("r1", b"%d" % number)
    (job,) = net.slow_job.pop("r2")
    net.disks["r2"].fail_writes(errno.ENOSPC)
    net.work("r2", job)
    net.run()
    assert net.stopped == ["r2"], "no room for it, no room for records"


def test_a_timestamp_of_the_far_future_keeps_nothing_for_ever():
    """It counts as the time of the last write to its file, also for who has just started."""
    net = Net(config=CONFIG, settings=ReplicaSettings(retention_check_interval_s=10))
    net.start()
    net.create()
    for number in range(30):
        stamp = 1 << 60 if number in (0, 15) else 0
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number, None, stamp)]))
    net.wall_ms = 3_600_000
    for name in net.names:
        for path in net.disks[name].files():
            net.disks[name].modified[path] = net.wall_ms - (CONFIG.retention_ms if f"/{0:020d}.log" in path else 0)
    net.advance(11)
    assert starts(net) == [0, 0, 0], "not before its time"
    net.wall_ms += 1
    net.advance(40)
    assert 0 < starts(net)[0] <= 15, "the next one was written an hour later"
    net.wall_ms += CONFIG.retention_ms
    net.stop("r1")
    net.lead("r2", "r2 r3")
    net.advance(40)
    assert net.partition("r2").log.start > 20


def test_the_real_disk_says_when_a_file_was_written(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    assert RealDisk().modified_ms(str(path)) == 1_700_000_000_123


def test_while_another_job_works_on_the_log_its_start_waits():
    net = aged()
    net.slow_job["r1"] = []
    net.advance(15)
    assert len(net.slow_job["r1"]) == 1
    moved = net.partition("r1").log.start
    net.send("r1", b"more")
    net.advance(40)
    assert len(net.slow_job["r1"]) == 1
    [job] = net.slow_job.pop("r1")
    net.work("r1", job)
    net.run()
    assert net.partition("r1").log.start == moved
    assert not net.nodes["r1"]._effects.jobs.busy(KEY)


def test_D6_a_disk_that_fails_under_retention_ends_the_life():
    net = aged()
    net.disks["r1"].fail_writes(errno.ENOSPC)
    net.advance(15)
    assert net.partition("r1").offline is not None
    assert net.stopped == ["r1"]


def test_D9_a_clock_that_goes_back_costs_nothing():
    net = aged()
    net.wall_ms = -(10**12)
    net.advance(60)
    assert starts(net) == [0, 0, 0]


def test_segments_close_by_age():
    net = aged(TopicConfig(min_insync_replicas=2, segment_max_age_ms=60_000))
    net.advance(15)
    net.wall_ms += 60_001
    net.advance(15)
    assert [len(net.partition(name).log.segments.extents()) for name in net.names] == [2, 2, 2]


def test_many_partitions_have_their_turns_one_after_the_other():
    net = Net(1, settings=ReplicaSettings(retention_check_interval_s=10), config=TopicConfig())
    net.start()
    net.create(150)
    cleaning = net.nodes["r1"]._log_cleaner
    net.advance(10)
    assert len(cleaning._waiting) == 150 - 64
    net.advance(3.33)
    assert len(cleaning._waiting) == 150 - 64, "a third of the interval is not over"
    net.advance(0.01)
    assert len(cleaning._waiting) == 150 - 2 * 64
    net.advance(5.66)
    assert cleaning._waiting == []
