"""Values as columns in real Spark: what becomes a row, and what goes to the topic of bad records with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import pytest
import tidelog.sync

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.errors import ConfigError
from tidelog.spark.pipelines import value_columns
from tidelog.spark.pipelines.declaration import Input, parse
from tidelog.spark.pipelines.run import Run

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]
SOURCE = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, leader_epoch BIGINT, timestamp TIMESTAMP"
)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def checked(spark: Any, values: list[bytes | None], declared: Input, folder: Path = Path()) -> Any:
    """The rows of ``checked`` for records with these values."""
    rows = [(None, value, "t", 0, offset, 1, AT) for offset, value in enumerate(values)]
    return value_columns.checked(spark.createDataFrame(rows, SOURCE), declared, folder)


def split(
    spark: Any, values: list[bytes | None], declared: Input, folder: Path = Path()
) -> tuple[Any, dict[int, str]]:
    """The good rows by offset, and the reasons of the bad ones by offset."""
    found = checked(spark, values, declared, folder)
    offset = "offset" if declared.value == "raw" else "_offset"
    good = {row[offset]: row.asDict() for row in value_columns.good(found, declared).collect()}
    bad = {}
    for row in value_columns.bad(found).collect():
        headers = {one.key: bytes(one.value).decode() for one in row.headers}
        bad[int(headers["offset"])] = headers["reason"]
    assert good.keys() | bad.keys() == set(range(len(values))), "each record is a row or is bad"
    assert not good.keys() & bad.keys()
    return good, bad


SCHEMA = (
    "id INT, tiny TINYINT, real DOUBLE, small FLOAT, money DECIMAL(10,2), at TIMESTAMP, day DATE, name STRING, "
    "numbers ARRAY<INT>, counts MAP<STRING, INT>, place STRUCT<x: INT NOT NULL>, raw BINARY, yes BOOLEAN"
)
BAD_JSON = [
    ('{"id":"1"}', 'id: "1" is not INT'),
    ('{"id":1.5}', "id: 1.5 is not INT"),
    ('{"id":true}', "id: true is not INT"),
    ('{"id":2147483648}', "id: 2147483648 is not INT"),
    ('{"tiny":200}', "tiny: 200 is not TINYINT"),
    ('{"real":1e400}', "real: 1E+400 is not DOUBLE"),
    ('{"real":"NaN"}', 'real: "NaN" is not DOUBLE'),
    ('{"real":NaN}', "the value is not JSON: NaN is no number"),
    ('{"small":1e39}', "small: 1E+39 is not FLOAT"),
    ('{"money":123.456}', "money: 123.456 is not DECIMAL(10,2)"),
    ('{"money":123456789.00}', "money: 123456789.00 is not DECIMAL(10,2)"),
    ('{"at":"12:00"}', 'at: "12:00" is not TIMESTAMP'),
    ('{"at":"2026-02-30T00:00:00Z"}', 'at: "2026-02-30T00:00:00Z" is not TIMESTAMP'),
    ('{"day":"2026-2-1"}', 'day: "2026-2-1" is not DATE'),
    ('{"name":"\\ud800"}', 'name: "\\ud800" is not STRING: it has half of a surrogate pair'),
    ('{"numbers":[1,"x"]}', 'numbers[1]: "x" is not INT'),
    ('{"numbers":1}', "numbers: 1 is not ARRAY"),
    ('{"counts":{"a":"b"}}', 'counts.a: "b" is not INT'),
    ('{"place":{"x":"b"}}', 'place.x: "b" is not INT'),
    ('{"place":{}}', "place.x: is missing"),
    ('{"place":[]}', "place: [] is not STRUCT"),
    ('{"raw":"%"}', 'raw: "%" is not BINARY in base64'),
    ('{"yes":1}', "yes: 1 is not BOOLEAN"),
    ('{"id":1} {"id":2}', "the value is not JSON: Extra data: line 1 column 10 (char 9)"),
    ('[{"id":1}]', "the value is not a map of JSON"),
    ('{"id":1,"id":2}', "id occurs twice in an object"),
    (
        "{'id':1}",
        "the value is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    ("null", "the value is not a map of JSON"),
    ("", "the value is not JSON: Expecting value: line 1 column 1 (char 0)"),
]


def test_nothing_in_json_becomes_null_is_rounded_or_wrapped(spark: Any) -> None:
    fine = {
        "id": -(2**31), "tiny": -128, "real": 1, "small": 1.5, "money": 99999999.99,
        "at": "2026-01-02T03:04:05.5+01:00",
        "day": "2026-02-28", "name": "é", "numbers": [1, None], "counts": {"a": 1, "b": None}, "place": {"x": 1},
        "raw": "AP8=", "yes": True,
    }  # fmt: skip
    values = [
        json.dumps(fine).encode(),
        b"{}",
        b'{"id":1,"name":"\xff"}',
        None,
        *(text.encode() for text, _ in BAD_JSON),
    ]
    good, bad = split(spark, values, Input("a", "t", "json", SCHEMA, bad="b"))
    row = {name: value for name, value in good.pop(0).items() if not name.startswith("_")}
    assert row == fine | {
        "real": 1.0, "money": Decimal("99999999.99"), "at": datetime(2026, 1, 2, 2, 4, 5, 500_000),
        "day": datetime(2026, 2, 28).date(), "place": (1,), "raw": b"\0\xff",
    }  # fmt: skip
    row = good.pop(1)
    assert all(row[name] is None for name in fine) and not good, "what is missing is NULL"
    assert row["_topic"] == "t" and row["_timestamp"] == AT.replace(tzinfo=None)
    assert bad.pop(2) == "the value is not UTF-8: invalid start byte at byte 16"
    assert bad.pop(3) == "there is no value"
    assert list(bad.values()) == [reason for _, reason in BAD_JSON]


DOCUMENTS = [b'{"id":1,"name":2,"more":{"a":1.10},"place":{"x":1,"y":2}}', b'{"id":null,"name":"a"}', b'{"name":"a"}']


@pytest.mark.parametrize(
    ("settings", "expected", "reasons"),
    [
        ({}, {0: "2", 1: "a", 2: "a"}, {}),
        ({"strict": True}, {1: "a", 2: "a"}, {0: "name: 2 is not STRING"}),
        ({"required": ("id",)}, {0: "2"}, {1: "id: is missing or null", 2: "id: is missing or null"}),
        ({"unknown": "bad"}, {1: "a", 2: "a"}, {0: "there is no field more in the schema"}),
        (
            {"unknown": "keep"},
            {0: "2", 1: "a", 2: "a"},
            {},
        ),
    ],
    ids=str,
)
def test_strict_required_and_unknown_fields(
    settings: dict[str, Any], expected: dict[int, str], reasons: dict[int, str], spark: Any
) -> None:
    declared = Input("a", "t", "json", "id INT, name STRING, place STRUCT<x: INT>", bad="b", **settings)
    good, bad = split(spark, list(DOCUMENTS), declared)
    assert ({offset: row["name"] for offset, row in good.items()}, bad) == (expected, reasons)
    if settings.get("unknown") == "keep":
        assert good[0]["_unknown"] == '{"more":{"a":1.10},"place":{"x":1,"y":2}}'
        assert good[1]["_unknown"] is None


LINES: list[bytes | None] = [
    b"2026-01-01 10:00:00 5",
    b"no time 5",
    b"2026-01-01 10:00:00 0",
    b"2026-01-01 10:00:00 -",
    None,
]
EXPRESSIONS = {
    "line": "CAST(value AS STRING)",
    "at": "to_timestamp(substring(line, 1, 19), 'yyyy-MM-dd HH:mm:ss')",
    "day": "date(to_timestamp(substring(line, 1, 19), 'yyyy-MM-dd HH:mm:ss'))",  # Spark shares what both have
    "share": "10 / CAST(substring(line, 21) AS INT)",
}


@pytest.mark.parametrize("codegen", ["CODEGEN_ONLY", "NO_CODEGEN"])
def test_an_expression_that_fails_is_told_from_null_and_ends_nothing(codegen: str, spark: Any) -> None:
    settings = {"spark.sql.codegen.factoryMode": codegen, "spark.sql.codegen.wholeStage": codegen == "CODEGEN_ONLY"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        good, bad = split(
            spark, LINES, Input("a", "t", columns=EXPRESSIONS, valid="share < 9 OR share IS NULL", bad="b")
        )
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert {offset: (row["share"], str(row["day"])) for offset, row in good.items()} == {
        0: (2.0, "2026-01-01"),
        4: (None, "None"),
    }, "NULL of NULL is no failure"
    assert bad == {
        1: f"at: cannot be computed: {EXPRESSIONS['at']}",
        2: f"share: cannot be computed: {EXPRESSIONS['share']}",
        3: f"share: cannot be computed: {EXPRESSIONS['share']}",
    }


def test_each_expression_is_computed_once_and_a_later_step_after_it(spark: Any) -> None:
    declared = Input("a", "t", columns={"n": "CAST(CAST(value AS STRING) AS INT)"}, valid="n <> 0", bad="b")
    good = value_columns.good(checked(spark, [b"2", b"0", b"9"], declared), declared)
    rows = good.where("100 / n > 1 AND 100 / n < 20").selectExpr("100 / n AS share")
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("tryeval") == 2, "Spark moves no filter below the columns"
    assert plan.index("100.0 / ") < plan.index("__reason"), "and none below the check, where it would see bad rows"
    assert [round(row.share) for row in rows.collect()] == [11]


def test_rows_that_are_not_valid(spark: Any) -> None:
    valid = "CAST(CAST(value AS STRING) AS INT) > 1"
    good, bad = split(spark, [b"1", b"2", None, b"x"], Input("a", "t", valid=valid, bad="b"))
    assert list(good) == [1] and good[1]["leader_epoch"] == 1, "the columns of the source are unchanged"
    assert bad == {0: f"not valid: {valid}", 2: f"valid is null: {valid}", 3: f"valid cannot be computed: {valid}"}


AVRO = {
    "type": "record",
    "name": "a.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def test_every_other_format(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "order.desc").write_bytes(order_descriptors())
    line = rb"(?P<id>\d+) (?P<at>\S+)(?: (?P<note>.*))?".decode()
    formats: dict[str, tuple[dict[str, Any], bytes, bytes, str]] = {
        "cbor": ({"schema": "id BIGINT, at TIMESTAMP, note STRING"}, cbor2.dumps({"id": 7, "at": AT}), b"\x01\x02",
                 "the value is not CBOR: 1 bytes follow the first item"),
        "regex": ({"pattern": line, "schema": "id BIGINT, at TIMESTAMP"}, b"7 2026-01-01T00:00:00Z\n", b"x",
                  "the line does not match the pattern"),
        "csv": ({"schema": "id BIGINT, at TIMESTAMP, note STRING", "separator": ";"}, b"7;2026-01-01;", b"1;2",
                "the row has 2 fields, not 3"),
        "avro": ({"schema_file": "order.avsc", "schema_id": 3}, b"\0\0\0\0\x03" + b"\x0e\x80\xa0\xd5\xed\xeef\x00",
                 b"\0\0\0\0\x04", "the value has the schema id 4, not 3"),
        "protobuf": ({"schema_file": "order.desc", "message": "a.Order"}, b"\x08\x07\x12\x06\x08\x80\xf2\xd6\xca\x06",
                     b"\xff", "the value is not a message a.Order: "),
    }  # fmt: skip
    for name, (settings, fine, wrong, reason) in formats.items():
        good, bad = split(spark, [fine, wrong], Input("a", "t", name, bad="b", **settings), tmp_path)
        row = good.pop(0)
        assert not good and bad.keys() == {1} and bad[1].startswith(reason), (name, bad)
        assert (row["id"], row["at"], row["note"]) == (7, AT.replace(tzinfo=None), None), name
    line = '<34>1 2026-01-01T00:00:00Z h su 1 - [a@1 b="c"] \ufeffno'
    good, bad = split(spark, [line.encode(), b"no"], Input("a", "t", "syslog", bad="b"))
    assert (good[0]["severity"], good[0]["structured_data"], good[0]["message"]) == (2, {"a@1": {"b": ["c"]}}, "no")
    assert bad == {1: "the line is not a message of syslog (RFC 5424, RFC 3164)"}


PLACE = {"type": "record", "name": "Position", "fields": [{"name": "x", "type": "double"}]}
DOCUMENTED: dict[str, tuple[list[bytes | None], dict[str, Any], list[str]]] = {
    "orders": (
        [b'{"id": 1, "amount": 1.5, "at": "2026-01-01T00:00:00Z", "tags": [], "more": 1}',
         b'{"id": 1, "amount": "1.5"}', b'{"id": 1, "tags": []}',
         b'{"id": 1, "amount": -1, "at": "2026-01-01T00:00:00Z", "tags": []}'],
        {"id": 1, "amount": Decimal("1.50"), "_unknown": '{"more":1}'},
        ['amount: "1.5" is not DECIMAL(10,2)', "at: is missing or null", "not valid: amount > 0 AND size(tags)"],
    ),
    "logins": (
        [b"Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user", b"Dec 32 06:55:46 LabSZ sshd[24200]: Invalid user"],
        {"timestamp": datetime(2016, 12, 10, 6, 55, 46), "pid": "24200", "priority": None},
        ["timestamp: Dec 32 06:55:46 2016 is no time"],
    ),
    "requests": (
        [b'10.0.0.1 - - [10/Oct/2026:13:55:36 -0700] "GET /a HTTP/1.1" 200 -',
         b'10.0.0.1 - - [10/Oct/2026] "GET /a HTTP/1.1" 200 5', b'10.0.0.1 - - [x] "GET" 99999 5'],
        {"at": datetime(2026, 10, 10, 20, 55, 36), "method": "GET", "status": 200, "bytes": None},
        ["at: cannot be computed: to_timestamp(time, ", "the line does not match the pattern"],
    ),
    "prices": (
        [b"a;1.5;2026-01-01", b";1.5;2026-01-01"],
        {"symbol": "a", "price": Decimal("1.5000")},
        ["symbol: is null"],
    ),
    "lines": ([b"5", b"x" * 10_001, b"x"], {"n": 5}, ["n: cannot be computed: CAST(decode("] * 2),
    "positions": ([b"\0\0\0\0\x07" + bytes(8), b""], {"x": 0.0}, ["the value does not begin with "]),
    "trips": ([b"\x08\x05", b"\xff"], {"id": 5}, ["the value is not a message fleet.Trip: "]),
}  # fmt: skip


def test_the_documented_inputs(spark: Any, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipelines.md").read_text()
    declared = parse(page.partition("## Values")[2].partition("```toml\n")[2].partition("```")[0])
    (tmp_path / "position.avsc").write_text(json.dumps(PLACE))
    (tmp_path / "trips.desc").write_bytes(order_descriptors("fleet.Trip"))
    assert [one.name for one in declared.inputs] == list(DOCUMENTED)
    for one in declared.inputs:
        values, expected, reasons = DOCUMENTED[one.name]
        good, bad = split(spark, values, replace(one, bad="b"), tmp_path)
        assert list(good) == [0] and expected.items() <= good[0].items(), one.name
        assert [text[: len(reason)] for text, reason in zip(bad.values(), reasons, strict=True)] == reasons, one.name


def order_descriptors(name: str = "a.Order") -> bytes:
    """Compiled descriptors of a message with an id, a time and a note, as protoc writes them."""
    pb = pytest.importorskip("google.protobuf.descriptor_pb2")
    timestamp = pytest.importorskip("google.protobuf.timestamp_pb2")
    kind, label = pb.FieldDescriptorProto, pb.FieldDescriptorProto.LABEL_OPTIONAL
    package, _, message = name.rpartition(".")
    order = pb.DescriptorProto(name=message, oneof_decl=[pb.OneofDescriptorProto(name="_note")])
    order.field.add(name="id", number=1, type=kind.TYPE_INT64, label=label)
    order.field.add(name="at", number=2, type=kind.TYPE_MESSAGE, label=label, type_name=".google.protobuf.Timestamp")
    order.field.add(name="note", number=3, type=kind.TYPE_STRING, label=label, oneof_index=0, proto3_optional=True)
    times = pb.FileDescriptorProto()
    timestamp.DESCRIPTOR.CopyToProto(times)
    file = pb.FileDescriptorProto(name="order.proto", package=package, syntax="proto3", message_type=[order])
    file.dependency.append(times.name)
    return bytes(pb.FileDescriptorSet(file=[times, file]).SerializeToString())


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"value": "json", "schema": "id"}, "[in.a]: schema 'id' is not such as"),
        ({"value": "json", "schema": "id VARCHAR(3)"}, "[in.a]: values have no type varchar(3): take STRING"),
        ({"value": "json", "schema": "id INT, ID INT"}, "[in.a]: the column ID has the name of another"),
        ({"value": "json", "schema": "m MAP<INT, INT>"}, "[in.a]: keys of maps are STRING"),
        ({"value": "csv", "schema": "a ARRAY<INT>"}, "[in.a]: a text cannot be array<int>"),
        (
            {"value": "regex", "pattern": "(?P<a>.)", "schema": "b INT"},
            "schema has b, which is no named group",
        ),
        ({"value": "avro", "schema_file": "none.avsc"}, "none.avsc: No such file"),
        ({"columns": {"x": "nothing + 1"}}, "[in.a]: columns: x: [UNRESOLVED_COLUMN"),
        ({"columns": {"x": "1 +"}}, "[in.a]: columns: x: "),
        ({"valid": "offset"}, "[in.a]: valid is a condition, true or false; not offset"),
        ({"required": ("x",)}, "[in.a]: required: there is no column x"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused_before_anything_is_read(
    settings: dict[str, Any], fault: str, spark: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(spark, [], Input("a", "t", bad="b", **settings), tmp_path)
    assert fault in caught.value.message


def test_expressions_whose_errors_would_be_null_are_refused(spark: Any) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(ConfigError, match="leave it true"):
            checked(spark, [], Input("a", "t", valid="value IS NULL", bad="b"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_without_a_topic_for_bad_records_the_first_one_ends_the_query_with_its_place(spark: Any) -> None:
    declared = Input("a", "t", columns={"x": "CAST(CAST(value AS STRING) AS INT)"})
    with pytest.raises(Exception, match=r"\[TIDELOG_VALUE\] t/0 offset 1: x: cannot be computed: CAST.*bad = …"):
        value_columns.good(checked(spark, [b"1", b"x"], declared), declared).collect()


def test_a_stream_goes_on_after_lines_that_no_expression_can_parse(spark: Any, cluster: Any, tmp_path: Path) -> None:
    with tidelog.sync.connect(cluster.url) as client:
        for topic in ("lines", "lines-bad"):
            client.topics.create(topic, config={"flush": "os"})
        with client.producer("lines") as producer:
            for n in range(10):
                producer.submit(b"2026-01-01 10:00:00 5" if n % 5 else b"never", key=str(n).encode())
        pipeline = parse("""
            name = "lines"
            [in.lines]
            topic = "lines"
            bad = "lines-bad"
            [in.lines.columns]
            at = "to_timestamp(substring(CAST(value AS STRING), 1, 19), 'yyyy-MM-dd HH:mm:ss')"
            [out.rows]
            from = "lines"
            parquet = "rows"
        """)
        run = Run(pipeline, spark, tmp_path, cluster.url)
        run.finish(run.start())
        offsets = [row.offset for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
        assert sorted(offsets) == [1, 2, 3, 4, 6, 7, 8, 9]
        bad = {record.key: dict(record.headers) for record in client.consume("lines-bad", start=0, end="latest")}
    assert {key: (one["topic"], one["partition"], one["offset"]) for key, one in bad.items()} == {
        b"0": (b"lines", b"0", b"0"),
        b"5": (b"lines", b"0", b"5"),
    }
    assert all(one["reason"].startswith(b"at: cannot be computed: to_timestamp(") for one in bad.values())
