"""Sparse and control batches: the offsets that they cover, the records that are left, and what readers make of it."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import cbor2
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.batch.format import (
    CODECS,
    CONTROL_FLAG,
    HEADER,
    HEADER_BYTES,
    MAX_RECORDS,
    NO_CHAIN,
    SPARSE_FLAG,
    SPARSE_HEADER_BYTES,
    NewRecord,
    chain_after,
    check_batch,
    decode_batch,
    decode_columns,
    encode_batch,
    encode_control,
    read_header,
    seal_batch,
    split,
    stamp_prefix,
)
from tidelog.batch.sparse import first_compacted_ms, thin_batch
from tidelog.errors import CorruptBatch
from tidelog.types import Position

from unit.tidelog.batch.test_format import GOLDEN, SMALL, golden, new_records
from unit.tidelog.client.core.test_consumer import Bench


def stamped(batch: bytes, base: int = 1000, epoch: int = 7) -> bytes:
    return stamp_prefix(base, epoch, read_header(batch).crc32c) + batch[16:]


def thinned(batch: bytes, keep: list[int], when: int = 5000) -> bytes:
    return thin_batch(decode_columns(batch), batch, keep, when)


def sparse(body: object, **fields: int) -> bytes:
    """A sparse batch of three offsets with this body, whatever it is."""
    batch = thinned(encode_batch(SMALL), [0])
    data = body if isinstance(body, bytes) else cbor2.dumps(body)
    header = read_header(batch)._replace(batch_length=SPARSE_HEADER_BYTES + len(data), body_length=len(data))
    rest = HEADER.pack(*header._replace(**fields))[16:] + batch[64:SPARSE_HEADER_BYTES] + data
    return stamp_prefix(0, 0, crc32c(rest)) + rest


@given(st.lists(new_records, min_size=1, max_size=12), st.sampled_from(CODECS), st.data())
@settings(max_examples=100, deadline=None)
def test_remaining_records_are_read_with_their_own_offsets(written, codec, data):
    batch = stamped(encode_batch(written, codec=codec, producer_id=9, base_sequence=40))
    keep = sorted(data.draw(st.sets(st.integers(0, len(written) - 1))))
    thin = thinned(batch, keep)
    whole, header = read_header(batch), check_batch(thin)
    assert header.is_sparse and not whole.is_sparse
    for name in ("base_offset", "end_offset", "leader_epoch", "producer_id", "base_sequence", "max_timestamp"):
        assert getattr(header, name) == getattr(whole, name)
    assert [r for r in decode_batch(batch) if r.offset - 1000 in keep] == decode_batch(thin)
    again = thinned(thin, list(range(0, len(keep), 2)), when=9999)
    assert decode_batch(again) == decode_batch(thin)[::2]
    assert (first_compacted_ms(batch), first_compacted_ms(thin), first_compacted_ms(again)) == (None, 5000, 5000)
    assert [bytes(view) for _, view in split(thin + batch + again)] == [thin, batch, again]


def test_a_batch_without_records_still_covers_its_offsets():
    empty = thinned(stamped(encode_batch(SMALL)), [])
    assert decode_batch(empty) == [] and read_header(empty).end_offset == 1003
    assert len(empty) < 110


def test_the_hash_chain_is_that_of_the_batch_before_it_was_compacted():
    batch = stamped(encode_batch(SMALL, codec="lz4"))
    thin = thinned(batch, [1])
    for each in (batch, memoryview(batch), batch[:64], thin, thin[:SPARSE_HEADER_BYTES], thinned(thin, [])):
        assert chain_after(NO_CHAIN, each) == chain_after(NO_CHAIN, batch)
    other = bytearray(batch)
    for position in range(64):
        other[position] ^= 1
        if position != 19:
            assert chain_after(NO_CHAIN, other) != chain_after(NO_CHAIN, batch)
        other[position] ^= 1
    assert chain_after(chain_after(NO_CHAIN, batch), batch) != chain_after(NO_CHAIN, batch)


def test_a_control_batch_covers_one_offset_and_has_no_record():
    batch = stamped(encode_control("epoch", timestamp_ms=77))
    header = check_batch(batch)
    assert header.is_control and header.record_count == 1 and header.max_timestamp == 77
    assert decode_batch(batch) == []
    assert len(decode_columns(batch).offsets) == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"v": []}, "column o"),
        ({"o": 3, "v": []}, "column o"),
        ({"o": [0], "v": []}, "not an array of 1"),
        ({"o": [], "v": [b""]}, "not an array of 0"),
        ({"o": [1, 1], "v": [b"", b""]}, "does not rise"),
        ({"o": [2, 1], "v": [b"", b""]}, "does not rise"),
        ({"o": [-1], "v": [b""]}, "does not rise"),
        ({"o": [3], "v": [b""]}, "does not rise"),
        ({"o": [1.0], "v": [b""]}, "not an array of integers"),
        ({"o": [True], "v": [b""]}, "not an array of integers"),
        ({"o": [1], "v": ["text"]}, "bytes or None"),
        ({"o": [1], "v": [b""], "t": [2**62]}, "timestamps"),
        ({"o": [1], "v": [b""], "t": [-(2**62)]}, "timestamps"),
        ({"o": [1], "v": [b""], "t": []}, "not an array of 1"),
        ({"o": [], "v": [], "h": [[]]}, "not an array of 0"),
        ({"o": [0, 1, 2, 3], "v": [b""] * 4}, "does not rise"),
    ],
)
def test_bodies_that_are_no_thinned_batch_are_refused(body, why):
    with pytest.raises(CorruptBatch, match=why):
        decode_batch(sparse(body))


def test_a_count_costs_nothing_however_large():
    """It is the number of offsets covered: the body alone says how many records there are."""
    large = sparse({"o": [MAX_RECORDS - 1], "v": [b"x"]}, record_count=MAX_RECORDS, max_timestamp=2**62)
    assert [record.offset for record in decode_batch(large)] == [MAX_RECORDS - 1]


@pytest.mark.parametrize(
    "fields", [{"header_length": 64}, {"attributes": 0}, {"attributes": CONTROL_FLAG}, {"batch_length": 87}]
)
def test_the_flag_and_the_length_of_the_header_belong_together(fields):
    with pytest.raises(CorruptBatch):
        check_batch(sparse({"o": [], "v": []}, **fields))
    batch = bytearray(encode_batch(SMALL))
    batch[25] |= SPARSE_FLAG
    with pytest.raises(CorruptBatch, match="header length"):
        read_header(batch)


@given(st.binary(max_size=120))
@settings(max_examples=200, deadline=None)
def test_any_body_is_read_or_refused(body):
    with suppress(CorruptBatch):
        decode_batch(sparse(body))


@pytest.mark.parametrize("codec", CODECS)
def test_a_flip_of_any_bit_behind_the_stamp_is_noticed(codec):
    batch = thinned(encode_batch(SMALL, codec=codec), [0, 2])
    for position in range(12, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBatch):
            check_batch(damaged)


def test_sparse_and_control_batches_equal_the_golden_files_and_are_readable():
    whole = golden("full", "none")
    thin = (GOLDEN / "batch-v1-sparse-none.bin").read_bytes()
    assert thin == thin_batch(decode_columns(whole), whole, [0, 2], 1_700_000_100_000)
    assert decode_batch(thin) == [decode_batch(whole)[place] for place in (0, 2)]
    control = (GOLDEN / "batch-v1-control.bin").read_bytes()
    assert control == stamped(encode_control("epoch", timestamp_ms=1_700_000_000_000), 123_456_789_012, 9)
    assert (
        chain_after(NO_CHAIN, whole).hex() == chain_after(NO_CHAIN, thin).hex() == "96095aae05f9f97d3967eeed1efa80bc"
    )


# --- consumers -------------------------------------------------------------------------------------------


def dense(base: int, count: int) -> bytes:
    return stamped(encode_batch([NewRecord(b"v", None, 5)] * count), base, 1)


def left(bench: Bench) -> list[int]:
    return [offset for _, offset in bench.drain()]


def test_a_consumer_skips_compacted_records_and_control_batches():
    bench = Bench()
    bench.up()
    thin, empty, control = thinned(dense(0, 4), [1, 3]), thinned(dense(4, 3), []), stamped(encode_control("e"), 7, 1)
    bench.deliver(1, thin, empty, control, dense(8, 2))
    assert left(bench) == [1, 3, 8, 9]
    assert bench.core.positions == {0: Position(1, 10)}


def test_a_consumer_that_begins_or_ends_within_a_thin_batch_gets_its_part():
    bench = Bench({0: Position(-1, 2)}, ends={0: 12})
    bench.up()
    bench.deliver(1, thinned(dense(0, 6), [0, 1, 4]), thinned(dense(6, 10), [0, 5, 6, 9]))
    assert left(bench) == [4, 6, 11]
    assert bench.core.is_finished


def test_a_batch_that_is_missing_is_a_gap_all_the_same():
    bench = Bench()
    bench.up()
    bench.deliver(1, thinned(dense(0, 4), []), thinned(dense(5, 2), [0]))
    assert bench.core.take_batch() is not None
    with pytest.raises(Exception, match="passed over offsets 4 to 4"):
        bench.core.take_batch()


def test_spark_gets_the_same_rows():
    arrow = pytest.importorskip("tidelog.spark.read.arrow", reason="pyarrow is not installed")
    rows = arrow.row_buffer("orders", False)
    rows.add(0, thinned(dense(0, 6), [0, 1, 4, 5]), 1, 5)
    rows.add(0, stamped(encode_control("epoch"), 6, 1), 6, 7)
    rows.add(0, thinned(dense(7, 3), []), 7, 10)
    rows.add(0, dense(10, 2), 10, 12)
    [batch] = arrow.take_tables(rows)
    assert batch.column("offset").to_pylist() == [1, 4, 10, 11]
    assert batch.num_rows == 4 and set(batch.column("leader_epoch").to_pylist()) == {1}


def test_a_batch_that_would_become_larger_than_any_topic_takes_stays_as_it_is():
    """Its producer packed it better than a broker does; nobody could send or fetch the result."""
    block = Random(1).randbytes(700_000)
    records = [NewRecord(block, b"key-%d" % number) for number in range(24)]
    loose = encode_batch(records, codec="zstd")
    body = encode_batch(records)[HEADER_BYTES:]
    header = read_header(loose)
    tight = seal_batch(header, zstandard.ZstdCompressor(level=12).compress(body))
    assert len(loose) > 10 << 20 and len(tight) < 1 << 20
    assert thin_batch(decode_columns(tight), tight, list(range(1, 24)), 1) == tight
    few = thin_batch(decode_columns(tight), tight, [3, 9], 1)
    assert [record.key for record in decode_batch(few)] == [b"key-3", b"key-9"], "some more room is no matter"
