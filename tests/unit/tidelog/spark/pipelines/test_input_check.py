"""Which settings of an input go together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.spark.pipelines.declaration import Input, parse
from tidelog.spark.pipelines.input_check import input_faults

JSON = Input("a", "t", "json", "id INT")
RAW = Input("a", "t")


@pytest.mark.parametrize(
    "declared",
    [
        RAW,
        replace(
            JSON, strict=True, unknown="keep", required=("id",), valid="id > 0", columns={"x": "id + 1"}, bad="b"
        ),
        replace(RAW, valid="value IS NOT NULL", bad="b"),
        replace(RAW, columns={"x": "CAST(value AS STRING)"}, bad="b"),
        replace(RAW, columns={"x": "concat(value, 'now')"}),
        replace(RAW, valid='at < unix_timestamp(x) AND known_now = "rand"'),
        Input("a", "t", "regex", pattern="(?P<a>.)", schema="a INT"),
        Input("a", "t", "csv", "a INT", separator="\t", quote="", null="-", header=True),
        Input("a", "t", "syslog", year=2016),
        Input("a", "t", "avro", schema_file="a.avsc", schema_id=0),
        Input("a", "t", "protobuf", schema_file="a.desc", message="a.B"),
    ],
    ids=str,
)
def test_settings_that_go_together(declared: Input) -> None:
    assert input_faults(declared) == []


@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        (replace(RAW, schema="a INT"), "schema goes with value json or cbor or csv or regex, not with raw"),
        (replace(JSON, schema=""), "value json needs schema"),
        (replace(JSON, year=2016), "year goes with value syslog, not with json"),
        (replace(RAW, strict=True), "strict goes with value json or cbor, not with raw"),
        (Input("a", "t", "syslog", year=0), "year is a number from 1 to 9999"),
        (Input("a", "t", "regex", pattern="("), "pattern is no regular expression of Python: "),
        (Input("a", "t", "regex", pattern="."), "pattern has no named group"),
        (Input("a", "t", "regex"), "value regex needs pattern"),
        (Input("a", "t", "csv", "a INT", separator="||"), 'separator is one character, and quote is one or ""'),
        (Input("a", "t", "avro", schema_file="a", schema_id=1 << 32), "schema-id is a number of 4 bytes"),
        (Input("a", "t", "protobuf", schema_file="a"), "value protobuf needs message"),
        (Input("a", "t", "avro"), "value avro needs schema-file"),
        (replace(RAW, columns={"a-b": "1"}), "columns: a name is letters, digits and _"),
        (replace(RAW, columns={"_offset": "1"}), "columns: a name is letters, digits and _"),
        (replace(RAW, columns={"x": "rand()"}, bad="b"), "columns: x: rand can differ each time"),
        (replace(RAW, valid="at < Now()"), "valid: Now can differ each time"),
        (replace(RAW, valid="unix_timestamp ( ) > 1"), "valid: unix_timestamp can differ each time"),
        (replace(RAW, bad="b"), "bad goes with valid, columns or required: every raw value is a good one"),
    ],
    ids=str,
)
def test_settings_that_do_not(declared: Input, fault: str) -> None:
    assert [one[: len(fault)] for one in input_faults(declared)] == [fault]


def test_the_settings_are_read_from_a_file() -> None:
    pipeline = parse("""
        name = "p"
        [in.a]
        topic = "t"
        value = "json"
        schema = "id INT"
        strict = true
        required = ["id"]
        unknown = "keep"
        valid = "id > 0"
        bad = "b"
        [in.a.columns]
        twice = "2 * id"
        again = "2 * twice"
        [in.c]
        topic = "t"
        value = "avro"
        schema-file = "c.avsc"
        schema-id = 7
        [out.b]
        from = "a"
        parquet = "f"
    """)
    first, second = pipeline.inputs
    assert (first.strict, first.required, first.unknown, first.valid) == (True, ("id",), "keep", "id > 0")
    assert list(first.columns.items()) == [("twice", "2 * id"), ("again", "2 * twice")]
    assert (second.schema_file, second.schema_id) == ("c.avsc", 7)
