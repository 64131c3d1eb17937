"""A. Leader epochs and truncation, with the roles of leader and follower over two real logs."""

from __future__ import annotations

from random import Random

import pytest
from tidelog.batch.format import NewRecord, encode_batch, read_header
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog.types import TopicConfig
from tidelog.wire.messages import FetchPart
from tidelog_replica.replication.follower_state import FollowerState
from tidelog_replica.storage.log import Log

from scenarios.two_logs import (
    SMALL,
    agree,
    append,
    append_as_leader,
    catch_up,
    flush,
    follower_over,
    headers,
    leader_over,
    log_of,
    log_of_epochs,
    open_log,
    take,
    values,
)


def rejoin_after_two_elections(*written: bytes) -> tuple[Log, Log]:
    """A wrote m0, a1, a2 in epoch 1 and a3 in epoch 3; B wrote these in epoch 2, and follows A now."""
    a = log_of((1, b"m0"), (1, b"a1"), (1, b"a2"))
    b = log_of((1, b"m0"), *((2, value) for value in written))
    leader = leader_over(a, 3)
    append(a, 3, b"a3")
    catch_up(follower_over(b, 3, high_watermark=1), leader)
    return a, b


@pytest.mark.parametrize("written", [[b"b1"], [b"b1", b"b2"], [b"b1", b"b2", b"b3", b"b4"]])
def test_A3_an_answer_names_its_epoch_and_the_diverged_batch_goes(written):
    a, b = rejoin_after_two_elections(*written)
    assert values(b) == values(a) == [b"m0", b"a1", b"a2", b"a3"]
    assert headers(b) == headers(a) == [(0, 1), (1, 1), (2, 1), (3, 3)]


def test_A3_an_answer_without_an_epoch_leaves_the_diverged_batches(monkeypatch):
    """With the rule switched off: only the end offset of the answer counts (A's epoch 1 ends at 3), as before
    KIP-279; and no fetch compares epochs."""

    def believe_the_offset(self, asked, epoch, end, epochs, log_start, log_end):
        self.asking = None
        return min(end, log_end)

    monkeypatch.setattr(FollowerState, "on_epoch_end", believe_the_offset)
    monkeypatch.setattr("tidelog_replica.partition.leader_replica.divergence", lambda *arguments: None)
    a, b = rejoin_after_two_elections(b"b1", b"b2")
    assert values(a) == [b"m0", b"a1", b"a2", b"a3"]
    assert values(b) == [b"m0", b"b1", b"b2", b"a3"], "and nobody will ever notice"


def test_A4_an_answer_in_the_dialogue_of_an_earlier_leader_epoch_is_passed_over():
    """Since that answer the leader has cut records that it named as common."""
    ours = log_of((1, b"m0"), (1, b"a1"))
    before = follower_over(ours, 2)
    question = before.epoch_request()
    assert question is not None
    late = leader_over(log_of((1, b"m0"), (1, b"a1")), 2).epoch_end("b", 1, question)
    leader = leader_over(log_of((1, b"m0"), (3, b"c1")), 4)
    follower = follower_over(ours, 4)
    follower.on_epoch_end(question, late)
    assert follower.epoch_request() is not None, "it has still to ask"
    catch_up(follower, leader)
    assert values(ours) == [b"m0", b"c1"]


def test_A6_after_an_empty_answer_a_diverging_one_is_still_found():
    """B has everything that A has and gets an empty answer; then C leads, whose last record differs from B's."""
    ours = log_of((1, b"m0"), (2, b"b1"))
    follower = follower_over(ours, 2)
    follower.core.asking = None  # they have agreed
    empty = follower.fetch_request()
    part, batches = leader_over(log_of((1, b"m0"), (2, b"b1")), 2).fetch("b", 1, 1, empty, 1 << 20, 0.0)
    assert (batches, part.diverging_epoch) == ([], -1)
    take(follower, empty, part)

    theirs = log_of((1, b"m0"), (3, b"c1"))
    leader = leader_over(theirs, 4)
    follower = follower_over(ours, 4)
    follower.core.asking = None  # even were the dialogue left out
    wanted = follower.fetch_request()
    assert (wanted.offset, wanted.last_epoch) == (2, 2), "the epoch of its own last record, whatever came last"
    part, _ = leader.fetch("b", 1, 1, wanted, 1 << 20, 0.0)
    assert (part.diverging_epoch, part.diverging_end) == (1, 1)
    take(follower, wanted, part)
    assert values(ours) == [b"m0"]
    catch_up(follower, leader)
    assert values(ours) == [b"m0", b"c1"]


def test_A7_the_position_of_a_diverging_follower_is_not_recorded_and_the_hw_stays():
    leader = leader_over(log_of((1, b"m0"), (1, b"a1"), (1, b"a2")), 3, isr=("a", "b"))
    flush(leader._log)
    leader.settle(0.0)
    diverging = FetchPart("t", 0, leader_epoch=3, offset=3, last_epoch=2, durable=3)
    part, batches = leader.fetch("b", 1, 1, diverging, 1 << 20, 0.0)
    assert (part.diverging_epoch, part.diverging_end, batches) == (1, 3, [])
    assert leader.core.followers["b"].durable == -1
    assert leader.high_watermark == 0
    agreeing = FetchPart("t", 0, leader_epoch=3, offset=3, last_epoch=1, durable=3)
    leader.fetch("b", 1, 1, agreeing, 1 << 20, 0.0)
    assert leader.high_watermark == 3


@pytest.mark.parametrize(
    ("follower", "leader", "end"),
    [
        pytest.param("11122", "11122", 5, id="equal"),
        pytest.param("111", "11122", 3, id="behind"),
        pytest.param("1111", "112", 2, id="ahead in an old epoch"),
        pytest.param("11122", "111", 3, id="ahead in a new epoch"),
        pytest.param("1112", "1113", 3, id="diverged in one epoch"),
        pytest.param("112446", "113355", 2, id="diverged in several"),
        pytest.param("", "112", 0, id="empty follower"),
        pytest.param("22", "11", 0, id="unknown epoch"),
    ],
)
def test_A13_each_shape_of_two_logs_has_one_exact_truncation_offset(follower, leader, end):
    """Each digit is a record with that leader epoch."""
    ours, theirs = log_of_epochs(follower), log_of_epochs(leader)
    following, leading = follower_over(ours, 9), leader_over(theirs, 9)
    rounds = agree(following, leading)
    assert ours.end == end
    assert rounds <= len(set(follower)), "each question is for an older epoch"
    catch_up(following, leading)
    assert values(ours) == values(theirs)


LEADER_EPOCHS = "1111122333333"


def leader_of_a_longer_log():
    return leader_over(log_of(*((int(e), f"{e}".encode().ljust(20)) for e in LEADER_EPOCHS)), 5)


def diverged_disk() -> SimDisk:
    """Return the follower's disk: the first five records, and eight of epoch 4, over several segments, all
    flushed."""
    disk = SimDisk()
    log = log_of(*((int(e), f"{e}".encode().ljust(20)) for e in "1111144444444"), disk=disk, config=SMALL)
    flush(log)
    log.close()
    assert len([name for name in disk.listdir("/log") if name.endswith(".log")]) >= 3
    return disk


@pytest.mark.parametrize("seed", range(5))
def test_A14_power_lost_at_each_write_of_a_truncation_leaves_logs_that_converge(seed):
    leader = leader_of_a_longer_log()
    for step in range(1000):
        disk = diverged_disk()
        follower = follower_over(open_log(disk, SMALL), 5)
        disk.lose_power(after=step)
        try:
            agree(follower, leader)
        except PowerLost:
            disk.crash(Random(1000 * seed + step))
        else:
            assert step > 5, "a truncation writes"
            return
        after = open_log(disk, SMALL)
        assert after.end >= 5, "what both have is never cut"
        catch_up(follower_over(after, 5), leader)
        assert values(after) == values(leader._log)
    raise AssertionError("the truncation never ends")


LARGE = TopicConfig(segment_max_bytes=10_000)
"""Segments of five batches of 2 KB: long enough for more than one entry in their sparse indexes."""
TIMES = [5, 3, 9, 9, 12, 4, 20, 21, 30, 29, 31, 40, 50, 50, 60, 61]


def put(log: Log, offset: int, epoch: int, size: int = 1900) -> None:
    """Append a record whose value is its own offset."""
    record = NewRecord((b"%d" % offset).ljust(size), b"key", TIMES[offset])
    append_as_leader(log, encode_batch([record]), epoch)


def is_right(log: Log, epochs: list[int]) -> None:
    """Check that every offset, leader epoch and time leads to its record, whose value is its offset."""
    assert log.end == len(epochs)
    assert [value.strip() for value in values(log) if value is not None] == [b"%d" % o for o in range(log.end)]
    assert [log.epoch_at(offset + 1) for offset in range(log.end)] == epochs
    for offset in range(log.end):
        (batch,) = log.read(offset, 1)
        assert read_header(batch).base_offset == offset
    for time in range(max(TIMES) + 2):
        naive = next(((offset, TIMES[offset]) for offset in range(log.end) if TIMES[offset] >= time), None)
        assert log.offset_for_timestamp(time, log.end) == naive


@pytest.mark.parametrize("end", range(len(TIMES) + 1))
def test_A15_after_a_truncation_at_any_offset_log_index_and_time_index_are_right(end):
    """Offset 0, segment edges and offsets between; also for the next process that opens the log, and when it grows
    again with batches of another size."""
    disk = SimDisk()
    log, epochs = open_log(disk, LARGE), [1 + offset // 4 for offset in range(len(TIMES))]
    for offset, epoch in enumerate(epochs):
        put(log, offset, epoch)
    flush(log)
    edges = [int(name[:20]) for name in disk.listdir("/log") if name.endswith(".log")]
    assert len(edges) > 3 and set(edges) < set(range(len(TIMES))), "some of the ends are edges, some are not"
    log.close()
    log = open_log(disk, LARGE)
    log.truncate(end)
    is_right(log, epochs[:end])
    is_right(open_log(disk.clone(), LARGE), epochs[:end])
    for offset in range(end, len(TIMES)):
        put(log, offset, 9, 1000 + 400 * (offset % 3))
    flush(log)
    log.close()
    is_right(open_log(disk, LARGE), epochs[:end] + [9] * (len(TIMES) - end))
