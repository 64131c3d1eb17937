"""What a pipeline's file may say, and what is said of one that may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tidelog.cli import main
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.declaration import Watermark, parse, read

EXAMPLE = Path(__file__).resolve().parents[5] / "docs" / "examples" / "ssh_attacks.toml"
LEAST = 'name = "p"\n[in.a]\ntopic = "t"\n[out.b]\nfrom = "a"\nparquet = "f"\n'
PLOT = '[plot.c]\nsql = "SELECT x, y FROM b"\nx = "x"\ny = "y"\n'


def test_the_least_that_a_pipeline_needs() -> None:
    pipeline = parse(LEAST)
    assert (pipeline.inputs[0].topic, pipeline.outputs[0].table, pipeline.trigger) == ("t", "a", "available-now")


def test_the_example_declaration_is_parsed() -> None:
    pipeline = parse(EXAMPLE.read_text())
    assert [one.name for one in pipeline.steps] == ["attacks"]
    assert pipeline.inputs[0].watermark == Watermark("timestamp", "10 minutes")
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "2"}
    assert [(one.table, one.topic, one.parquet) for one in pipeline.outputs] == [
        ("lines", "", "ssh-rows"),
        ("attacks", "ssh-attacks", ""),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name = ", "pipeline:1: the pipeline is not TOML: Invalid value"),
        ('name = "p"\nname = "q"\n[in', "pipeline:2: the pipeline is not TOML: Cannot overwrite a value"),
        (
            "a = " + "[" * 9999,
            "pipeline:1: the pipeline is not TOML that can be read: its tables or arrays are too deep",
        ),
        (
            "a" + ".a" * 2999 + " = 1",
            "pipeline:1: the pipeline is not TOML that can be read: its tables or arrays are too deep",
        ),
        (
            LEAST + '[table.c]\nsql = "DROP TABLE a"\n',
            "pipeline:8: [table.c]: sql is a query, which begins with SELECT",
        ),
        ("a = " + "9" * 9999, "pipeline:1: the pipeline is not TOML that can be read: a number has too many digits"),
        (LEAST.replace('name = "p"', ""), "pipeline:1: name must be given"),
        (LEAST.replace('"p"', '"p q"'), "pipeline:1: name is letters, digits, _ and -, and begins with no digit"),
        (LEAST.replace('"p"', "7"), "pipeline:1: name is a text, not a number"),
        ('speed = "high"\n' + LEAST, "pipeline:1: there is no setting speed: There are name, in, out, table, plot"),
        ('triger = "1 second"\n' + LEAST, "pipeline:1: there is no setting triger: do you mean trigger? There are"),
        ('trigger = "10 sec"\n' + LEAST, "pipeline:1: trigger is available-now, or a time in weeks, days"),
        ('trigger = "1 month"\n' + LEAST, "pipeline:1: trigger is available-now, or a time without years and months"),
        ('delivery = "once"\n' + LEAST, "delivery is one of exactly-once, idempotent, at-least-once; not 'once'"),
        ('group-prefix = "a b"\n' + LEAST, "pipeline:1: group-prefix is the name of a consumer group: 1 to 249 of"),
        ('gateway = "http://a"\n' + LEAST, "pipeline:1: gateway is one or more URLs ws://host:port"),
        ('spark = "fast"\n' + LEAST, "pipeline:1: spark is a table, not a text"),
        (LEAST + "[spark]\na = [1]\n", "pipeline:8: spark: a is a text, a number, true or false; not an array"),
        (LEAST.replace('topic = "t"', ""), "pipeline:2: [in.a]: give exactly one of topic and subscribe-pattern"),
        (LEAST.replace('"t"', '"a b"'), "pipeline:3: [in.a]: topic is different topic names, separated by commas"),
        (
            LEAST.replace('topic = "t"', 'subscribe-pattern = "("'),
            "[in.a]: subscribe-pattern is a regular expression",
        ),
        (LEAST.replace('from = "a"', ""), "pipeline:4: [out.b]: from must be given"),
        (LEAST.replace('from = "a"', 'from = "c"'), "pipeline:5: [out.b]: there is no table c"),
        (LEAST.replace('from = "a"', 'from = "ab"'), "[out.b]: there is no table ab; do you mean a?"),
        (LEAST + 'topic = "x"\n', "pipeline:4: [out.b]: give exactly one of topic, iceberg, delta"),
        (LEAST + 'mode = "complete"\n', "pipeline:7: [out.b]: mode complete does not go with parquet"),
        (LEAST + 'mode = "upsert"\n', "pipeline:7: [out.b]: mode is one of append, complete; not 'upsert'"),
        (LEAST + 'partition-by = "day"\n', "pipeline:7: [out.b]: partition-by is an array of texts, not a text"),
        (
            LEAST + "partition-by = [\n1]\n",
            "pipeline:8: [out.b]: partition-by is an array of texts, and has a number",
        ),
        (LEAST + 'delivery = "idempotent"\n', "pipeline:7: [out.b]: delivery goes with topic"),
        (LEAST + '[table.A]\nsql = "SELECT 1"\n', "pipeline:7: two tables are called A; the first is in line 2"),
        (LEAST + "[table.c]\n", "pipeline:7: [table.c]: give either sql or python"),
        (LEAST + '[table.c]\npython = "steps"\n', "pipeline:8: [table.c]: python is file.py:function, not 'steps'"),
        (LEAST + '[table.c]\nsql = "x"\nwatermark = "1h"\n', "pipeline:9: [table.c]: watermark is a table such as"),
        (
            LEAST + '[table.c]\nsql = "x"\nwatermark = {column = "at", delay = "ten"}\n',
            "pipeline:9: [table.c.watermark]: delay is a time, such as",
        ),
        (LEAST + '[in.c]\ntopic = "c"\nvalue = "json"\n', "pipeline:9: [in.c]: value json needs schema"),
        (LEAST + '[in.c]\ntopic = "c"\nbad = "d"\n', "pipeline:9: [in.c]: bad goes with valid, columns or required"),
        (
            LEAST + '[in.c]\ntopic = "c"\nvalue = "xml"\n',
            "[in.c]: value is one of raw, json, cbor, regex, ",
        ),
        (LEAST + '[in.c]\ntopics = "c"\n', "pipeline:8: [in.c]: there is no setting topics: do you mean topic?"),
        (LEAST + '[in.c]\ntopic = "c"\noptions = {a = 1}\n', "pipeline:9: [in.c]: options: there is no option a"),
        (
            LEAST + '[in.c]\ntopic = "c"\noptions = {maxTriggerDelay = "1m"}\n',
            "pipeline:9: [in.c]: options: maxTriggerDelay bounds what minOffsetsPerTrigger waits for",
        ),
        (LEAST + '[plot.c]\nsql = "x"\n', "pipeline:7: [plot.c]: x and y must be given"),
        (LEAST + PLOT + 'mark = "pie"\n', "pipeline:11: [plot.c]: mark is one of line, bar; not 'pie'"),
        (LEAST + PLOT + 'file = "c.gif"\n', "pipeline:11: [plot.c]: file ends in .svg or .png, not 'c.gif'"),
        ('trigger = "1 second"\n' + LEAST + PLOT, "pipeline:8: [plot.c]: a plot is drawn at the end"),
        (LEAST + 'trigger = "1 second"\n' + PLOT, "pipeline:8: [plot.c]: a plot is drawn at the end"),
        (LEAST + '[in.c-d]\ntopic = "c"\n', "pipeline:7: [in.c-d]: a name is letters, digits and _"),
        (LEAST + "[in]\nc = 3\n", "pipeline:8: in.c is a table [in.c], not a number"),
        ('in = 3\nname = "p"\n', "pipeline:1: in is tables [in.NAME], not a number"),
        (
            LEAST + 'restart = { times = "many" }\n',
            "pipeline:7: [out.b.restart]: times is a whole number",
        ),
        (
            LEAST + 'restart = { on-failure = "stop" }\n',
            "pipeline:7: [out.b]: restart has no on-failure: it goes",
        ),
        (
            LEAST + "[restart]\ntimes = -1\n",
            "pipeline:8: [restart]: times is a whole number from 0 to",
        ),
        (
            LEAST + "[restart]\nretries = 1\n",
            "pipeline:8: [restart]: there is no setting retries: do you mean",
        ),
        (
            LEAST + '[restart]\nwithin = "soon"\n',
            "[restart]: within is a time such as 30s, 5m",
        ),
        (LEAST + '[restart]\ndelay = "0s"\n', "pipeline:8: [restart]: delay is a time such as 30s, 5m or 10 minutes"),
        (LEAST + '[restart]\ndelay = "2m"\n', "pipeline:7: [restart]: max-delay is not less than delay"),
        (LEAST + '[restart]\non-failure = "panic"\n', "pipeline:8: [restart]: on-failure is one of stop, go-on; not"),
        (LEAST + '[security]\npassword = "x"\n', "pipeline:8: [security]: there is no setting password"),
        (LEAST + '[security]\ntoken = ["secret"]\n', "pipeline:8: [security]: token is a text, not an array"),
        (
            LEAST + '[security]\ntoken = "x"\ntoken-env = "X"\n',
            "pipeline:7: [security]: give one of token,",
        ),
        (LEAST + '[security]\ncert = "x"\n', "pipeline:8: [security]: cert and key go together"),
        ('name = "p"\n', "a pipeline has at least one [in.NAME]\npipeline:1: a pipeline has at least one [out.NAME]"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_fault(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert fault in caught.value.message


def test_all_faults_are_told_at_once_in_the_order_of_their_lines() -> None:
    text = "trigger = 3\n" + LEAST.replace('"t"', "[1]").replace('"f"', '"f"\nspeed = 1') + "[table.c]\n"
    assert [(fault.line, fault.text.partition(":")[0]) for fault in read(text).faults] == [
        (1, "trigger is a text, not a number"),
        (4, "[in.a]"),
        (8, "[out.b]"),
        (9, "[table.c]"),
    ]


def test_the_settings_of_an_output_go_before_those_of_the_pipeline() -> None:
    text = 'delivery = "idempotent"\n' + LEAST.replace(
        'parquet = "f"', 'topic = "u"\ntrigger = "INTERVAL 90 seconds"'
    )
    output = parse(text + 'mode = "complete"\ndelivery = "at-least-once"\n').outputs[0]
    assert (output.trigger, output.mode, output.delivery) == ("INTERVAL 90 seconds", "complete", "at-least-once")


def test_a_file_that_is_not_there_and_one_that_is_wrong_end_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["pipeline", "run", str(tmp_path / "none.toml")])
    assert (result.exit_code, "none.toml: No such file" in result.output) == (2, True)
    (tmp_path / "p.toml").write_text('name = "p"')
    result = CliRunner().invoke(main, ["pipeline", "run", str(tmp_path / "p.toml")])
    assert (result.exit_code, "a pipeline has at least one [in.NAME]" in result.output) == (2, True)


def test_without_spark_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
    (tmp_path / "p.toml").write_text(LEAST)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["pipeline", "run", str(tmp_path / "p.toml")])
    assert (result.exit_code, "pip install 'tidelog[spark]'" in result.output) == (2, True)
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    result = CliRunner().invoke(main, ["pipeline", "run", str(tmp_path / "p.toml")])
    assert (result.exit_code, "openjdk-17-jre-headless" in result.output) == (2, True)


def test_under_spark_submit_the_master_is_not_ours_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
    (tmp_path / "p.toml").write_text(LEAST)
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    result = CliRunner().invoke(main, ["pipeline", "run", str(tmp_path / "p.toml"), "--master", "spark://a:7077"])
    assert (result.exit_code, "spark-submit --master spark://a:7077" in result.output) == (2, True)
