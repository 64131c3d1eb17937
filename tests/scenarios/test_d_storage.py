"""D. Failures of disks: power losses, damage, errors, in a whole cluster."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable

import pytest
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import ConfigError
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import Acks
from tidelog.verify.history import OK
from tidelog_replica.storage.log import CorruptLog, Log

from scenarios.stage import Stage

NOTICED_S = 3.5
"""By then every client has noticed that the machine at the other end of its link is gone, and has sent again."""


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.002, 0.004, 0.008, NOTICED_S])
def test_D1_every_node_loses_power_and_what_was_acked_flushed_survives(moment):
    stage = Stage()
    for round_ in range(3):
        batches = [stage.send(b"%d/%d" % (round_, n), by=f"p{n}", patience=4.0) for n in range(8)]
        stage.run_for(moment)
        acked = [batch for batch in batches if batch.result == OK]
        assert moment < NOTICED_S or len(acked) == len(batches)
        stage.lose_power(*stage.replicas)
        stage.run_for(0.2)
        stage.restart(*stage.replicas)
        stage.until(lambda: all(batch.result for batch in batches))  # noqa: B023 (asked at once)
        survived = stage.read_all()
        assert all(value in survived for batch in acked for value in batch.values)
    stage.settle()


def test_D2_a_node_that_lost_unflushed_data_in_the_first_quorum_costs_nothing_committed():
    """r2 was down when m1 was committed; r3 loses power with m2 unflushed; these two return first."""
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(second)
    stage.put(b"m1")
    stage.stall_flushes(third)
    pending = stage.send(b"m2", by="late", patience=30.0)
    stage.until(lambda: b"m2" in stage.values(third))
    assert not pending.result, "not flushed by all of the ISR, not acked"
    stage.kill(first)
    stage.lose_power(third)
    stage.resume_flushes()
    stage.restart(second, third)
    stage.always(lambda: None if stage.leader != second else pytest.fail("it never had m1"))
    stage.run_for(5.0)
    assert stage.leader == third, "it lost nothing that it had vouched for"
    assert stage.read_all()[:2] == [b"m0", b"m1"]
    stage.restart(first)
    stage.until(lambda: pending.result == OK)
    assert stage.read_all() == [b"m0", b"m1", b"m2"]
    stage.settle()


TAILS: dict[str, Callable[[bytes], bytes]] = {
    "torn header": lambda batch: batch[:30],
    "torn body": lambda batch: batch[:-5],
    "flipped bit": lambda batch: batch[:70] + bytes([batch[70] ^ 4]) + batch[71:],
    "zeros": lambda batch: bytes(4096),
    "garbage": lambda batch: hashlib.sha512(batch).digest() * 20,
    "zeros, then a whole batch": lambda batch: bytes(64) + batch,
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("alone", [False, True], ids=["follower", "only replica"])
def test_D4_the_log_is_cut_after_the_last_valid_batch(tail, alone):
    stage = Stage(replicas=1 if alone else 3, min_insync_replicas="1")
    node = stage.first if alone else stage.others[-1]
    stage.put(b"m0")
    stage.put(b"m1")
    stage.until(stage.in_sync)
    stage.kill(node)
    disk, path = stage.replica(node).disk, stage.files(node, ".log")[-1]
    sound = disk.read(path)
    batch = encode_batch([NewRecord(b"never acked, never sent")])
    stamped = stamp_prefix(2, stage.now.leader_epoch, read_header(batch).crc32c) + bytes(batch[16:])
    disk.replace(path, sound + TAILS[tail](stamped))
    stage.restart(node)
    stage.until(lambda: stage.end(node) >= 0)
    assert stage.values(node) == [b"m0", b"m1"]
    assert disk.read(path)[: len(sound)] == sound
    stage.put(b"m2")
    stage.until(stage.in_sync)
    assert stage.values(node) == [b"m0", b"m1", b"m2"]
    stage.settle()


def two_partitions_with_all_files() -> tuple[Stage, str]:
    """Prepare a follower of two partitions whose logs have several segments and epochs and different log starts."""
    stage = Stage(partitions=2, segment_max_bytes="2048")
    node = next(node for node in stage.replicas if all(stage.state(key).leader != node for key in stage.partitions))
    stage.put(b"m0")
    producer = stage.clients[0]
    for leader in sorted({stage.state(key).leader or "" for key in stage.partitions}):
        for key in stage.partitions:
            for number in range(5):
                producer.produce(key, (b"%s/%d/%d" % (leader.encode(), key.partition, number)).ljust(400))  # type: ignore[union-attr]
                stage.run_for(0.1)
        stage.kill(leader)
        stage.until(lambda: all(stage.state(key).leader not in (None, leader) for key in stage.partitions))  # noqa: B023
        stage.restart(leader)
        stage.until(stage.in_sync)
    for key in stage.partitions:
        producer.produce(key, b"last of %d" % key.partition)  # type: ignore[union-attr]
    stage.run_for(2.0)  # high watermarks are written down
    epochs = [stage.replica(node).core.partitions[key].log.epochs.entries for key in stage.partitions]
    assert epochs[0] != epochs[1] and min(map(len, epochs)) > 1
    return stage, node


SIDECARS = (".index", "high-watermark", "leader-epochs", "log-start", "producers-", "recovery-mark")
DAMAGES = ("missing", "empty", "garbage", "half", "of another partition")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", SIDECARS)
def test_D5_a_damaged_file_beside_the_segments_is_made_again_and_the_node_starts(file, damage):
    stage, node = two_partitions_with_all_files()
    expected = stage.values(node)
    stage.kill(node)
    disk = stage.replica(node).disk
    foreign = stage.files(node, file, stage.partitions[1])
    assert stage.files(node, file) and foreign, "the file exists"
    for path in stage.files(node, file):
        whole = disk.read(path)
        left = {
            "missing": None,
            "empty": b"",
            "garbage": hashlib.sha512(whole).digest() * 30,
            "half": whole[: len(whole) // 2],
            "of another partition": disk.read(foreign[-1]),
        }[damage]
        if left is None:
            disk.unlink(path)
        else:
            disk.replace(path, left)
    stage.restart(node)
    stage.until(lambda: stage.end(node) >= 0)
    assert stage.values(node) == expected
    assert not stage.happened("log_truncated", node)
    stage.until(stage.in_sync)
    stage.settle()


def test_D5_knows_every_kind_of_file_beside_the_segments():
    stage, node = two_partitions_with_all_files()
    names = {path.rpartition("/")[2] for path in stage.files(node)}
    unknown = [name for name in names if not name.endswith(".log") and not any(kind in name for kind in SIDECARS)]
    assert not unknown


ERRORS: dict[str, Callable[[SimDisk], None]] = {
    "disk full": lambda disk: disk.fail_writes(errno.ENOSPC),
    "EIO on write": lambda disk: disk.fail_writes(errno.EIO),
    "EIO on fsync": lambda disk: disk.fail_syncs(errno.EIO),
}


@pytest.mark.parametrize("error", ERRORS)
def test_D6_a_leader_whose_disk_fails_stops_leading_and_acks_nothing(error):
    stage = Stage(min_insync_replicas="2")
    first = stage.first
    stage.put(b"m0")
    life = stage.processes[first].life
    ERRORS[error](stage.replica(first).disk)
    batch = stage.send(b"m1", patience=20.0)
    local = stage.send(b"m2", by="local", acks=Acks.LEADER, patience=20.0)
    stage.until(lambda: bool(stage.happened("partition_offline", first)))
    assert not batch.result and not local.result
    stage.always(lambda: None if not stage.leads(first) else pytest.fail("it leads on"))
    stage.until(lambda: stage.leader not in ("", first) and stage.processes[first].life > life)
    stage.until(lambda: batch.result == local.result == OK)
    assert sorted(stage.read_all()) == [b"m0", b"m1", b"m2"], "taken by the next leader, each once"
    stage._always.clear()
    stage.replica(first).disk.heal()
    stage.settle()


def test_D6_a_flush_that_failed_is_never_tried_again_and_called_good():
    """The next fsync would succeed, with the pages gone. It is the only replica, so no other one has them."""
    stage = Stage(replicas=1, min_insync_replicas="1")
    only, disk = stage.first, stage.replica(stage.first).disk
    stage.put(b"m0")
    life = stage.processes[only].life
    disk.fail_syncs(errno.EIO)
    batch = stage.send(b"m1", patience=5.0)
    stage.until(lambda: bool(stage.happened("partition_offline", only)))
    disk.heal()  # from here on an fsync says that all is well
    stage.until(lambda: stage.processes[only].life > life)
    stage.until(lambda: stage.leads(only))
    assert stage.values(only) == [b"m0"], "what that flush covered was cut out"
    stage.until(lambda: batch.result == OK)
    stage.lose_power(only)
    stage.restart(only)
    stage.until(lambda: stage.leads(only))
    assert stage.values(only) == [b"m0", b"m1"], "the retry, appended and flushed anew"


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 10**12])
def test_D9_the_wall_clock_jumps_and_offsets_and_epochs_do_not_care(jump_ms):
    stage = Stage()
    stage.put(b"m0")
    before = stage.now
    for number in range(1, 7):
        node = stage.processes[(*stage.controllers, *stage.replicas)[number - 1]]
        node.clock_skew_ms = getattr(node, "clock_skew_ms", 0) + jump_ms  # type: ignore[attr-defined]
        assert stage.put(b"m%d" % number).offset == number
        stage.run_for(2.0)
    assert stage.now == before
    assert stage.read_all() == [b"m%d" % number for number in range(7)]
    stage.settle()


def test_D10_disks_swapped_between_nodes_are_refused():
    stage = Stage()
    _, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(second, third)
    disk = stage.replica(second).disk
    stage.replace_disk(second, stage.replica(third).disk)
    stage.replace_disk(third, disk)
    for node, owner in ((second, third), (third, second)):
        with pytest.raises(ConfigError, match=f"belongs to node {owner}, not {node}"):
            stage.restart(node)
        stage.kill(node)
    disk = stage.replica(second).disk
    stage.replace_disk(second, stage.replica(third).disk)
    stage.replace_disk(third, disk)
    stage.settle()


def test_D10_a_disk_of_another_cluster_is_refused():
    elsewhere = Stage(cluster="elsewhere")
    elsewhere.put(b"theirs")
    stage = Stage()
    node = stage.others[0]
    stage.put(b"ours")
    stage.kill(node)
    stage.replace_disk(node, elsewhere.replica(node).disk)
    with pytest.raises(ConfigError, match="belongs to cluster elsewhere, not sim"):
        stage.restart(node)


def test_a_log_of_this_stage_with_a_hole_does_not_open():
    """The assumption of D4 and D5: damage below the recovery point is reported, not cut."""
    stage, node = two_partitions_with_all_files()
    stage.kill(node)
    disk, path = stage.replica(node).disk, stage.files(node, ".log")[-1]
    disk.replace(path, disk.read(path)[:10])
    with pytest.raises(CorruptLog):
        Log.open(disk, stage.directory(), stage.invariants.metadata.topics[stage.key.topic_id].config)


@pytest.mark.parametrize("rule", ["isr", "quorum"])
def test_D6_a_leader_whose_disk_is_full_hands_over_and_records_are_taken_again(rule):
    stage = Stage(commit_rule=rule, min_insync_replicas="2", reserve_bytes=1 << 20)
    stage.put(b"m0")
    stage.run_for(2.0)
    stage.replica(stage.first).disk.full = True
    stage.run_for(3.0)
    assert stage.leader in stage.others and stage.happened("disk_full", stage.first)
    stage.put(b"m1")
    assert (stage.first in stage.now.isr) is (rule == "quorum"), "its promises hold, whatever it takes"
    assert stage.values(stage.first) == [b"m0"]
    assert stage.replica(stage.first).running
    stage.replica(stage.first).disk.full = False
    stage.until(lambda: stage.values(stage.first) == [b"m0", b"m1"])
    stage.settle()


def test_D6_where_all_disks_are_full_nobody_is_elected_again_and_again():
    stage = Stage(commit_rule="quorum", min_insync_replicas="2", reserve_bytes=1 << 20)
    stage.put(b"m0")
    stage.run_for(2.0)
    for node in stage.replicas:
        stage.replica(node).disk.full = True
    stage.run_for(3.0)
    epoch = stage.now.leader_epoch
    stage.run_for(20.0)
    assert stage.leader is not None and stage.now.leader_epoch == epoch
    for node in stage.replicas:
        stage.replica(node).disk.full = False
    stage.run_for(3.0)
    stage.put(b"m1")
    stage.settle()
