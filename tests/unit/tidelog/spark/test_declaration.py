"""What a pipeline's file may say, and what is said of one that may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tidelog.cli import main
from tidelog.errors import ConfigError
from tidelog.spark.declaration import Watermark, parse

EXAMPLE = Path(__file__).resolve().parents[4] / "docs" / "examples" / "ssh_attacks.toml"
LEAST = 'name = "p"\n[in.a]\ntopic = "t"\n[out.b]\nfrom = "a"\nparquet = "f"\n'
PLOT = '[plot.c]\nsql = "SELECT x, y FROM b"\nx = "x"\ny = "y"\n'


def test_the_least_that_a_pipeline_needs() -> None:
    pipeline = parse(LEAST)
    assert (pipeline.inputs[0].topic, pipeline.outputs[0].table, pipeline.trigger) == ("t", "a", "available-now")


def test_the_example_declaration_is_parsed() -> None:
    pipeline = parse(EXAMPLE.read_text())
    assert [one.name for one in pipeline.steps] == ["events", "attacks"]
    assert pipeline.steps[0].watermark == Watermark("at", "10 minutes")
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "2"}
    assert [(one.table, one.topic, one.parquet) for one in pipeline.outputs] == [
        ("events", "", "ssh-rows"),
        ("attacks", "ssh-attacks", ""),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name = ", "the pipeline is not TOML"),
        (LEAST.replace('name = "p"', ""), "name is letters, digits, _ and -, and must be given"),
        ('speed = "high"\n' + LEAST, "there is no setting speed; a pipeline has name, gateway"),
        (LEAST.replace('topic = "t"', ""), "[in.a]: topic must be given"),
        (LEAST.replace('from = "a"', ""), "[out.b]: from must be given"),
        (LEAST.replace('from = "a"', 'from = "c"'), "[out.b]: there is no table c"),
        (LEAST + 'topic = "x"\n', "[out.b]: give exactly one of topic, parquet and delta"),
        (LEAST + '[table.a]\nsql = "SELECT 1"\n', "two tables are called a"),
        (LEAST + "[table.c]\n", "[table.c]: give either sql or python"),
        (LEAST + '[table.c]\npython = "steps"\n', "[table.c]: python is file.py:function, not 'steps'"),
        (LEAST + '[table.c]\nsql = "x"\nwatermark = "1h"\n', "[table.c]: watermark is such as"),
        (LEAST + '[in.c]\ntopic = "c"\nvalue = "json"\n', "[in.c]: schema goes with value json or cbor"),
        (LEAST + '[in.c]\ntopic = "c"\nbad = "d"\n', "[in.c]: every raw value is a good one"),
        (LEAST + '[in.c]\ntopic = "c"\nvalue = "avro"\n', "[in.c]: value is one of raw, json, cbor; not 'avro'"),
        (LEAST + '[in.c]\ntopics = "c"\n', "[in.c]: there is no setting topics; there are topic, value, schema"),
        (LEAST + '[plot.c]\nsql = "x"\n', "[plot.c]: sql, x and y must be given"),
        (LEAST + PLOT + 'mark = "pie"\n', "[plot.c]: mark is one of line, bar; not 'pie'"),
        (LEAST + PLOT + 'file = "c.gif"\n', "[plot.c]: file ends in .svg or .png, not 'c.gif'"),
        ('trigger = "1 second"\n' + LEAST + PLOT, "[plot.c]: a plot is made at the end"),
        (LEAST + '[in.c-d]\ntopic = "c"\n', "[in.c-d]: a name is letters, digits and _"),
        ('name = "p"\n', "a pipeline has at least one [in.NAME]\na pipeline has at least one [out.NAME]"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_fault(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert fault in caught.value.message


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
