"""JSON and CBOR as fields."""

from __future__ import annotations

from decimal import Decimal

import cbor2
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.values.conversion import BadValue
from tidelog.spark.pipelines.values.documents import cbor_decoder, json_decoder


def test_documents_keep_what_they_have() -> None:
    assert json_decoder()(b'{"a": 1.10, "b": [12345678901234567890, {}]}', 0) == {
        "a": Decimal("1.10"),
        "b": [12345678901234567890, {}],
    }
    assert cbor_decoder()(cbor2.dumps({"a": b"\0", "b": Decimal("1.1")}), 0) == {"a": b"\0", "b": Decimal("1.1")}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"a": {"b": 1, "b": 2}}', "b occurs twice in an object"),
        (b"{} {}", "the value is not JSON: Extra data"),
        (b'{"a": -Infinity}', "the value is not JSON: -Infinity is no number"),
        (b"[" * 100_000, "the value is not JSON: "),
        (b'{"a": ' + b"9" * 10_000 + b"}", "the value is not JSON: "),
        (b'{"a": 1e99999999999999999999}', "the value is not JSON: "),
        (b"1", "the value is not a map of JSON"),
        (b"\xef\xbb\xbf{}", "the value is not JSON: "),
        (b"\xff", "the value is not UTF-8: "),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_one_object_of_json(value: bytes, reason: str) -> None:
    with pytest.raises(BadValue) as caught:
        json_decoder()(value, 0)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xa2\x61a\x01\x61a\x02", "the value is not CBOR: "),
        (b"\xa0\x00", "the value is not CBOR: 1 bytes follow the first item"),
        (b"\x81" * 10_000, "the value is not CBOR: "),
        (b"\xa1\x61a", "the value is not CBOR: "),
        (b"", "the value is not CBOR: "),
        (b"\x01", "the value is not a map of CBOR"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_one_map_of_cbor(value: bytes, reason: str) -> None:
    with pytest.raises(BadValue) as caught:
        cbor_decoder()(value, 0)
    assert str(caught.value).startswith(reason)
