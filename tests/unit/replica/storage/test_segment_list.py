"""The segments of a log without the log: what is read, found, rolled and forgotten."""

from __future__ import annotations

import pytest
from support.log_builders import batch
from tidelog.batch.format import NO_CHAIN, chain_after, read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.index import IndexCache
from tidelog_replica.storage.segment import CorruptLog, Segment
from tidelog_replica.storage.segment_list import SegmentList
from tidelog_replica.storage.tail_cache import LogTailCache

DIRECTORY = "/data/t-0"
BATCHES = [batch(base, 1, 2, timestamp_ms=1000 + base) for base in range(0, 20, 2)]
HEADERS = [read_header(each) for each in BATCHES]
SIZE = len(BATCHES[0])


def empty(disk: SimDisk, tails: LogTailCache | None = None, indexes: IndexCache | None = None) -> SegmentList:
    disk.mkdir(DIRECTORY)
    first = Segment(disk, DIRECTORY, 0)
    first.create()
    return SegmentList(disk, DIRECTORY, [first], LeaderEpochCache([(1, 0)]), tails, indexes)


def append(segments: SegmentList, number: int) -> None:
    segments.active.append([HEADERS[number]], [BATCHES[number]])
    segments.remember(HEADERS[number], BATCHES[number])


def filled(disk: SimDisk, tails: LogTailCache | None = None, indexes: IndexCache | None = None) -> SegmentList:
    """Offsets 0 to 20, with segments at 0, 6, 12 and 18."""
    segments = empty(disk, tails, indexes)
    for number in range(len(BATCHES)):
        if number and number % 3 == 0:
            segments.roll()
        append(segments, number)
    return segments


def test_an_empty_list_holds_one_segment_and_nothing_to_read():
    segments = empty(SimDisk())
    assert (segments.start, segments.end_offset, len(segments)) == (0, 0, 1)
    assert segments.read(0, 99, 0) == [] and list(segments.headers()) == [] and segments.closed() == []
    assert segments.chain_at(0) == (0, NO_CHAIN) and segments.offset_for_timestamp(0, 0) is None


def test_every_segment_but_the_last_is_closed():
    segments = filled(SimDisk())
    assert [each.base for each in segments] == [0, 6, 12, 18]
    assert segments.active is segments[-1] and segments.closed() == list(segments)[:-1]
    assert [(each.base, each.end, each.bytes) for each in segments.extents()] == [
        (0, 6, 3 * SIZE),
        (6, 12, 3 * SIZE),
        (12, 18, 3 * SIZE),
        (18, 20, SIZE),
    ]
    assert segments.count_and_bytes() == (4, 10 * SIZE)


@pytest.mark.parametrize("from_disk", [False, True])
def test_a_read_is_whole_batches_of_the_log_below_the_end(from_disk):
    segments = filled(SimDisk())
    if from_disk:
        segments.forget_tail()
    assert segments.read(7, 1, 20) == [BATCHES[3]]
    assert segments.read(6, 2 * SIZE, 20) == BATCHES[3:5]
    assert segments.read(6, 9999, 9) == [BATCHES[3]]
    assert segments.read(20, 9999, 20) == segments.read(-1, 9999, 20) == segments.read(6, 9999, 6) == []


def test_a_batch_from_the_disk_is_of_the_leader_epoch_that_the_log_says():
    disk = SimDisk()
    segments = SegmentList(disk, DIRECTORY, list(filled(disk)), LeaderEpochCache([(1, 0), (2, 12)]))
    assert segments.read(10, 9999, 20) == [BATCHES[5]]
    with pytest.raises(CorruptLog, match="batch at offset 12 names leader epoch 1"):
        segments.read(12, 9999, 20)


def test_the_segments_of_an_offset():
    segments = filled(SimDisk())
    assert [segments.segment_at(offset).base for offset in (0, 5, 6, 17, 18, 99)] == [0, 0, 6, 12, 18, 18]
    assert [each.base for each in segments.from_offset(13)] == [12, 18]
    assert [each.base for each in segments.up_to(6)] == [0, 6]
    assert [each.base for each in segments.behind(segments[1])] == [12, 18]
    assert segments.files_from(12) == [segments[2].file, segments[3].file]
    assert [segments.segment_after(base) for base in (-1, 0, 17, 18)] == [*(segments[n] for n in (0, 1, 3)), None]
    assert [segments.closed_segment_after(base) for base in (-1, 11, 12)] == [segments[0], segments[2], None]


def test_headers_times_and_the_hash_chain_go_over_all_segments():
    segments = filled(SimDisk())
    assert [each.base_offset for each in segments.headers()] == list(range(0, 20, 2))
    assert [each.base_offset for each in segments.headers(9)] == [8, 10, 12, 14, 16, 18]
    assert segments.offset_for_timestamp(1007, 20) == (6, 1006) and segments.offset_for_timestamp(1007, 7) is None
    assert segments.offset_for_timestamp(1020, 20) is None
    chain = NO_CHAIN
    for number, each in enumerate(BATCHES):
        assert segments.chain_at(2 * number) == segments.chain_at(2 * number + 1) == (2 * number, chain)
        chain = chain_after(chain, each)
    assert segments.chain_at(99) == (20, chain)


def test_the_oldest_segments_are_forgotten_and_their_files_stay():
    disk, tails = SimDisk(), LogTailCache(1 << 20)
    segments = filled(disk, tails)
    segments.drop_first(2)
    assert (segments.start, segments.end_offset, len(segments)) == (12, 20, 2)
    assert segments.read(11, 9999, 20) == [] and segments.read(12, 9999, 20) == BATCHES[6:]
    assert segments.chain_at(3) == segments.chain_at(12)
    assert tails.bytes == 4 * SIZE and f"{0:020d}.log" in disk.listdir(DIRECTORY)


def test_a_segment_that_is_written_again_is_the_last_and_has_no_index_file():
    disk, tails = SimDisk(), LogTailCache(1 << 20)
    segments = filled(disk, tails)
    kept = segments[1]
    assert kept.index_path.rpartition("/")[2] in disk.listdir(DIRECTORY)
    segments.make_active(kept)
    kept.cut(8)
    segments.cut_tail()
    assert (segments.active, segments.end_offset, len(segments)) == (kept, 8, 2)
    assert kept.index_path.rpartition("/")[2] not in disk.listdir(DIRECTORY) and tails.bytes == 4 * SIZE
    append(segments, 4)
    assert segments.read(6, 9999, 10) == BATCHES[3:5] and segments.end_offset == 10


def test_a_thinned_file_is_served_from_the_disk():
    disk, tails = SimDisk(), LogTailCache(1 << 20)
    segments = filled(disk, tails)
    segment = segments[1]
    segments.replace_file(segment, segment.index, segment.size)
    assert segment.rewrites == 1 and tails.bytes == 4 * SIZE, "nothing up to the end of the segment is in memory"
    assert segments.read(6, 9999, 20) == BATCHES[3:6]


def test_the_indexes_of_closed_segments_are_in_memory_only_while_there_is_room():
    indexes = IndexCache(1)
    segments = filled(SimDisk(), indexes=indexes)
    assert indexes.bytes == 0, "writing needs none of them"
    segments.forget_tail()
    for offset in range(20):
        assert segments.read(offset, 1, 20)
    assert sum(segment._index is not None for segment in segments.closed()) == 1
