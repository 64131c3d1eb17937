"""The newest batches in memory, over all logs of a server: what goes when there is no more room."""

from __future__ import annotations

from support.log_builders import PATH, batch, content
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.tail_cache import LogTailCache, PartitionTail


def grow(tail: PartitionTail, base: int, count: int) -> int:
    for offset in range(base, base + count):
        tail.append(offset, offset + 1, bytes(10))
    return base + count


def test_the_log_that_was_not_appended_to_for_the_longest_time_loses_its_tail():
    cache = LogTailCache(100)
    tails = [PartitionTail(0, cache=cache) for _ in range(3)]
    for tail in tails:
        grow(tail, 0, 3)
    grow(tails[0], 3, 1)
    assert cache.bytes == 100 and all(tail.read(0, 10, 1) for tail in tails)
    grow(tails[2], 3, 1)
    assert [tail._bytes for tail in tails] == [40, 0, 40]
    assert tails[1].read(0, 10, 1) is None
    grow(tails[1], 3, 1)
    assert tails[1].read(3, 10, 4) == [bytes(10)]


def test_one_busy_log_may_have_it_all_and_then_loses_its_oldest():
    cache = LogTailCache(100)
    tail, other = PartitionTail(0, cache=cache), PartitionTail(0, cache=cache)
    grow(other, 0, 1)
    grow(tail, 0, 10)
    assert (tail._bytes, other._bytes) == (100, 0)
    grow(tail, 10, 1)
    assert tail._bytes == cache.bytes == 70
    assert tail.read(3, 10, 11) is None and tail.read(4, 10, 11) == [bytes(10)]
    tail.append(11, 12, bytes(200))
    assert tail._bytes == cache.bytes == 0
    assert tail.read(11, 10, 12) is None
    tail.append(12, 13, bytes(10))
    assert tail.read(12, 10, 13) == [bytes(10)]


def test_truncating_or_closing_a_log_returns_its_part_of_the_cache():
    cache = LogTailCache(1000)
    tail = PartitionTail(0, cache=cache)
    grow(tail, 0, 5)
    tail.truncate_to(2)
    assert cache.bytes == tail._bytes == 20
    tail.truncate_to(0)
    assert cache.bytes == 0

    log = Log.open(SimDisk(), PATH, TopicConfig(), cache)
    log.append([batch(0, 1)])
    assert cache.bytes > 0 and len(content(log)) == 1
    log.close()
    assert cache.bytes == 0
