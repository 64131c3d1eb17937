"""D. Power losses in the middle of actions that change files, with the log alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from support.log_builders import after_power_losses, reset
from tidelog.batch.format import NewRecord, encode_batch, read_header
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.storage.log import Log

from scenarios.two_logs import SMALL, append, append_as_leader, flush, headers, open_log, records, values

COMPACTED = TopicConfig(segment_max_bytes=400, cleanup="compact")
COUNT = 14
"""Records that are there and flushed, each its own offset, in several segments."""


def prepared() -> SimDisk:
    disk = SimDisk()
    log = open_log(disk, SMALL)
    for offset in range(COUNT):
        append(log, 1 + offset // 5, b"%d" % offset)
    flush(log)
    log.close()
    return disk


def roll(log: Log) -> None:
    """Append ten records, which fill three segments."""
    for offset in range(COUNT, COUNT + 10):
        append(log, 4, b"%d" % offset)
        flush(log)


def retain(log: Log) -> None:
    """Remove the segments that end at or below 9, as retention does."""
    log.advance_start(9)


def start_over(log: Log) -> None:
    """Drop the copy, since the leader's log begins at 20."""
    reset(log, 20, 4, b"c" * 16)


def has_no_hole(log: Log) -> None:
    """Check that the log has every offset from start to end once, with the right record."""
    assert [offset for offset, _ in headers(log)] == list(range(log.start, log.end))
    assert values(log) == [b"%d" % offset for offset in range(log.start, log.end)]


@pytest.mark.parametrize(("change", "starts"), [(roll, {0}), (retain, {0, 8}), (start_over, {0, 20})])
def test_D7_power_lost_at_each_step_leaves_no_hole_and_no_duplicate(change: Callable[[Log], None], starts: set[int]):
    found_starts = set()
    for after in after_power_losses(
        prepared, lambda disk: partial(change, open_log(disk, SMALL)), seeds=10, changes=4
    ):
        found = open_log(after, SMALL)
        has_no_hole(found)
        assert found.end >= COUNT
        found_starts.add(found.start)
        append(found, 9, b"%d" % found.end)
        flush(found)
        has_no_hole(open_log(after, SMALL))
    assert found_starts == starts


def keyed_changes(disk: SimDisk) -> Log:
    """Fill a compacted topic with changes of three keys, over several segments."""
    log = open_log(disk, COMPACTED)
    for offset in range(20):
        record = NewRecord((b"%d" % offset).ljust(80), b"key %d" % (offset % 3), 1000 + offset)
        append_as_leader(log, encode_batch([record]), 1)
    flush(log)
    log.close()
    return open_log(disk, COMPACTED)


def table(log: Log) -> dict[bytes | None, bytes | None]:
    """Return the values that a reader of the whole log knows in the end."""
    return {record.key: record.value for record in records(log)}


@pytest.mark.parametrize("seed", range(3))
def test_D7_power_lost_at_each_step_of_a_compaction_costs_no_key_and_moves_no_offset(seed):
    expected = table(keyed_changes(SimDisk()))
    for step in range(1000):
        disk = SimDisk()
        log = keyed_changes(disk)
        disk.lose_power(after=step)
        try:
            log.compact(log.end, 10_000)
        except PowerLost:
            disk.crash(Random(1000 * seed + step))
        else:
            assert step > 10, "a compaction is made of many writes"
            assert len(records(open_log(disk, COMPACTED))) < 20, "and makes room"
            return
        found = open_log(disk, COMPACTED)
        assert headers(found) == [(offset, 1) for offset in range(20)], "every offset is covered, once"
        assert table(found) == expected
        found.compact(found.end, 10_000)
        assert table(open_log(disk, COMPACTED)) == expected
    raise AssertionError("the compaction never ends")


@pytest.mark.parametrize("end", range(21))
def test_A15_truncation_of_a_compacted_segment_leaves_log_index_and_time_index_right(end):
    disk = SimDisk()
    log = keyed_changes(disk)
    log.compact(log.end, 10_000)
    left = [record.offset for record in records(log)]
    assert left[0] > 0, "the first records are gone"
    log.truncate(end)
    for same in (log, open_log(disk.clone(), COMPACTED)):
        assert headers(same) == [(offset, 1) for offset in range(end)]
        assert [record.offset for record in records(same)] == [offset for offset in left if offset < end]
        for offset in range(end):
            (batch,) = same.read(offset, 1)
            assert read_header(batch).base_offset == offset
            found = same.offset_for_timestamp(1000 + offset, end)
            assert found is not None and found[0] == offset
        assert same.offset_for_timestamp(1000 + end, end) is None
    append(log, 2, b"after it")
    assert values(log)[-1] == b"after it" and log.epoch_at(end + 1) == 2
