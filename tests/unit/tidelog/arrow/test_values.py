"""Text and JSON from byte strings: what fits, what does not and why, and that no fault shifts another row."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.arrow.values import from_json, json_type_of, to_text

KIND = pa.struct([("a", pa.int64()), ("b", pa.string())])
INVALID = [
    b'"abc',
    b'"',
    b"",
    b" ",
    b"{} {}",
    b'{"a":1},{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'{"a":',
    b"NaN",
    b"\xff",
    b"x",
]
fitting = st.fixed_dictionaries({}, optional={"a": st.integers(-(2**63), 2**63 - 1), "b": st.text(max_size=5)})


def column(*values: bytes | None) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def test_text_is_checked_value_by_value_only_if_some_is_none() -> None:
    found, reasons = to_text(column(b"ok", None, "é".encode()))
    assert (found.to_pylist(), reasons) == (["ok", None, "é"], {})
    found, reasons = to_text(column(b"ok", b"\xff", None, b"a\xc3"))
    assert found.to_pylist() == ["ok", None, None, None]
    assert reasons == {
        1: "is not text in UTF-8: invalid start byte at byte 0",
        3: "is not text in UTF-8: unexpected end of data at byte 1",
    }


@given(st.lists(st.tuples(st.just(True), fitting) | st.tuples(st.just(False), st.sampled_from(INVALID)), max_size=20))
@settings(max_examples=200, deadline=None)
def test_each_row_has_the_value_of_its_own_text(rows: list[tuple[bool, Any]]) -> None:
    texts = [json.dumps(value, indent=1).encode() if good else value for good, value in rows]
    found, reasons = from_json(column(*texts), KIND, exact=True)
    assert found.to_pylist() == [{"a": None, "b": None} | value if good else None for good, value in rows]
    assert sorted(reasons) == [number for number, (good, _) in enumerate(rows) if not good]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":"x"}', "does not fit the schema: field a changed from number to string"),
        (b"[1]", "does not fit the schema: the value changed from object to array"),
        (b'{"a":1.5}', "does not fit the schema: Failed to convert JSON to int64, couldn't parse:1.5"),
        (b'{"a":1,"a":2}', "does not fit the schema: field a was specified twice"),
        (b'{"c":1}', "does not fit the schema: unexpected field"),
        (b"", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a":NaN}', "is not JSON: NaN is no JSON number"),
    ],
)
def test_the_reason_says_what_is_wrong(text: bytes, reason: str) -> None:
    found, reasons = from_json(column(b'{"a":1}', text, b'{"a":2}'), KIND, exact=True)
    assert reasons == {1: reason}
    assert [each and each["a"] for each in found.to_pylist()] == [1, None, 2]


def test_fields_that_the_schema_lacks_are_left_out_unless_it_was_inferred() -> None:
    texts = column(b'{"a":1,"c":{"d":[1,"x"]}}', b'{"a":2,"c":7}', None, b"null")
    found, reasons = from_json(texts, KIND, exact=False)
    assert found.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}, None, None]
    assert reasons == {}


def test_the_type_is_inferred_from_what_is_json() -> None:
    assert json_type_of(column(b'{"a":1}', b"no", None, b'{"b":["x"]}')) == pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.string()))]
    )
    assert json_type_of(column(None)) == json_type_of(column()) == pa.null()
    with pytest.raises(pa.ArrowInvalid):
        json_type_of(column(b'{"a":1}', b'{"a":"x"}'))


def test_a_value_of_10_mib_and_a_deep_one_do_no_harm() -> None:
    large = json.dumps({"b": "x" * (10 << 20)}).encode()
    deep = b"[" * 200_000 + b"]" * 200_000
    found, reasons = from_json(column(large, deep, b'{"a":1}'), KIND, exact=True)
    assert len(found[0]["b"].as_py()) == 10 << 20
    assert found[2].as_py() == {"a": 1, "b": None} and list(reasons) == [1]
