"""Records in bodies and answers, keys of requests, and statuses. Tests ``record_bodies.py``, ``record_formats.py``,
``idempotency.py`` and ``responses.py``."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.acl import share_of_principal
from tidelog.batch.format import NewRecord, Record
from tidelog.errors import CODES, TidelogError
from tidelog.types import PRODUCER_IDS_END, REPORTED_IDS_END, share_of
from tidelog_gateway.http.idempotency import is_same, key_of, partition_of_key, producer_id_of
from tidelog_gateway.http.record_bodies import record_of_line, records_of_document, records_of_lines
from tidelog_gateway.http.record_formats import (
    CBOR,
    FORMATS,
    JSON,
    NDJSON,
    RAW,
    Window,
    as_document,
    line,
    negotiate,
    written,
)
from tidelog_gateway.http.responses import STATUSES, HttpError, problem, refusal, response_head, status_of

some_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)


@given(some_bytes, some_bytes, headers, st.integers(0, 2**63 - 1))
def test_a_record_that_was_read_can_be_sent_back(
    key: bytes | None, value: bytes | None, pairs: tuple[tuple[str, bytes], ...], time_ms: int
) -> None:
    text = line(Record("t", 0, 7, 3, time_ms, key, value, pairs))
    assert text.count(b"\n") == 1, "one line"
    assert record_of_line(text, 1, now_ms=5) == NewRecord(value, key, time_ms, pairs)


def test_a_document_has_one_record_or_many() -> None:
    both = {"records": [{"value": "a", "key": "k", "headers": {"n": "v"}}, {"value": None, "timestamp_ms": 9}]}
    assert records_of_document(json.dumps(both).encode(), 5) == [
        NewRecord(b"a", b"k", 5, (("n", b"v"),)),
        NewRecord(None, None, 9, ()),
    ]
    assert records_of_document(b'{"value_b64": "/w=="}', 5) == [NewRecord(b"\xff", None, 5)]


def test_lines_are_records_and_empty_ones_are_passed_over() -> None:
    found = records_of_lines(b'\n{"value": "a"}\r\n \r\n{"value": "b"}', 5)
    assert found == [NewRecord(b"a", None, 5), NewRecord(b"b", None, 5)]
    with pytest.raises(HttpError, match="line 3"):
        records_of_lines(b'{"value": "a"}\n\n{"value": 1}\n', 5)


def test_lines_of_too_many_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog_gateway.http.record_bodies.MAX_RECORDS", 2)
    assert len(records_of_lines(b'{"value": "a"}\n' * 2, 5)) == 2
    with pytest.raises(HttpError) as refused:
        records_of_lines(b'{"value": "a"}\n' * 3, 5)
    assert refused.value.status == 413


def test_data_with_control_characters_is_no_text_since_it_would_grow() -> None:
    found = as_document(Record("t", 0, 3, 1, 50, b"a\tb\r\nc", b"\x01" * 9, ()))
    assert (found["key"], found["value_b64"]) == ("a\tb\r\nc", "AQEBAQEBAQEB")
    for data in (b"\0", b"\x1b[m", "\x00é".encode()):
        assert len(line(Record("", 0, 0, 0, 0, None, data, ()))) < 120


WRONG = {
    "no JSON": b"{",
    "no UTF-8": b'{"value": "\xff"}',
    "not a record": b"[1]",
    "no value": b'{"key": "a"}',
    "an unknown field": b'{"value": "a", "vlaue": "b"}',
    "something beside the records": b'{"records": [{"value": "a"}], "acks": "none"}',
    "no records": b'{"records": []}',
    "a number for a value": b'{"value": 1}',
    "an object for a value": b'{"value": {}}',
    "value twice": b'{"value": "a", "value": "b"}',
    "both forms of a value": b'{"value": "a", "value_b64": "YQ=="}',
    "no base64": b'{"value_b64": "?"}',
    "half a surrogate pair": b'{"value": "\\ud800"}',
    "half a surrogate pair in the name of a header": b'{"value": "a", "headers": {"\\ud800": "b"}}',
    "a header without a value": b'{"value": "a", "headers": [{"name": "b"}]}',
    "a header without a name": b'{"value": "a", "headers": [{"value": "b"}]}',
    "headers that are a text": b'{"value": "a", "headers": "b"}',
    "a time before 1970": b'{"value": "a", "timestamp_ms": -1}',
    "a time that is true": b'{"value": "a", "timestamp_ms": true}',
    "NaN": b'{"value": "a", "timestamp_ms": NaN}',
    "a number of very many digits": b'{"value": "a", "timestamp_ms": ' + b"9" * 5000 + b"}",
    "deep nesting": b'{"value": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_document_that_is_wrong_is_refused_whole(body: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        records_of_document(body, 5)
    assert refused.value.status == 400


def test_a_document_that_is_very_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HttpError) as refused:
        records_of_document(b"[" * (1 << 20) + b" ", 5)
    assert refused.value.status == 413


RECORDS = [
    Record("t", 0, 3, 1, 50, b"k", b"v", (("n", b"\xff"),)),
    Record("t", 0, 5, 2, 60, None, None, ()),
]
WINDOW = Window(RECORDS, 7, 2, 9)


def test_each_format_has_the_same_records_and_says_where_to_go_on() -> None:
    answers = {media_type: written(WINDOW, media_type) for media_type in FORMATS}
    for answer in answers.values():
        assert dict(answer.headers)["tidelog-next-offset"] == "7"
        assert dict(answer.headers)["tidelog-next-epoch"] == "2"
        assert dict(answer.headers)["tidelog-high-watermark"] == "9"
    documents = [as_document(record) for record in RECORDS]
    place: dict[str, Any] = {"next_offset": 7, "next_epoch": 2, "high_watermark": 9}
    assert json.loads(answers[JSON].body) == {"records": documents, **place}
    assert [json.loads(text) for text in answers[NDJSON].body.splitlines()] == documents
    found = cbor2.loads(answers[CBOR].body)
    assert found["records"][0]["value"] == b"v" and found["records"][0]["headers"] == [["n", b"\xff"]]
    assert {**found, "records": []} == {"records": [], **place}
    assert (answers[RAW].status, answers[RAW].body, dict(answers[RAW].headers)["tidelog-key"]) == (200, b"v", "k")


def test_a_single_value_that_is_not_there_is_no_content() -> None:
    assert written(Window([], 7, 2, 9), RAW).status == 204
    nothing = written(Window(RECORDS[1:], 7, 2, 9), RAW)
    assert (nothing.status, dict(nothing.headers)["tidelog-offset"]) == (204, "5")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/x-ndjson", NDJSON),
        ("text/html, application/cbor;q=0.5, */*;q=0.1", CBOR),
        ("application/*;q=0.2, application/json;q=0.1", NDJSON),
        ("application/json;q=0, application/octet-stream", RAW),
        ("application/json;q=x, application/cbor", CBOR),
    ],
)
def test_the_client_chooses_the_format(accept: str, chosen: str) -> None:
    assert negotiate(accept, FORMATS) == chosen


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(HttpError) as refused:
        negotiate("text/html, application/json;q=0", (JSON,))
    assert refused.value.status == 406


# --- Idempotency-Key ---------------------------------------------------------------------------------------


@given(st.text(max_size=10), st.text(max_size=10))
def test_the_producer_id_of_a_key_is_beyond_those_of_clients_and_in_the_share_of_its_principal(
    principal: str, key: str
) -> None:
    id = producer_id_of(principal, key)
    assert REPORTED_IDS_END <= id < PRODUCER_IDS_END
    assert share_of(id) == share_of_principal(principal)


def test_the_producer_id_of_a_key_never_changes() -> None:
    """Another id would append the second try of a request that was first sent to an earlier release."""
    assert producer_id_of("alice", "k1") == 7336524326078843
    assert len({producer_id_of(who, key) for who in ("alice", "bob") for key in ("k1", "k2")}) == 4
    assert [partition_of_key(key, 8) for key in ("a", "b", "c")] == [2, 6, 3]


def test_times_do_not_count_when_records_are_compared() -> None:
    sent = [NewRecord(b"v", b"k", 1, (("n", b"x"),))]
    found = Record("", 0, 3, 0, 99, b"k", b"v", (("n", b"x"),))
    assert is_same(sent, [found])
    for other in (
        found._replace(value=b"w"),
        found._replace(key=None),
        found._replace(headers=()),
    ):
        assert not is_same(sent, [other])
    assert not is_same(sent, [found, found])


@pytest.mark.parametrize("key", ["", "a" * 256, "é", "a\tb"])
def test_a_key_is_printable_and_bounded(key: str) -> None:
    with pytest.raises(HttpError):
        key_of(key)


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_every_error_has_a_status_that_says_whether_to_try_again(code: str) -> None:
    error = TidelogError("why", code=code, offset=3)
    document = problem(error, acks=[])
    assert (document["status"], document["code"], document["detail"]) == (status_of(error), code, "why")
    assert document["values"] == {"offset": 3}
    if error.retriable:
        assert status_of(error) in (429, 503, 504), "a client that knows no codes tries again"
    else:
        assert status_of(error) not in (429, 503, 504)


def test_no_value_of_a_header_adds_another_header() -> None:
    assert response_head(204, [("a", "b")]) == b"HTTP/1.1 204 No Content\r\na: b\r\n\r\n"
    for value in ("b\r\nc: d", "b\nc: d", "b\r"):
        with pytest.raises(ValueError, match="line end"):
            response_head(204, [("a", value)])


def test_the_table_of_statuses_has_codes_only() -> None:
    assert set(STATUSES) <= set(CODES)


def test_a_quota_says_when_to_come_again() -> None:
    answer = refusal(TidelogError("slowly", code="QUOTA_EXCEEDED", pause_ms=2600))
    assert (answer.status, dict(answer.headers)["retry-after"]) == (429, "3")
