"""The codec: what it writes, what it takes, and that hostile headers are refused with the right code and cheaply."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.errors import ProtocolError, TidelogError
from tidelog.wire import codec
from tidelog.wire.cbor import QUICK_BYTES, bytes_head, check_item_count, load_prefix, loads_strict
from tidelog.wire.codec import (
    ANSWERS,
    MAX_PARTS,
    SERVICE,
    STRANGER,
    Decoded,
    EncodedAnswer,
    decode,
    encode,
    encode_array,
    encode_fields,
    encode_part,
)
from tidelog.wire.fields import MAX_INT
from tidelog.wire.link_session import MAX_MESSAGE_BYTES
from tidelog.wire.messages import (
    CommitOffsets,
    Credit,
    Done,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    GroupPosition,
    Heartbeat,
    MetadataUpdate,
    Notify,
    PartitionInfo,
    Produce,
    ProducePart,
    ReadAnswer,
    TopicInfo,
    Watch,
)

HEARTBEAT = {"op": "heartbeat", "id": 1, "node": "r1", "broker_epoch": 1}


def read(data: bytes, answer: type | None = None) -> Decoded:
    return decode(data, answers=lambda _: answer)


def close_code(error: TidelogError) -> object:
    return error.detail["close_code"]


@pytest.mark.parametrize("size", [1, 23, 24, 255, 256, 65535, 65536, 1 << 20])
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_payload_follows_the_head_untouched(size: int, pieces: int) -> None:
    payload = [memoryview(bytes(size))] * pieces
    head, bulk = encode(ReadAnswer(1, 2, 3, payload=payload), re=5)
    assert bulk is payload
    whole = head + b"".join(payload)
    assert whole[len(head) - len(bytes_head(size * pieces)) :] == cbor2.dumps(bytes(size * pieces))
    message = read(whole, ReadAnswer).message
    assert isinstance(message, ReadAnswer) and isinstance(message.payload, memoryview)
    assert message.payload.obj is whole and message.payload == bytes(size * pieces)


def test_no_payload_is_no_item() -> None:
    for empty in (b"", [], [b"", b""], memoryview(b"")):
        head, bulk = encode(ReadAnswer(1, 2, 3, payload=empty), re=5)
        assert bulk == b"" and cbor2.loads(head) == {"re": 5, "leader_epoch": 1, "high_watermark": 2, "log_start": 3}
    assert read(head + b"\x40", ReadAnswer).message == ReadAnswer(1, 2, 3)  # an empty one is as good as none


def test_defaults_stay_at_home() -> None:
    part = ProducePart(1, "t", 0, 2, 500, 3)
    head, _ = encode(Produce((part,), b"abc"))
    assert load_prefix(head, 4096, 100)[0] == {
        "op": "produce",
        "parts": [{"id": 1, "topic_id": "t", "partition": 0, "acks": 2, "timeout_ms": 500, "size": 3}],
    }


def many_parts(count: int) -> Fetch:
    huge = MAX_INT
    return Fetch("r1", huge, huge, tuple(FetchPart(f"{n:032x}", n, *[huge] * 5, True) for n in range(count)), True)


def test_a_service_asks_about_many_partitions_at_a_time_but_not_about_all() -> None:
    asked = many_parts(MAX_PARTS)
    head, _ = encode(asked, id=1)
    assert decode(head, answers=lambda _: None, limits=SERVICE).message == asked
    with pytest.raises(ProtocolError, match="more than 16384 items"):
        decode(head, answers=lambda _: None, limits=STRANGER)
    with pytest.raises(ProtocolError, match="more than 32768 items"):
        decode(encode(many_parts(2 * MAX_PARTS), id=1)[0], answers=lambda _: None, limits=SERVICE)


def test_an_answer_can_hold_ten_thousand_partitions() -> None:
    parts = tuple(FetchedPart(f"{n:032x}", n, 1, n, 0) for n in range(10_000))
    head, _ = encode(FetchAnswer(parts), re=1)
    assert decode(head, answers=lambda _: FetchAnswer, limits=ANSWERS).message == FetchAnswer(parts)


def test_metadata_of_a_hundred_thousand_partitions_with_offsets_fit_into_an_answer() -> None:
    servers = ("r11", "r12", "r13")
    one = PartitionInfo(9_999, servers, servers, servers[0], 999, 999, 1 << 33, 1 << 34, bytes=1 << 40)
    topics = encode_array("topics", [encode_part(TopicInfo("0" * 32, "t", {}, (one,) * 1_000))] * 100)
    content = encode_fields(cluster="c", index=1) + topics + encode_array("servers", [])
    head, _ = encode(EncodedAnswer(4, content), re=1)
    data = head + content
    assert load_prefix(data, ANSWERS.header_bytes, ANSWERS.header_items)[1] == len(data) <= MAX_MESSAGE_BYTES


def test_a_request_passed_on_by_a_gateway_is_never_too_long_for_a_server() -> None:
    """It may grow on the way: a gateway writes settings out, fills in epochs, adds who asked."""
    commit = CommitOffsets("g", (GroupPosition("t", 0, 1, 2),) * (STRANGER.header_items // 9 - 2), "m" * 32, 9)
    decode(encode(commit, id=1)[0], answers=lambda _: None, limits=STRANGER)
    grown = replace(commit, group="g" * STRANGER.header_bytes, instance="i", positions=commit.positions * 2)
    assert decode(encode(grown, id=MAX_INT)[0], answers=lambda _: None, limits=SERVICE).message == grown


class Looked(bytes):
    """Bytes that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        self.looks += isinstance(key, int)
        return super().__getitem__(key)


@pytest.mark.parametrize("item", [b"\x80", b"\xa0", b"\x00", b"\x60"])
def test_too_many_items_are_refused_before_one_of_them_is_looked_at(item: bytes) -> None:
    head = b"\xa1\x61x\x9a" + (1 << 20).to_bytes(4, "big")
    data = Looked(head + item * (1 << 20))
    with pytest.raises(ProtocolError, match="more than 32768 items"):
        check_item_count(data, SERVICE.header_items)
    assert data.looks <= 3
    declared_late = Looked(b"\xa1\x61x\x9a" + (1 << 14).to_bytes(4, "big") + (b"\x84" + item * 4) * (1 << 14))
    with pytest.raises(ProtocolError, match="more than 32768 items"):
        check_item_count(declared_late, SERVICE.header_items)
    assert declared_late.looks <= SERVICE.header_items


def test_a_long_header_before_a_payload() -> None:
    update = MetadataUpdate(1, payload=b"x" * 100_000)
    head = cbor2.dumps({"op": "metadata_update", "index": 1, "later": "y" * (2 * QUICK_BYTES)})
    message = read(head + cbor2.dumps(update.payload)).message
    assert message == update


def test_the_wrong_kind_of_number_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        encode(Credit(1, 2), id=3)
    with pytest.raises(AssertionError):
        encode(Watch())
    with pytest.raises(AssertionError):
        encode(Done(), id=3)


def test_unknown_things_are_named_not_refused() -> None:
    assert read(cbor2.dumps({"op": "fly", "id": 3, "x": 1})) == Decoded(None, 3, op="fly")
    assert read(cbor2.dumps({"op": "fly"}) + b"\x41x") == Decoded(None, None, op="fly")
    assert read(cbor2.dumps({"re": 3, "x": 1})) == Decoded(None, re=3)


UNDECODABLE = {
    "nothing": b"",
    "half a map": b"\xa2\x62op",
    "trailing garbage": cbor2.dumps(HEARTBEAT) + b"\x00",
    "two maps": cbor2.dumps(HEARTBEAT) * 2,
    "two payloads": cbor2.dumps({"op": "produce", "parts": []}) + b"\x41a\x41b",
    "payload too short": cbor2.dumps({"op": "produce", "parts": []}) + b"\x45ab",
    "payload with a huge length": cbor2.dumps({"op": "produce", "parts": []}) + b"\x5b" + b"\xff" * 8 + b"ab",
    "payload of indefinite length": cbor2.dumps({"op": "produce", "parts": []}) + b"\x5f\x41a\xff",
    "payload cut in its head": cbor2.dumps({"op": "produce", "parts": []}) + b"\x5a\x00",
    "indefinite map": b"\xbf\x62op\x65watch\xff",
    "indefinite text": b"\xa1\x62op\x7f\x65watch\xff",
    "deep nesting": b"\xa1\x61x" + b"\x81" * 100 + b"\x00",
    "very deep nesting": b"\x81" * 200_000,
    "duplicate key": b"\xa2\x62op\x65watch\x62op\x65watch",
    "integer key": b"\xa1\x01\x02",
    "array key": b"\xa1\x80\x02",
    "huge map": b"\xbb\x7f" + b"\xff" * 7,
    "huge array": b"\xa1\x61x\x9b\xff" + b"\xff" * 7,
    "huge text": b"\x7b\x7f" + b"\xff" * 7,
    "huge bytes": b"\x5b\x7f" + b"\xff" * 7,
    "bad UTF-8": b"\xa1\x62op\x62\xff\xfe",
    "reserved": b"\x1c",
    "lone break": b"\xff",
}
MALFORMED = {
    "no map": b"\x80",
    "text of HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "a number": b"\x01",
    "NaN": b"\xf9\x7e\x00",
    "undefined": b"\xf7",
    "neither op nor re": b"\xa0",
    "op is a number": cbor2.dumps({"op": 1}),
    "id is a text": cbor2.dumps({**HEARTBEAT, "id": "1"}),
    "id is True": cbor2.dumps({**HEARTBEAT, "id": True}),
    "id is negative": cbor2.dumps({**HEARTBEAT, "id": -1}),
    "id is 2**63": cbor2.dumps({**HEARTBEAT, "id": 2**63}),
    "request without id": cbor2.dumps({k: v for k, v in HEARTBEAT.items() if k != "id"}),
    "one-way with id": cbor2.dumps({"op": "credit", "id": 1, "sub": 1, "bytes": 1}),
    "re is a text": cbor2.dumps({"re": "1"}),
    "re is negative": cbor2.dumps({"re": -1}),
    "error is a text": cbor2.dumps({"re": 1, "error": "no"}),
    "error without code": cbor2.dumps({"re": 1, "error": {"message": "no"}}),
    "error detail of numbers": cbor2.dumps({"re": 1, "error": {"code": "NOT_LEADER", "detail": {"n": 1}}}),
    "missing keys": cbor2.dumps({"op": "heartbeat", "id": 1}),
    "payload where none belongs": cbor2.dumps(HEARTBEAT) + b"\x41a",
    "NaN for an integer": cbor2.dumps({**HEARTBEAT, "broker_epoch": float("nan")}),
    "a float for an integer": cbor2.dumps({**HEARTBEAT, "broker_epoch": 1.0}),
    "True for an integer": cbor2.dumps({**HEARTBEAT, "broker_epoch": True}),
    "undefined for an integer": cbor2.dumps({**HEARTBEAT, "broker_epoch": cbor2.undefined}),
    "null for a text": cbor2.dumps({**HEARTBEAT, "node": None}),
    "-1 where it means nothing": cbor2.dumps({**HEARTBEAT, "broker_epoch": -1}),
    "2**63": cbor2.dumps({**HEARTBEAT, "broker_epoch": 2**63}),
    "bytes for a text": cbor2.dumps({**HEARTBEAT, "node": b"r1"}),
    "a map for an array": cbor2.dumps({"op": "notify", "parts": {}}),
    "a number for a part": cbor2.dumps({"op": "notify", "parts": [1]}),
    "a part with too little": cbor2.dumps({"op": "notify", "parts": [{"topic_id": "t"}]}),
    "a number in an array of texts": cbor2.dumps({"op": "metadata", "id": 1, "topics": ["a", 1]}),
    "a number in a map of texts": cbor2.dumps({"op": "create_topic", "id": 1, "name": "a", "config": {"a": 1}}),
}


@pytest.mark.parametrize("data", UNDECODABLE.values(), ids=UNDECODABLE)
def test_invalid_cbor_closes_with_1007(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(data, Done)
    assert close_code(caught.value) == 1007


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_violation_of_the_protocol_closes_with_1002(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(data, Done)
    assert close_code(caught.value) == 1002


def test_missing_keys_are_named() -> None:
    with pytest.raises(ProtocolError, match="heartbeat: missing node, broker_epoch"):
        read(cbor2.dumps({"op": "heartbeat", "id": 1}))
    with pytest.raises(ProtocolError, match="NotifyPart: missing partition, leader_epoch"):
        read(cbor2.dumps({"op": "notify", "parts": [{"topic_id": "t"}]}))
    with pytest.raises(ProtocolError, match=r"broker_epoch is not an integer from 0 to 2\*\*63-1"):
        read(cbor2.dumps({**HEARTBEAT, "broker_epoch": "1"}))


@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_tag_is_refused(width: int) -> None:
    """Of one byte all; of two and four every so many, the first 256, and that of self-described CBOR."""
    step = {1: 1, 2: 31, 4: (1 << 20) + 1}[width]
    for tag in {*range(0, 1 << 8 * width, step), *range(256), 55799 % (1 << 8 * width)}:
        head = {1: b"\xd8", 2: b"\xd9", 4: b"\xda"}[width] + tag.to_bytes(width, "big")
        with pytest.raises(ProtocolError, match="tags are not accepted"):
            loads_strict(head + b"\x01", max_items=10)


@pytest.mark.parametrize(
    "attack",
    [
        cbor2.dumps({"op": "watch", "id": 1, "x": [[]] * 200_000}),
        cbor2.dumps({"op": "watch", "id": 1, "x": [""] * 200_000}),
        cbor2.dumps({"op": "watch", "id": 1, "x": [{}] * 200_000}),
        b"\xa1\x61x" + b"\x98\xff" * 100_000,
        b"\xa1" + b"\xc4\x82\x1a\x3b\x9a\xca\x00\x01" * 1000,
        b"\xa1\x61x\x7a\x00\xff\xff\xff" + b"y" * (8 << 20),
    ],
    ids=["arrays", "texts", "maps", "declared arrays", "decimals", "one long text"],
)
def test_attacks_cost_little(attack: bytes) -> None:
    before = time.process_time()
    with pytest.raises(ProtocolError):
        read(attack)
    assert time.process_time() - before < 0.25


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        read(data, FetchAnswer)
    except ProtocolError as error:
        assert close_code(error) in (1002, 1007)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_message_is_decoded_or_refused(data: st.DataObject) -> None:
    head, payload = encode(Produce((ProducePart(1, "t" * 32, 0, 2, 500, 3),), b"abc"))
    whole = bytearray(head + bytes(payload))  # type: ignore[arg-type]
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(whole))
    except ProtocolError as error:
        assert close_code(error) in (1002, 1007)


def test_a_message_may_be_a_bytearray() -> None:
    head, _ = encode(Notify(()))
    assert read(bytearray(head)).message == Notify(())
    assert decode(bytearray(cbor2.dumps(HEARTBEAT)), answers=lambda _: None).message == Heartbeat("r1", 1)


def test_payload_views() -> None:
    assert codec.payload_size([b"ab", memoryview(b"c")]) == 3
    assert codec.payload_view([b"ab", memoryview(b"c")]) == b"abc"
    assert codec.payload_buffers(b"") == [] and codec.payload_buffers(b"a") == [b"a"]
