"""Values in batches of Arrow: each is a row or has a reason, whatever the others are."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

import pyarrow as pa
from pyspark.sql import types as t
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.declaration import Input
from tidelog.spark.pipelines.values.decoder import MAX_REASON, Decoder, decoder
from tidelog.spark.pipelines.values.documents import json_decoder

COLUMNS = t.StructType(
    [
        t.StructField("id", t.IntegerType(), nullable=False),
        t.StructField("at", t.TimestampType()),
        t.StructField("tags", t.MapType(t.StringType(), t.ArrayType(t.StringType()))),
    ]
)
JSON = Decoder(COLUMNS, json_decoder, text=False, string_keys=True, strict=False, unknown="keep", zone="UTC")


def decoded(values: list[bytes | None], decoder: Decoder = JSON) -> list[dict[str, Any]]:
    """What the copy of a decoder that a task gets makes of values."""
    task = pickle.loads(pickle.dumps(decoder)).batches_in_task()
    timestamps = pa.array([0] * len(values), pa.timestamp("us", "UTC"))
    (made,) = task(iter([(pa.array(values, pa.binary()), timestamps)]))
    made.validate(full=True)
    found: list[dict[str, Any]] = made.to_pylist()
    return found


def test_a_batch() -> None:
    text = b'{"id": 1, "at": "2026-01-02T03:04:05Z", "tags": {"a": ["b", null]}, "x": 1.0}'
    good, missing, none = decoded([text, b'{"at": null}', None])
    assert good == {
        "reason": None,
        "row": True,
        "fields": {
            "id": 1,
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "tags": [("a", ["b", None])],
            "_unknown": '{"x":1.0}',
        },
    }
    assert missing == {"reason": "id: is missing", "row": True, "fields": None}
    assert none == {"reason": "there is no value", "row": True, "fields": None}
    assert decoded([]) == []


@given(st.lists(st.none() | st.binary(max_size=50) | st.recursive(
    st.none() | st.integers() | st.text(st.characters()),
    lambda inner: st.dictionaries(st.sampled_from(["id", "at", "tags", "x", "\ud800"]), inner, min_size=1),
).map(lambda value: json.dumps(value).encode()), max_size=5))  # fmt: skip
def test_no_value_spoils_a_batch(values: list[bytes | None]) -> None:
    for one in decoded(values):
        assert (one["reason"] is None) == (one["fields"] is not None)


def fails(value: bytes, at_us: int) -> Mapping[str, Any] | None:
    """A decoder as of a library that fails in a way that nobody has thought of."""
    if value == b"header":
        return None
    if value == b"good":
        return {"id": 1}
    raise RuntimeError("\ud800" * 1000)


def make_fails() -> Any:
    return fails


def test_an_error_of_a_library_is_the_reason_of_its_row_alone() -> None:
    decoder = Decoder(COLUMNS, make_fails, text=False, string_keys=True, strict=False, unknown="drop", zone="UTC")
    good, header, wrong = decoded([b"good", b"header", b"wrong"], decoder)
    assert good["fields"]["id"] == 1
    assert header == {"reason": None, "row": False, "fields": None}
    assert wrong["reason"].startswith("the value cannot be decoded: RuntimeError \\ud800")
    assert len(wrong["reason"]) < 6 * MAX_REASON


@pytest.mark.parametrize(("value", "library"), [("avro", "fastavro"), ("protobuf", "protobuf")])
def test_without_the_library_of_a_format_the_error_says_what_to_install(
    value: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"\[in\.a\]: {value} needs {library}: pip install 'tidelog\[formats\]'"):
        decoder(Input("a", "t", value, schema_file="x"), Path(), "UTC")


def test_a_schema_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'tidelog[formats]'")
    (tmp_path / "x.avsc").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="it is not a schema of Avro"):
        decoder(Input("a", "t", "avro", schema_file="x.avsc"), tmp_path, "UTC")
