"""Records with gaps between their offsets become batches without a gap."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.backup.kafka.batches import BATCH_BYTES, RecordTooLarge, Row, pack
from tidelog.backup.kafka.importer import rows_in
from tidelog.batch.format import MAX_RECORDS, Codec, Fields, check_batch
from tidelog.batch.sparse import MOST_BYTES, first_compacted_ms

NOW_MS = 5_000
CONTENTS = st.one_of(st.none(), st.binary(max_size=20))
HEADERS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=4)), max_size=3).map(tuple)
FIELDS = st.tuples(CONTENTS, CONTENTS, st.integers(0, 2**40), HEADERS)
GAPS = st.one_of(st.just(0), st.just(0), st.integers(0, 5), st.integers(0, 3 * MAX_RECORDS))


def packed(rows: list[Row], start: int, end: int, most: int = MOST_BYTES, codec: Codec = "none") -> list[Row]:
    """Pack records, check that the batches cover the offsets without a gap, and return the records in them."""
    at, found = start, []
    for batch in pack(rows, start, end, most, codec, NOW_MS):
        header = check_batch(batch)
        assert (header.base_offset, header.producer_id, len(batch) <= most) == (at, 0, True)
        found += rows_in(memoryview(batch))
        at = header.end_offset
    assert at == end
    return found


@given(
    st.integers(0, 2**40),
    st.lists(st.tuples(GAPS, FIELDS), max_size=30),
    GAPS,
    st.sampled_from([600, 2000, MOST_BYTES]),
    st.sampled_from(["none", "zstd", "lz4"]),
)
def test_every_record_is_at_its_offset_and_every_offset_is_covered(
    start: int, gaps: list[tuple[int, Fields]], behind: int, most: int, codec: Codec
) -> None:
    rows, at = [], start
    for gap, fields in gaps:
        rows.append((at + gap, fields))
        at += gap + 1
    assert packed(rows, start, at + behind, most, codec) == rows


def test_batches_are_closed_at_their_size() -> None:
    rows: list[Row] = [(offset, (bytes(1000), b"k", 1, ())) for offset in range(1000)]
    batches = list(pack(rows, 0, 1000, MOST_BYTES, "none", NOW_MS))
    assert {len(batch) > BATCH_BYTES for batch in batches} == {False} and len(batches) == 4


def test_a_batch_that_is_too_large_is_halved_and_one_record_is_named() -> None:
    chance = Random(1)
    rows: list[Row] = [(offset, (chance.randbytes(1000), None, 1, ())) for offset in range(7, 107)]
    assert packed(rows, 7, 107, most=5000) == rows
    rows[40] = (47, (chance.randbytes(6000), None, 1, ()))
    with pytest.raises(RecordTooLarge) as raised:
        packed(rows, 7, 107, most=5000)
    assert raised.value.offset == 47 and 6000 < raised.value.size < 6200


def test_a_record_that_no_topic_takes_is_named() -> None:
    rows: list[Row] = [(3, (bytes(65 << 20), None, 1, ()))]
    with pytest.raises(RecordTooLarge) as raised:
        packed(rows, 0, 4)
    assert (raised.value.offset, raised.value.size) == (3, 0)


def test_tombstones_in_a_batch_with_gaps_are_kept_from_now_on() -> None:
    [batch] = pack([(1, (None, b"k", 1, ())), (3, (b"v", b"k", 1, ()))], 0, 5, MOST_BYTES, "none", NOW_MS)
    assert first_compacted_ms(batch) == NOW_MS
