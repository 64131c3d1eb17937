"""The sparse index against a list of every batch, and its file cut and flipped at every byte."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_replica.storage.index import (
    HEAD_BYTES,
    INTERVAL_BYTES,
    IndexCache,
    SegmentSummary,
    SparseIndex,
    read_summary,
)

placed = st.lists(st.tuples(st.integers(1, 5), st.integers(64, 6000), st.integers(0, 50)), max_size=40)


def chain(number: int) -> bytes:
    return number.to_bytes(16, "big")


def build(rows):
    """Rows (offset, position, largest timestamp up to and with it), and the index over them. The chain before the
    batch of an offset is that number."""
    index, every = SparseIndex(chain(0)), []
    offset = position = 0
    latest = -1
    for count, size, timestamp in rows:
        index.add(offset, position, latest, chain(offset))
        latest = max(latest, timestamp)
        every.append((offset, position, latest))
        offset, position = offset + count, position + size
    return index, every, offset, position


@given(placed)
@settings(max_examples=200, deadline=None)
def test_a_lookup_never_points_past_the_offset_and_never_far_before_it(rows):
    index, every, end, size = build(rows)
    for offset, position, _ in every:
        begins, found, earlier, before = index.for_offset(offset)
        assert begins == next(row[0] for row in every if row[1] == found)
        assert found <= position
        steps = [row for row in every if found <= row[1] < position]
        assert position - found < INTERVAL_BYTES + 6000 and (not steps or steps[-1][1] - found < INTERVAL_BYTES)
        assert earlier == max((row[2] for row in every if row[1] < found), default=-1)
        assert before == chain(next(row[0] for row in every if row[1] == found))
    for sought in range(52):
        position = next((row[1] for row in every if row[2] >= sought), None)
        if position is not None:
            assert index.for_timestamp(sought).position <= position
    assert index.for_offset(end + 5).position <= size


@given(placed, st.integers(0, 40 * 6000))
@settings(max_examples=100, deadline=None)
def test_a_truncated_index_equals_the_index_of_the_rest(rows, cut):
    index, every, _, _ = build(rows)
    kept = [row for row, (_, position, _) in zip(rows, every, strict=True) if position < cut]
    index.truncate_to(cut)
    assert index == build(kept)[0]


@given(placed)
@settings(max_examples=50, deadline=None)
def test_the_file_holds_it(rows):
    index, _, end, size = build(rows)
    summary = SegmentSummary(0, end, size, 7, chain(0), chain(99))
    data = index.to_bytes(summary)
    assert SparseIndex.from_bytes(data) == index
    assert read_summary(data[:HEAD_BYTES]) == summary


def test_a_damaged_file_is_no_index():
    data = build([(1, 5000, 3)] * 3)[0].to_bytes(SegmentSummary(0, 3, 15000, 3))
    for cut in range(len(data)):
        assert SparseIndex.from_bytes(data[:cut]) is None
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert SparseIndex.from_bytes(damaged) is None
        assert (read_summary(damaged) is None) == (position < HEAD_BYTES)
    assert SparseIndex.from_bytes(data + b"\0") is None
    assert SparseIndex.from_bytes(bytes(200)) is None


def test_the_columns_are_big_endian_whatever_the_machine_is():
    index, _, end, size = build([(3, 5000, 7), (2, 5000, 9), (1, 100, 1)])
    columns = index.to_bytes(SegmentSummary(0, end, size, 9))[HEAD_BYTES:]
    assert columns == struct.pack(">9q", 0, 3, 5, 0, 5000, 10_000, -1, 7, 9) + chain(0) + chain(3) + chain(5)


class Holder:
    def __init__(self) -> None:
        self.holds = True

    def drop_index(self) -> None:
        self.holds = False


def test_where_there_is_no_more_room_the_index_that_was_loaded_longest_ago_goes():
    cache = IndexCache(1000)  # of 40 bytes each
    holders = [Holder() for _ in range(4)]
    for holder in holders[:3]:
        cache.loaded(holder, 10)
    assert [holder.holds for holder in holders] == [False, True, True, True] and cache.bytes == 800
    cache.forget(holders[1])
    cache.loaded(holders[3], 10)
    assert holders[1].holds and holders[2].holds and cache.bytes == 800, "what is forgotten is nobody's here"
    cache.loaded(holders[0], 1000)
    assert not holders[2].holds and not holders[3].holds and cache.bytes == 40_000, "one alone stays"
    cache.loaded(holders[0], 10)
    assert cache.bytes == 400
