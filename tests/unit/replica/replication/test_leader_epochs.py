"""The leader-epoch cache against a naive model: a list with the epoch of every record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_replica.replication.leader_epochs import ENTRY_BYTES, LeaderEpochCache, divergence


def test_an_empty_cache_knows_nothing():
    cache = LeaderEpochCache()
    assert (cache.latest(), cache.end_of(5, 10), cache.epoch_before(0), cache.epoch_before(7)) == (
        -1,
        (-1, -1),
        -1,
        -1,
    )


def test_an_epoch_ends_where_the_next_begins_and_the_last_at_the_log_end():
    cache = LeaderEpochCache([(1, 0), (3, 10), (7, 25)])
    assert cache.end_of(0, 40) == (-1, -1)
    assert cache.end_of(1, 40) == cache.end_of(2, 40) == (1, 10)
    assert cache.end_of(3, 40) == cache.end_of(6, 40) == (3, 25)
    assert cache.end_of(7, 40) == cache.end_of(99, 40) == (7, 40)


def test_an_empty_epoch_is_remembered_but_holds_no_record():
    cache = LeaderEpochCache([(1, 0), (2, 5), (3, 5)])
    assert cache.end_of(2, 9) == (2, 5)
    assert cache.end_of(1, 9) == (1, 5)
    assert [cache.epoch_before(offset) for offset in (5, 6)] == [1, 3]


def test_the_same_epoch_again_changes_nothing_and_going_back_is_a_bug():
    cache = LeaderEpochCache([(4, 0)])
    assert not cache.assign(4, 9)
    assert cache.entries == [(4, 0)]
    with pytest.raises(AssertionError):
        cache.assign(3, 9)
    assert cache.assign(5, 9)
    with pytest.raises(AssertionError):
        cache.assign(6, 8)


def test_truncation_forgets_empty_epochs_at_the_end_too():
    cache = LeaderEpochCache([(1, 0), (3, 10), (7, 25)])
    assert not cache.truncate_to(26)
    assert cache.truncate_to(25)
    assert cache.entries == [(1, 0), (3, 10)]
    assert cache.truncate_to(0)
    assert cache.entries == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("elect"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 6)),
    ),
    max_size=40,
)


@given(steps, st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_it_answers_as_a_list_of_every_record_does(steps, asked):
    cache, epoch = LeaderEpochCache([(0, 0)]), 0
    row: list[int] = []
    for kind, number in steps:
        if kind == "append":
            cache.assign(epoch, len(row))
            row += [epoch] * number
        elif kind == "elect":
            epoch += number
            cache.assign(epoch, len(row))
        else:
            del row[max(0, len(row) - number) :]
            cache.truncate_to(len(row))
        assert [cache.epoch_before(o) for o in range(1, len(row) + 1)] == row
        assert cache.epoch_before(0) == -1
        known, end = cache.end_of(asked, len(row))
        below = [o + 1 for o, e in enumerate(row) if e <= asked]
        assert known <= asked
        assert max(end, 0) == (below[-1] if below else 0)  # where the records of epochs <= asked end
        assert all(e <= known for e in row if e <= asked)
        assert LeaderEpochCache.from_bytes(cache.to_bytes()) == (cache, True)


def test_a_cut_or_flip_anywhere_leaves_the_valid_beginning():
    cache = LeaderEpochCache([(1, 0), (3, 10), (7, 25)])
    data = cache.to_bytes()
    for cut in range(len(data)):
        found, whole = LeaderEpochCache.from_bytes(data[:cut])
        assert found.entries == cache.entries[: cut // ENTRY_BYTES] and not whole
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        found, whole = LeaderEpochCache.from_bytes(damaged)
        assert found.entries == cache.entries[: position // ENTRY_BYTES] and not whole
    for more in (b"\0", data, data[:ENTRY_BYTES], data[-ENTRY_BYTES:]):
        assert LeaderEpochCache.from_bytes(data + more) == (cache, False)
    going_back = data[: 2 * ENTRY_BYTES] + data
    assert LeaderEpochCache.from_bytes(going_back) == (LeaderEpochCache(cache.entries[:2]), False)


def test_the_end_of_the_file_is_enough_to_write_a_new_epoch():
    cache = LeaderEpochCache([(1, 0), (3, 10)])
    data = bytearray(cache.to_bytes())
    cache.assign(7, 25)
    data[cache.position() :] = cache.last_bytes()
    assert bytes(data) == cache.to_bytes()
    cache.truncate_to(10)
    data[cache.position(0) :] = cache.last_bytes(0)
    assert bytes(data) == cache.to_bytes()


def test_an_epoch_older_than_all_that_a_trimmed_log_knows_ended_before_the_log_starts():
    """The record before the start, 14, is of epoch 5, which began at 11: epoch 0 ended there at the latest."""
    trimmed = LeaderEpochCache([(5, 11), (6, 20)])
    assert divergence(18, 0, trimmed, 15, 30) == (0, 11)
    assert divergence(15, 0, trimmed, 15, 30) == (0, 11), "it is of another line"
    assert divergence(15, 5, trimmed, 15, 30) is None
    assert divergence(11, 0, trimmed, 15, 30) is None
