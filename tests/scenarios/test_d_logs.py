"""D. Power lost in the middle of what changes files, straight on the log."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from simulation.sim_disk import PowerLost, SimDisk
from tidelog_replica.core.producers import ProducerState
from tidelog_replica.log.log import Log

from scenarios.two_logs import SMALL, append, flush, headers, open_log, values

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
    """Ten records more: three segments more."""
    for offset in range(COUNT, COUNT + 10):
        append(log, 4, b"%d" % offset)
        flush(log)


def retain(log: Log) -> None:
    """Retention takes the segments that end at or below 9."""
    log.advance_start(9)


def start_over(log: Log) -> None:
    """The leader's log begins at 20: the own copy is thrown away."""
    log.reset(20, 4, b"c" * 16, ProducerState())


def has_no_hole(log: Log) -> None:
    """Every offset from the start to the end once, and the right record there."""
    assert [offset for offset, _ in headers(log)] == list(range(log.start, log.end))
    assert values(log) == [b"%d" % offset for offset in range(log.start, log.end)]


@pytest.mark.parametrize(("change", "starts"), [(roll, {0}), (retain, {0, 8}), (start_over, {0, 20})])
def test_D7_power_lost_at_each_step_leaves_no_hole_and_no_duplicate(change: Callable[[Log], None], starts: set[int]):
    found_starts = set()
    for step in range(1000):
        disk = prepared()
        log = open_log(disk, SMALL)
        disk.lose_power(after=step)
        try:
            change(log)
        except PowerLost:
            assert step < 900
        else:
            assert step > 3, "the change is made of several writes"
            assert found_starts == starts
            return
        for seed in range(10):
            after = disk.clone()
            after.crash(Random(seed))
            found = open_log(after, SMALL)
            has_no_hole(found)
            assert found.end >= COUNT
            found_starts.add(found.start)
            append(found, 9, b"%d" % found.end)
            flush(found)
            has_no_hole(open_log(after, SMALL))
    raise AssertionError("the change never ends")
