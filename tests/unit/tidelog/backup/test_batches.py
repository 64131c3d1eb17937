"""Batches on their way into another log: what stays, and what belongs to the log that they come from."""

from __future__ import annotations

import pytest
from support.saved_topics import batch, compacted, with_everything
from tidelog.backup.batches import as_copy, chunks, empty_batches, is_same, likeness
from tidelog.batch.format import MAX_RECORDS, check_batch, decode_batch, encode_control, read_header, stamp_prefix


def placed(data: bytes, offset: int = 40, epoch: int = 2) -> bytes:
    """As it lies in a log."""
    return stamp_prefix(offset, epoch, read_header(data).crc32c) + data[16:]


def test_a_batch_of_no_producer_is_copied_as_it_is() -> None:
    plain = placed(batch(b"a", b"b"))
    assert as_copy(plain) is plain


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_copy_has_the_records_and_offsets_and_nothing_of_the_producer(codec: str) -> None:
    there = placed(
        batch(b"a", None, codec=codec, producer_id=7, producer_epoch=2, base_sequence=9, transactional=True)
    )  # type: ignore[arg-type]
    copy = as_copy(there)
    assert decode_batch(copy) == decode_batch(there)
    header = check_batch(copy)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (
        0,
        0,
        0,
        False,
    )
    assert bytes(copy[64:]) == there[64:]


def test_the_copy_of_a_compacted_batch_keeps_its_gaps() -> None:
    there = compacted(placed(batch(b"a", b"b", b"c", producer_id=7)), 0, 2)
    assert [(r.offset, r.value) for r in decode_batch(as_copy(there))] == [(40, b"a"), (42, b"c")]


def test_an_empty_batch_stands_for_a_control_batch() -> None:
    copy = as_copy(placed(encode_control("leader", timestamp_ms=5)))
    header = check_batch(copy)
    assert (header.base_offset, header.end_offset, header.is_control, header.is_sparse) == (40, 41, False, True)
    assert decode_batch(copy) == []


def test_a_log_with_everything_is_copied_offset_for_offset() -> None:
    copies = [as_copy(data) for data in with_everything().logs[0]]
    assert [(r.offset, r.value) for copy in copies for r in decode_batch(copy)] == [
        (3, b"d"), (4, b"e"), (6, b"g"), (8, b"i"), (12, b"j"), (13, None),
    ]  # fmt: skip
    ends = [read_header(copy).end_offset for copy in copies]
    assert [read_header(copy).base_offset for copy in copies] == [3, *ends[:-1]]
    assert not any(read_header(copy).is_transactional or read_header(copy).is_control for copy in copies)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (7, 7), (5, 5 + MAX_RECORDS), (0, 2 * MAX_RECORDS + 3)])
def test_empty_batches_cover_exactly_the_given_offsets(start: int, end: int) -> None:
    headers = [check_batch(data) for data in empty_batches(start, end)]
    assert len(headers) == -(-(end - start) // MAX_RECORDS)
    assert [header.base_offset for header in headers] == [start, *(header.end_offset for header in headers)][
        : len(headers)
    ]
    assert not headers or headers[-1].end_offset == end
    assert all(decode_batch(data) == [] for data in empty_batches(start, end))


def test_a_batch_is_the_same_in_another_log_whatever_epoch_it_has_there() -> None:
    data = batch(b"a")
    assert is_same(placed(data, epoch=2), placed(data, epoch=9))
    assert not is_same(placed(data), placed(data, offset=41))
    assert not is_same(placed(data), placed(batch(b"b")))


def test_a_copy_is_known_by_its_likeness_also_when_either_is_compacted() -> None:
    there = placed(batch(b"a", b"b", producer_id=7))
    copy = as_copy(there)
    assert likeness(there) == likeness(copy)
    assert likeness(as_copy(compacted(there, 0))) == likeness(copy) == likeness(compacted(bytes(copy), 1))
    assert likeness(placed(batch(b"a", b"other", producer_id=7))) != likeness(copy)


def test_chunks_are_bounded_and_leave_nothing_out() -> None:
    batches = [batch(b"x" * size) for size in (10, 10, 500, 10, 10, 10)]
    cut = list(chunks(batches, max_bytes=2 * len(batches[0]), max_batches=2))
    assert [len(chunk) for chunk in cut] == [2, 1, 2, 1]
    assert [data for chunk in cut for data in chunk] == batches
    assert list(chunks([], 1, 1)) == []
