"""D. Damage and permanent losses: found, never served, repaired from another replica."""

from __future__ import annotations

import pytest
from support.replica_network import Net
from tidelog.types import TopicConfig
from tidelog.verify.history import OK
from tidelog.wire.messages import Message, Read

from scenarios.stage import Stage

SMALL = "2048"
VALUES = [(b"%d" % number).ljust(400) for number in range(12)]


def with_closed_segments(replicas: int) -> Stage:
    """Return a stage whose logs have several closed segments, everything committed and known as such."""
    stage = Stage(replicas=replicas, segment_max_bytes=SMALL, min_insync_replicas="2")
    for value in VALUES:
        stage.put(value)
    stage.until(stage.in_sync)
    stage.run_for(1.5)
    assert all(len(stage.files(node, ".log")) > 2 for node in stage.replicas)
    return stage


def test_D3_a_flipped_bit_on_each_of_a_minority_is_found_and_repaired_from_a_peer():
    stage = with_closed_segments(5)
    damaged = stage.others[:2]
    before = {path: stage.replica(stage.first).disk.read(path) for path in stage.files(stage.first, ".log")}
    stage.kill(*damaged)
    for node in damaged:
        stage.flip(node, stage.files(node, ".log")[-1], 200)
    stage.restart(*damaged)
    stage.put(b"meanwhile")
    stage.until(stage.in_sync)
    for node in damaged:
        assert stage.happened("segment_quarantined", node) or stage.happened("log_truncated", node)
        assert stage.values(node) == [*VALUES, b"meanwhile"]
        disk = stage.replica(node).disk
        assert all(disk.read(path)[: len(data)] == data for path, data in before.items()), "byte for byte"
    stage.settle()


def test_D3_a_leader_that_meets_a_hole_in_its_log_resigns_and_nothing_of_it_is_served():
    stage = with_closed_segments(3)
    first, (second, third) = stage.first, stage.others
    stage.kill(second)
    stage.restart(second)
    stage.until(stage.in_sync)
    path = stage.files(second, ".log")[0]
    stage.flip(second, path, 16)  # in the header of the first batch
    stage.kill(first)
    stage.until(lambda: stage.leads(second))
    assert stage.read_all() == VALUES
    assert stage.leader == third, "the reader met the damage, and the leader resigned"
    (resigned,) = [change for change in stage.changes if change.cause == "data_lost"]
    assert (resigned.leader, resigned.isr, resigned.evidence["reason"]) == (third, (third,), "corrupt_log")
    stage.until(lambda: second in stage.now.isr)
    assert stage.replica(second).disk.read(path) == stage.replica(third).disk.read(path)
    stage.settle()


def test_B4_a_member_that_reported_damage_does_not_count_until_it_fetches_again():
    """Its incarnation stays the same, and a fetch from before the damage arrives after it has left the ISR."""
    stage = with_closed_segments(3)
    first, (_, third) = stage.first, stage.others
    stage.kill(third)
    stage.restart(third)  # nothing is cached
    stage.until(stage.in_sync)
    stage.flip(third, stage.files(third, ".log")[0], 16)  # in the header of the first batch

    def tells_of_last(sender: str, receiver: str, message: Message) -> bool:
        if (sender, receiver) != (third, first):
            return False
        return bool(silence.messages) or any(part.durable == 13 for part in message.parts)

    silence = stage.hold(tells_of_last)
    last = stage.send(b"last", by="other")
    stage.until(lambda: bool(silence.messages))
    stage.ask(third, Read(*stage.key, 0, any_replica=True))
    stage.until(lambda: third not in stage.now.isr)
    assert (stage.changes[-1].cause, stage.leader) == ("data_lost", first)
    proposed = stage.proposals(third)
    stage.until(lambda: stage.partition(first).leading.core.isr == stage.now.isr)
    silence.deliver()
    stage.until(lambda: last.result == OK)
    stage.run_for(1.0)
    assert not proposed, "it has asked for nothing since"
    silence.release()
    stage.until(lambda: third in stage.now.isr)
    assert stage.values(third) == [*VALUES, b"last"]
    stage.settle()


def test_D8_a_follower_that_retention_has_overtaken_starts_over_at_the_log_start_and_says_so():
    net = Net(config=TopicConfig(min_insync_replicas=1, segment_max_bytes=600))
    net.start()
    net.create()
    net.send("r1", b"first")
    net.advance(4)
    net.stop("r3")
    net.lead("r1", "r1 r2")
    for number in range(1, 40):
        net.send("r1", b"%d" % number)
    net.advance(4)
    for name in ("r1", "r2"):
        net.partition(name).log.advance_start(36)
    start = net.partition("r1").log.start
    assert 1 < start <= 36
    net.start("r3")
    net.advance(4)
    ((name, event),) = net.happened("copy_restarted")
    assert (name, event.fields["old_end"], event.fields["start"]) == ("r3", 1, start)
    assert net.values("r3") == net.values("r1") == [b"%d" % number for number in range(start, 40)]
    assert net.partition("r3").log.start == start
    net.advance(4)
    assert "r3" in net.state().isr


def test_D10_an_old_copy_of_a_disk_is_noticed_and_does_not_lead_though_nobody_else_is_there():
    """The copy was made before m1 was committed; its server was the last of the ISR."""
    stage = Stage(min_insync_replicas="1")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.kill(first)
    copy = stage.replica(first).disk.clone()
    stage.restart(first)
    stage.until(stage.in_sync)
    for node in others:
        stage.kill(node)
    stage.until(lambda: stage.now.isr == (first,))
    stage.put(b"m1")
    stage.kill(first)
    stage.replace_disk(first, copy)
    stage.restart(first, *others)
    stage.run_for(5.0)
    assert stage.leader == "", "nobody holds m1"
    lost = [change for change in stage.changes if "data" in change.evidence]
    assert lost[0].evidence["data"] == "wiped, or restored from an old copy"


def test_D10_a_wiped_disk_comes_back_as_an_empty_replica_and_is_filled():
    stage = Stage(min_insync_replicas="1")
    first = stage.first
    stage.put(b"m0")
    stage.kill(first)
    stage.replace_disk(first)
    stage.restart(first)
    stage.until(lambda: stage.leader in stage.others)
    assert stage.read_all() == [b"m0"]
    stage.until(lambda: first in stage.now.isr)
    assert stage.values(first) == [b"m0"]
    stage.settle()


def test_D2_under_flush_os_a_node_that_lost_power_does_not_lead_without_what_was_acked():
    """The acked records are only in the page cache of a process that was killed: its data is safe, that of the server
    that lost power is not."""
    stage = Stage(flush="os", min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(second)
    stage.until(lambda: second not in stage.now.isr)
    stage.put(b"m1")
    stage.kill(first)
    stage.lose_power(third)
    stage.restart(second, third)
    stage.run_for(5.0)
    assert stage.leader == "", "neither of the two holds m1"
    stage.restart(first)
    stage.until(lambda: stage.leader == first)
    assert stage.read_all() == [b"m0", b"m1"]
    stage.settle()


def test_D3_a_flipped_bit_that_nobody_has_read_yet_is_found_by_the_scrubber():
    stage = with_closed_segments(3)
    _, (second, third) = stage.first, stage.others
    for node in (second, third):
        path = stage.files(node, ".log")[1]
        sound = stage.replica(node).disk.read(path)
        stage.flip(node, path, 120)  # in the records of a batch: its header is sound
        stage.until(lambda: bool(stage.happened("segment_repaired", node)), 120.0)  # noqa: B023 (asked at once)
        stage.until(stage.in_sync)
        assert stage.replica(node).disk.read(path) == sound
        assert stage.happened("segment_quarantined", node)
    assert [change.cause for change in stage.changes].count("data_lost") == 2, "out of the ISR until then"
    stage.settle()


def test_D2_a_disk_that_cannot_be_read_for_a_moment_costs_a_copy_that_nobody_counts_on_any_more():
    """The controllers hear of it before anything is changed; then the last segment is given up, though it was
    sound."""
    stage = Stage(min_insync_replicas="2")
    _, (second, third) = stage.first, stage.others
    stage.put(*VALUES)
    stage.until(stage.in_sync)
    stage.kill(second)
    stage.restart(second)
    stage.until(lambda: len(stage.happened("registered", second)) == 2)
    disk = stage.replica(second).disk
    disk.fail_reads(after=2, only=".log")  # its size can be had, no byte of it
    stage.until(lambda: bool(stage.happened("log_damaged", second)))
    disk.heal()
    stage.until(lambda: bool(stage.happened("segment_quarantined", second)))
    (lost,) = [change for change in stage.changes if change.cause == "data_lost"]
    assert lost.evidence["node"] == second and third in lost.isr and second not in lost.isr
    stage.until(stage.in_sync)
    assert stage.values(second) == VALUES
    stage.settle()


def forget_the_mark(stage: Stage, node: str) -> None:
    """Make the recovery point old or remove it, as a power loss may, and damage the end of the log."""
    disk = stage.replica(node).disk
    disk.unlink(f"{stage.directory()}/recovery-mark")
    disk.sync_dir(stage.directory())
    stage.flip(node, stage.files(node, ".log")[-1], 100)


def test_D3_damage_that_looks_like_a_torn_write_below_the_stored_hw_is_reported_and_bars_from_leading():
    stage = Stage(replicas=3, min_insync_replicas="1")
    alone = stage.first
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.kill(*stage.others)
    stage.until(lambda: stage.now.isr == (alone,))
    stage.put(b"m1")
    stage.run_for(1.5)
    stage.kill(alone)
    forget_the_mark(stage, alone)
    stage.restart(*stage.replicas)
    stage.always(lambda: pytest.fail("nobody has m1") if any(map(stage.leads, stage.replicas)) else None)
    stage.run_for(6.0)
    assert not stage.leader
    assert stage.happened("log_damaged", alone) and alone not in stage.now.isr
    assert [change.cause for change in stage.changes].count("data_lost") == 1, "the history tells it"


def test_D3_a_follower_that_lost_its_committed_end_says_how_much_and_fetches_it_again():
    stage = Stage(replicas=3, min_insync_replicas="2")
    node = stage.others[-1]
    for number in range(5):
        stage.put(b"%d" % number)
    stage.until(stage.in_sync)
    stage.run_for(1.5)
    stage.kill(node)
    forget_the_mark(stage, node)
    stage.restart(node)
    stage.until(stage.in_sync)
    (missing,) = stage.happened("committed_records_missing", node)
    assert (missing.fields["start"], missing.fields["end"]) == (0, 5)
    assert stage.values(node) == [b"0", b"1", b"2", b"3", b"4"]
    stage.settle()


def test_D3_retention_that_meets_damage_never_takes_a_new_batch_for_one_that_was_cut():
    """Retention removes a segment with a flipped bit, and takes the producer state from memory. Memory also has later
    batches, which are cut afterwards: the log does not have them."""
    stage = Stage(segment_max_bytes=SMALL, min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    for number in range(4):
        stage.put((b"early %d" % number).ljust(400))
    for number in range(12):
        stage.put((b"other %d" % number).ljust(400), by="other")
    stage.settle()
    disk = stage.replica(second).disk
    for path in stage.files(second, "producers-"):
        disk.unlink(path)
    disk.flip(stage.files(second, ".log")[0], 16, 3)
    stage.cut(third, first, second, "hand")
    later = [stage.send((b"later %d" % number).ljust(400), patience=60.0, window=6) for number in range(3)]
    stage.until(lambda: stage.durable(second) == stage.durable(first) == 19)
    assert stage.hw(first) == 16 and stage.partition(first).log.advance_start(16)
    stage.until(lambda: bool(stage.happened("producers_forgotten", second)))
    stage.cut("hand", first, second)
    stage.kill(first, second)
    stage.until(lambda: stage.leads(third))
    stage.network.heal()
    stage.cut("hand", *stage.replicas)
    stage.restart(first, second)
    stage.until(stage.in_sync)
    assert stage.happened("log_truncated", second) and stage.end(second) == 16
    stage.kill(first, third)
    stage.until(lambda: stage.leads(second), 30.0)
    stage.settle()
    stage.until(lambda: all(batch.result for batch in later))
    assert [(batch.result, batch.offset) for batch in later] == [(OK, 16), (OK, 17), (OK, 18)]
    stage.settle()
    assert stage.values(second)[-3:] == [value for batch in later for value in batch.values]
