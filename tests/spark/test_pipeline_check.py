"""The check of a pipeline's SQL, and trials of pipelines: real Spark, a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.analysis import Analysis
from tidelog.spark.pipelines.check import check
from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.file.ddl import refuse_schema
from tidelog.spark.pipelines.file.intervals import refuse_interval
from tidelog.spark.pipelines.trial import trial

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]
FAULTY = """\
name = "p"
[in.orders]
topic = "orders"
value = "json"
schema = "id BIGINT, amount DECIMAL(99,2)"
[in.lines]
topic = "lines"
watermark = { column = "value", delay = "1 minute" }
[in.events]
topic = "events"
value = "json"
schema = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
bad = "bad"
[table.wrong]
sql = \"""
SELECT id,
       nonsense
FROM events\"""
[table.after]
sql = "SELECT id FROM wrong"
[table.syntax]
sql = "SELECT id FORM events WHERE"
[table.by_hand]
python = "steps.py:make"
[table.counts]
sql = "SELECT id, count(*) AS n FROM events GROUP BY id"
[table.late]
sql = "SELECT id, at FROM events"
watermark = { column = "when", delay = "1 minute" }
[out.counts]
from = "counts"
topic = "counts"
[out.fine]
from = "counts"
topic = "fine"
mode = "complete"
key = "id"
[out.keyless]
from = "events"
topic = "keyless"
key = "ident"
[out.raw]
from = "events"
topic = "raw"
value = "raw"
[out.days]
from = "events"
parquet = "days"
partition-by = ["_topic", "day"]
[plot.p]
sql = "SELECT id FROM days"
x = "id"
y = "n"
[out.lake]
from = "events"
iceberg = "a.lake"
partition-by = [
  "day(at)",
  "day(hour)",
  "week(at)",
]
"""


def test_every_fault_of_the_sql_is_told_with_its_line(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def make(spark): 1 / 0\n")
    reading = check(FAULTY, {}, tmp_path)
    assert not reading.faults
    analysis = Analysis(reading, spark, tmp_path)
    analysis.run()
    told = {fault.line: fault.text for fault in analysis.faults}
    expected = {
        5: "[in.orders]: [DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION]",
        8: "[in.lines]: [EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE] The event time `value` has the invalid type",
        17: "[table.wrong]: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name",
        22: "[table.syntax]: [PARSE_SYNTAX_ERROR] Syntax error at or near",
        29: "[table.late]: [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        31: "[out.counts]: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append.",
        41: "[out.keyless]: [UNRESOLVED_COLUMN.WITH_SUGGESTION]",
        43: "[out.raw]: [TIDELOG_SCHEMA] id is no column of a record",
        49: "[out.days]: partition-by: there is no column day; there are id, at, tags, _key",
        53: "[plot.p]: y: the query has no column n; it has id",
        59: "[out.lake]: partition-by: there is no column hour; there are id, at, tags, _key",
        60: "[out.lake]: partition-by: a partition field is COLUMN or day(COLUMN), not 'week(at)'",
    }
    assert {line: text[: len(expected.get(line, ""))] for line, text in told.items()} == expected
    assert not any("\n" in text or "SQLSTATE" in text or "Relation" in text for text in told.values())
    assert analysis.left_out == {"after": "reads wrong", "by_hand": "is made by a Python function, which is not run"}


def test_the_example_has_no_faults(spark: Any) -> None:
    text = (ROOT / "docs" / "examples" / "ssh_attacks.toml").read_text()
    analysis = Analysis(check(text, {}, ROOT), spark, ROOT)
    analysis.run()
    assert (analysis.faults, analysis.left_out) == ([], {})


def test_intervals_and_schemas_are_judged_as_spark_does(spark: Any) -> None:
    jvm = spark._jvm

    def refused(call: Any, text: Any) -> bool:
        try:
            call(text)
        except Exception:
            return True
        return False

    utf8 = jvm.org.apache.spark.unsafe.types.UTF8String.fromString
    interval = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval
    intervals = [
        *("10 seconds", "1 hour 30 minutes", "interval 5 second", "0 seconds", "1.5 seconds", ".5 seconds", "1 week"),
        *("1. seconds", "+1 second", "5 SECONDS", "\t1  second ", "10seconds", "1.5 minutes", "10 secs", "", "10"),
        *("1 second2 minutes", "interval", "seconds", "1.s", "1.1234567890 seconds", "9999999999999999999 seconds"),
        *("interval 1 second interval 2 second", "1 nanosecond", "1 secondss", "1 month", "2 years 1 day"),
    ]
    wrong = [one for one in intervals if refused(interval, utf8(one)) != bool(refuse_interval(one, months=True))]
    assert wrong == []
    schemas = [
        *("id BIGINT", "a ARRAY<INT>, m MAP<STRING, INT>", "s STRUCT<a: INT, b STRING>", "d DECIMAL(10,2)", "id"),
        *(
            "d DECIMAL",
            "v VARCHAR(3)",
            "v VARCHAR",
            "`a b` INT",
            "a INT NOT NULL COMMENT 'x'",
            "a INT,",
            "",
            "a: INT",
        ),
        *("a INT b INT", "a-b INT", "i INTERVAL DAY TO SECOND", "i INTERVAL", "t TIME(3)", "v VARIANT", "s STRUCT<>"),
        *(
            "a INT DEFAULT 3",
            "1a INT",
            "INT",
            "array<int>",
            "a INT -- x",
            "a TIMESTAMP WITHOUT TIME ZONE",
            "id BIGNT",
        ),
    ]
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL
    assert [one for one in schemas if refused(schema, one) != bool(refuse_schema(one))] == []


def test_a_trial_shows_what_outputs_would_get_and_writes_nothing(spark: Any, cluster: Any, tmp_path: Path) -> None:
    with tidelog.sync.connect(cluster.url) as log:
        for topic in ("try-in", "try-out", "try-bad"):
            log.topics.create(topic, config={"flush": "os"})
        with log.producer("try-in") as producer:
            producer.submit(b'{"id": 1, "at": "2024-05-01T10:00:00Z"}', key=b"\xff")
            producer.submit(b"nonsense", key=b"2")
            producer.submit(b'{"id": 3}')
            producer.submit(b'{"id": 4}')
        pipeline = parse("""
            name = "try"
            [in.events]
            topic = "try-in"
            value = "json"
            schema = "id INT, at TIMESTAMP"
            bad = "try-bad"
            options = { startingOffsets = "latest", maxOffsetsPerTrigger = 1 }
            [in.none]
            topic = "try-none"
            [table.counts]
            sql = "SELECT window(at, '1 hour') AS hour, count(*) AS n FROM events WHERE at IS NOT NULL GROUP BY 1"
            [table.broken]
            sql = "SELECT id / (id - 3) AS x FROM events"
            [out.events]
            from = "events"
            topic = "try-out"
            key = "id"
            value = "cbor"
            [out.keys]
            from = "events"
            parquet = "keys"
            [out.counts]
            from = "counts"
            delta = "counts"
            [out.broken]
            from = "broken"
            parquet = "broken"
            [out.none]
            from = "none"
            parquet = "none"
        """)
        events, keys, counts, broken, none, bad = trial(pipeline, spark, tmp_path, {"gateway": cluster.url}, 3, 1)
        assert (events.destination, events.rows, events.columns) == ("topic try-out", 2, ("key", "value"))
        ((key, value),) = events.first
        assert (key, value.startswith('{"id":1,"at":"2024-05-01T10:00:00.000Z","_key":"/w=="')) == ("1", True)
        assert keys.first[0][:4] == (1, "2024-05-01T10:00:00+00:00", "/w==", "try-in")
        window = {"start": "2024-05-01T10:00:00+00:00", "end": "2024-05-01T11:00:00+00:00"}
        assert (counts.destination, counts.rows, counts.first) == ("delta counts", 1, ((window, 1),))
        assert (broken.rows, broken.error.startswith("[DIVIDE_BY_ZERO] Division by zero.")) == (0, True)
        assert none.error.startswith("[TIDELOG_UNKNOWN_TOPIC] ")
        assert (bad.output, bad.destination, bad.rows) == ("events-bad", "topic try-bad", 1)
        key, value, headers = bad.first[0]
        assert (key, value, headers[0]) == (
            "2",
            "nonsense",
            {"key": "reason", "value": "the value is not JSON: Expecting value: line 1 column 1 (char 0)"},
        )
        assert [list(log.consume(topic, start=0, end="latest")) for topic in ("try-out", "try-bad")] == [[], []]
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_no_noise_of_java(java: None, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        'name = "p"\n[in.a]\ntopic = "t"\n[table.b]\nsql = "SELECT x FROM a"\n[out.c]\nfrom = "b"\ntopic = "u"\n'
    )
    command = [sys.executable, "-m", "tidelog.cli", "pipeline", "check", str(file)]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "shared")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)
    assert done.stdout.startswith(f"{file}:5: [table.b]: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or")
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (1, 1, "")
