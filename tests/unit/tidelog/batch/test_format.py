"""The batch codec: what goes in comes out, what is damaged is refused, and yesterday's files still read."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from pathlib import Path

import cbor2
import lz4.frame
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.batch import body as batch_body
from tidelog.batch import format as records
from tidelog.batch.format import (
    HEADER,
    MAX_RECORDS,
    BatchHeader,
    NewRecord,
    check_batch,
    check_body,
    declares_size,
    decode_batch,
    decode_columns,
    encode_batch,
    read_header,
    split,
    stamp_prefix,
)
from tidelog.errors import CorruptBatch

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES: dict[str, list[NewRecord]] = {
    "one": [NewRecord(b"hello", None, 1_700_000_000_000)],
    "full": [
        NewRecord(b"first", b"k1", 1_700_000_000_000, (("trace", b"\x01\x02"), ("trace", b""))),
        NewRecord(None, b"k2", 1_699_999_999_000),
        NewRecord(b"", None, 1_700_000_000_005, (("näme", b"x"),)),
    ],
    "many": [NewRecord(b"value-%d" % i, b"key-%d" % (i % 3), 5 + i) for i in range(300)],
}
SMALL = EXAMPLES["full"]

optional_bytes = st.none() | st.binary(max_size=20)
new_records = st.builds(
    NewRecord,
    optional_bytes,
    optional_bytes,
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2).map(tuple),
)


def with_header(batch: bytes, body: bytes | None = None, **fields: int) -> bytes:
    """The batch with other header fields or body, and a CRC that fits."""
    stored = batch[64:] if body is None else body
    header = read_header(batch)._replace(batch_length=64 + len(stored))._replace(**fields)
    rest = HEADER.pack(*header)[16:] + stored
    return stamp_prefix(header.base_offset, header.leader_epoch, crc32c(rest)) + rest


def with_body(body: bytes, **fields: int) -> bytes:
    return with_header(encode_batch(SMALL), body, **{"body_length": len(body), **fields})


def refused(batch: bytes, why: str | None = None) -> None:
    with pytest.raises(CorruptBatch, match=why):
        decode_batch(batch)
    assert not gateway_accepts(batch)


def gateway_accepts(batch: bytes) -> bool:
    """Whether the checks of the gateway pass, which read only the heads of the values."""
    try:
        check_body(check_batch(batch), batch)
    except CorruptBatch:
        return False
    return True


@given(
    st.lists(new_records, min_size=1, max_size=20),
    st.sampled_from(records.CODECS),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_an_encoded_batch_decodes_to_its_records(written, codec, producer_id, producer_epoch, sequence):
    batch = encode_batch(
        written, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
    )
    stamped = stamp_prefix(1000, 7, read_header(batch).crc32c) + batch[16:]
    header = check_batch(memoryview(stamped))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        producer_id,
        producer_epoch,
        sequence,
    )
    assert (header.base_offset, header.end_offset, header.leader_epoch) == (1000, 1000 + len(written), 7)
    assert header.size == len(stamped) and not header.is_control
    read = decode_batch(stamped, topic="t", partition=3)
    assert [NewRecord(r.value, r.key, r.timestamp_ms, r.headers) for r in read] == written
    assert [r.offset for r in read] == list(range(1000, 1000 + len(written)))
    assert {(r.topic, r.partition, r.leader_epoch) for r in read} == {("t", 3, 7)}
    columns = decode_columns(stamped)
    assert columns.values == [r.value for r in written] and columns.keys == [r.key for r in written]


@given(st.binary(max_size=200) | st.binary(max_size=120).map(lambda b: with_body(b, record_count=1)))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_batch_or_refused(data):
    with suppress(CorruptBatch):
        decode_batch(data)


@given(
    st.lists(new_records | st.sampled_from([2, 24, 256, 70_000]).map(lambda n: NewRecord(bytes(n))), min_size=1),
    st.integers(0, 2**32),
    st.binary(max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_the_gateway_accepts_exactly_the_batches_that_a_reader_can_decode(written, place, instead):
    """The body as it was, and with some bytes replaced, most often in one of the first heads."""
    batch = encode_batch(written)
    assert gateway_accepts(batch)
    body = bytearray(batch[64:])
    at = place % min(len(body), 40)
    body[at : at + len(instead)] = instead
    changed = with_header(batch, bytes(body), body_length=len(body))
    readable = True
    try:
        decode_batch(changed)
    except CorruptBatch:
        readable = False
    assert gateway_accepts(changed) == readable


@pytest.mark.parametrize("codec", records.CODECS)
@pytest.mark.parametrize("size", [0, 100, 512])
def test_values_are_not_decoded_by_the_gateway(monkeypatch, codec, size):
    read = []
    monkeypatch.setattr(batch_body.cbor2, "load", lambda source, **_: read.append(source.read()) or {})
    counts = (1, 23, 24, 255, 256, 70_000)
    for count in counts:
        for key in (None, b"k"):
            batch = encode_batch([NewRecord(bytes(size), key)] * count, codec=codec)
            check_body(check_batch(batch), batch)
    assert read == [cbor2.dumps({"k": [b"k"] * count}) for count in counts], "the keys alone"


@pytest.mark.parametrize("codec", records.CODECS)
def test_a_flip_of_any_bit_behind_the_stamp_is_noticed(codec):
    batch = encode_batch(SMALL, codec=codec)
    for position in range(12, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBatch):
            check_batch(damaged)


def test_a_cut_at_any_byte_is_noticed():
    batch = encode_batch(SMALL)
    for length in range(len(batch)):
        with pytest.raises(CorruptBatch):
            check_batch(batch[:length])
        if length:
            with pytest.raises(CorruptBatch):
                list(split(batch + batch[:length]))
    refused(batch + b"\0", "declares length")


def test_split_yields_whole_batches_without_copying():
    batches = [encode_batch(records_) for records_ in EXAMPLES.values()]
    joined = b"".join(batches)
    assert [bytes(view) for _, view in split(joined)] == batches
    assert all(view.obj is joined for _, view in split(joined))
    assert list(split(b"")) == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"magic": 0}, "magic"),
        ({"version": 2}, "version"),
        ({"header_length": 72}, "header length"),
        ({"batch_length": 63}, "less than its header"),
        ({"batch_length": 65}, "declares length"),
        ({"attributes": 3}, "codec"),
        ({"attributes": 1 << 6}, "attributes"),
        ({"attributes": 1 << 15}, "attributes"),
        ({"record_count": 0}, "count 0"),
        ({"record_count": 2}, "not an array of 2"),
        ({"record_count": 4}, "not an array of 4"),
        ({"record_count": 1 << 18}, "records in"),
        ({"record_count": (1 << 18) + 1}, "at most 262144"),
        ({"base_offset": -1}, "base offset"),
        ({"base_offset": 2**63 - 2}, "base offset"),
        ({"first_timestamp": -1}, "timestamps"),
        ({"max_timestamp": 2**62}, "timestamps"),
        ({"max_timestamp": 1_700_000_000_004}, "timestamps"),
        ({"body_length": 1}, "body length"),
        ({"body_length": 2**32 - 1}, "larger than"),
    ],
)
def test_a_header_that_lies_is_refused_by_name(fields, why):
    refused(with_header(encode_batch(SMALL), **fields), why)


def test_a_small_batch_of_many_records_is_refused_before_it_is_decoded():
    many = encode_batch([NewRecord(None, None, 0, ())] * MAX_RECORDS, codec="zstd")
    assert len(decode_batch(many)) == MAX_RECORDS and len(many) < 4096
    with pytest.raises(ValueError, match="1 to 262144 records"):
        encode_batch([NewRecord(None, None, 0, ())] * (MAX_RECORDS + 1))


def test_the_header_alone_is_read_at_a_position():
    batch = encode_batch(SMALL)
    assert read_header(b"xyz" + batch, 3) == read_header(batch)
    with pytest.raises(CorruptBatch, match="shorter"):
        read_header(batch[:63])
    assert len(HEADER.pack(*BatchHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))) == 64


@pytest.mark.parametrize(
    "columns",
    [
        {"v": [b"", b"", "text"]},
        {"v": [b"", b"", 1]},
        {"v": b"abc"},
        {"k": [b"", b"", b""]},
        {"v": [b"", b"", b""], "k": [b""]},
        {"v": [b"", b"", b""], "k": [1, 2, 3]},
        {"v": [b"", b"", b""], "t": [0, 1, "x"]},
        {"v": [b"", b"", b""], "t": [0, 1.0, 2]},
        {"v": [b"", b"", b""], "t": [0, True, 2]},
        {"v": [b"", b"", b""], "t": 7},
        {"v": [b"", b"", b""], "t": [0, 1]},
        {"v": [b"", b"", b""], "t": [0, -1_700_000_000_001, 5]},
        {"v": [b"", b"", b""], "h": [[], [], [["a", "b"]]]},
        {"v": [b"", b"", b""], "h": [[], [], [["a", b"b", b"c"]]]},
        {"v": [b"", b"", b""], "h": [[], [], 5]},
        {"v": [b"", b"", b""], "h": [[], [], [5]]},
        {"v": [b"", b"", b""], "h": {}},
        *({"v": [wrong, b"", b""]} for wrong in (5, "x", "x" * 30, "x" * 300, "x" * 70_000, [b""])),
        [b"", b"", b""],
        "v",
    ],
)
def test_columns_of_the_wrong_shape_are_refused(columns):
    refused(with_body(cbor2.dumps(columns), max_timestamp=1_700_000_000_000))


@pytest.mark.parametrize(
    "body",
    [
        b"\xa1\x61v\xd9\x01\x02\x83\x40\x40\x40",  # tagged array
        b"\xa2\x61v\x83\x40\x40\x40\x61x\xd8\x23\x61(",  # a tag under an unknown key
        b"\xa1\x61v\x9f\x40\x40\x40\xff",  # indefinite length
        b"\xa2\x61v\x83\x40\x40\x40\x61v\x83\x40\x40\x40",  # a key twice
        b"\xa1\x61v\x83\x40\x40\x40\x00",  # a byte behind the map
        b"\xa1\x61v\x9b\x00\x00\x00\xff\xff\xff\xff\xff" + b"\x40" * 8,  # an array longer than memory
        b"\xa1\x61x" + b"\x81" * 1000,  # deep
        b"\xa1\x61v\x83\x40\x40\x61\xff",  # text that is not UTF-8
        b"\xff",
    ],
)
def test_bodies_that_are_not_plain_cbor_are_refused(body):
    refused(with_body(body, max_timestamp=1_700_000_000_000))


def test_a_body_of_very_many_small_items_is_refused_before_one_of_them_is_made():
    """In 64 MiB there are 64 million empty arrays: each alone takes a reader 60 bytes."""
    head = b"\xa2\x61v\x83\x40\x40\x40\x61h\x9a"
    body = head + (4 << 20).to_bytes(4, "big") + b"\x80" * (4 << 20)
    tracemalloc.start()
    refused(with_body(body, max_timestamp=1_700_000_000_000), "more than 2097152 items")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body)


def test_items_are_counted_alike_when_encoding_and_decoding(monkeypatch):
    """The map; two columns; 3 values; 3 arrays of headers with 2 pairs, of 3 items each."""
    rows = [NewRecord(b"a", None, 5, (("x", b"1"), ("y", b"2"))), NewRecord(b"b", None, 5), NewRecord(b"c", None, 5)]
    monkeypatch.setattr(batch_body, "MAX_ITEMS", 17)
    batch = encode_batch(rows)
    assert [record.value for record in decode_batch(batch)] == [b"a", b"b", b"c"]
    monkeypatch.setattr(batch_body, "MAX_ITEMS", 16)
    with pytest.raises(ValueError, match="16 CBOR items, not 17"):
        encode_batch(rows)
    refused(batch, "more than 16 items")


def test_other_columns_are_ignored():
    batch = with_body(cbor2.dumps({"v": [b"a", b"b", None], "later": 1}), max_timestamp=1_700_000_000_000)
    assert [r.value for r in decode_batch(batch)] == [b"a", b"b", None]


def test_decompression_bombs_are_refused_before_they_unfold():
    bomb = b"\0" * (1 << 20)
    for codec, frame in ((1, zstandard.compress(bomb)), (2, lz4.frame.compress(bomb))):
        refused(with_body(frame, attributes=codec, body_length=1000), "frame")
        refused(with_body(frame, attributes=codec, body_length=2**30), "larger than")
        refused(with_body(frame + frame, attributes=codec, body_length=1 << 20))
        refused(with_body(frame[:-3], attributes=codec, body_length=1 << 20))
        refused(with_body(b"junk", attributes=codec))
        refused(with_body(b"", attributes=codec, body_length=10))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bomb)
    refused(with_body(unsized, attributes=1, body_length=1000), "does not decompress")
    stream = zstandard.ZstdCompressor().compressobj()
    pieces = [stream.compress(b"x") + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for _ in range(513)]
    refused(with_body(b"".join(pieces) + stream.flush(), attributes=1, body_length=513), "more than 512 blocks")


def test_a_zstd_frame_need_not_declare_its_size():
    body = cbor2.dumps({"v": [b"a", b"b", b"c" * 300_000]})
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    stream = zstandard.ZstdCompressor().compressobj()
    flushed = stream.compress(body[:10]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    flushed += stream.compress(body[10:]) + stream.flush()
    for frame in (unsized, flushed):
        batch = with_body(frame, attributes=1, body_length=len(body), max_timestamp=1_700_000_000_000)
        assert [record.value for record in decode_batch(batch)] == [b"a", b"b", b"c" * 300_000]
        header = read_header(batch)
        assert not declares_size(header, batch)
        refused(with_body(frame[:-1], attributes=1, body_length=len(body)))
    declared = with_body(zstandard.compress(body), attributes=1, body_length=len(body))
    assert declares_size(read_header(declared), declared)


def test_records_that_no_batch_can_hold_are_refused_when_encoding():
    for bad in (
        [],
        [NewRecord("text")],  # type: ignore[arg-type]
        [NewRecord(memoryview(b"x"))],  # type: ignore[arg-type]
        [NewRecord(b"", b"", 1.5)],  # type: ignore[arg-type]
        [NewRecord(b"", b"", -1)],
        [NewRecord(b"", b"", 2**63)],
        [NewRecord(b"", b"", 0, (("a", "b"),))],  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError):
            encode_batch(bad)
    for fields in ({"producer_id": -1}, {"producer_epoch": 2**16}, {"base_sequence": 2**32}, {"codec": "gzip"}):
        with pytest.raises(ValueError):
            encode_batch(SMALL, **fields)


def test_a_body_too_large_to_be_read_is_not_written(monkeypatch):
    monkeypatch.setattr(records, "MAX_BODY_BYTES", 100)
    with pytest.raises(ValueError, match="larger than 100"):
        encode_batch([NewRecord(b"x" * 100)])


def golden(name: str, codec: str) -> bytes:
    batch = encode_batch(EXAMPLES[name], codec=codec, producer_id=77, producer_epoch=2, base_sequence=40)
    return stamp_prefix(123_456_789_012, 9, read_header(batch).crc32c) + batch[16:]


@pytest.mark.parametrize("codec", records.CODECS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_files_still_read(name, codec):
    read = decode_batch((GOLDEN / f"batch-v1-{name}-{codec}.bin").read_bytes())
    assert [NewRecord(r.value, r.key, r.timestamp_ms, r.headers) for r in read] == EXAMPLES[name]
    assert (read[0].offset, read[0].leader_epoch) == (123_456_789_012, 9)


@pytest.mark.parametrize("name", EXAMPLES)
def test_batches_equal_the_golden_files(name):
    """Uncompressed ones: a compressor may find a shorter form in its next release."""
    assert (GOLDEN / f"batch-v1-{name}-none.bin").read_bytes() == golden(name, "none")
