"""The check of a pipeline's file, with all that a file may be."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tidelog.cli import main
from tidelog.spark.pipelines.check import check
from tidelog.spark.pipelines.declaration import read

LEAST = 'name = "p"\n[in.a]\ntopic = "t"\n[out.b]\nfrom = "a"\nparquet = "f"\n'


def checked(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", "check", str(file), "--no-spark", *arguments])


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (None, "steps.py: No such file or directory"),
        ("def make(spark): pass", ""),
        ("def make(spark, limit=3): pass", ""),
        ("def make(*all): pass", ""),
        ("make = 1", ""),
        ("from other import made as make", ""),
        ("from other import *", ""),
        ("try:\n    import make\nexcept ImportError: pass", ""),
        ("def other(spark): pass", "steps.py has no function make; it has other"),
        ("class A:\n    def make(spark): pass", "steps.py has no function make; it has none"),
        ("\ndef make(): pass", "steps.py:2: make must take one argument, the Spark session"),
        ("def make(a, b): pass", "steps.py:1: make must take one argument, the Spark session"),
        ("def make(a, *, b): pass", "steps.py:1: make must take one argument, the Spark session"),
        ("async def make(a): pass", "steps.py:1: make is an async function, which Spark cannot call"),
        ("\n def", "steps.py:2: this is not valid Python: unexpected indent"),
        ("\0", "steps.py: this is not valid Python: source code string cannot contain null bytes"),
    ],
)
def test_the_function_of_a_step(code: str | None, fault: str, tmp_path: Path) -> None:
    if code is not None:
        (tmp_path / "steps.py").write_text(code)
    reading = check(LEAST + '[table.c]\npython = "steps.py:make"\n', {}, tmp_path)
    assert [one.shown("p") for one in reading.faults] == ([f"p:8: [table.c]: {fault}"] if fault else [])


def test_all_faults_are_printed_as_compilers_do(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(LEAST.replace('"p"', "3") + 'tipic = "x"\n')
    done = checked(file)
    assert (done.exit_code, done.stdout.splitlines()) == (
        1,
        [
            f"{file}:1: name is a text, not a number",
            f"{file}:7: [out.b]: there is no setting tipic: do you mean topic? There are from, topic, iceberg, "
            "delta, manifest, parquet, catalog, upsert-by, value, key, partition-by, trigger, mode, delivery, "
            "options, restart",
        ],
    )
    done = checked(file, "-o", "json")
    assert [one["line"] for one in json.loads(done.stdout)["faults"]] == [1, 7]
    file.write_text(LEAST)
    done = checked(file)
    assert (done.exit_code, done.stdout) == (0, f"{file}: no errors in 1 input, 1 output\n")


def test_variables_come_from_the_command_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.toml"
    file.write_text(LEAST.replace('"t"', '"${TOPIC_OF_A}"'))
    assert "the variable TOPIC_OF_A has no value" in checked(file).stdout
    monkeypatch.setenv("TOPIC_OF_A", "no topic")
    assert "not '${TOPIC_OF_A}'" in checked(file).stdout
    assert checked(file, "--set", "TOPIC_OF_A=t").exit_code == 0
    done = checked(file, "--set", "TOPIC_OF_A")
    assert (done.exit_code, "'TOPIC_OF_A' is not NAME=VALUE" in done.stderr) == (2, True)


def test_what_is_no_text_is_no_pipeline(tmp_path: Path) -> None:
    def told(file: Path) -> str:
        done = checked(file)
        assert (done.exit_code, isinstance(done.exception, SystemExit)) == (2, True)
        return done.stderr.replace(str(tmp_path), "")

    assert told(tmp_path) == "tidelog: : Is a directory\n"
    assert told(tmp_path / "none") == "tidelog: /none: No such file or directory\n"
    (tmp_path / "bytes").write_bytes(b"name = 1\n\xff")
    assert told(tmp_path / "bytes") == "tidelog: /bytes:2: the file is not UTF-8\n"
    assert "at most 1048576 bytes" in told(Path("/dev/zero"))
    (tmp_path / "mine").write_text(LEAST)
    (tmp_path / "mine").chmod(0)
    if os.access(tmp_path / "mine", os.R_OK):
        return  # the superuser may read everything
    assert told(tmp_path / "mine") == "tidelog: /mine: Permission denied\n"


WORDS = [
    *("topic", "subscribe-pattern", "value", "schema", "bad", "watermark", "options", "sql", "python", "from"),
    *("parquet", "delta", "key", "partition-by", "trigger", "mode", "delivery", "x", "y", "by", "mark", "title"),
    *("file", "name", "nonsense"),
]
VALUES: Any = st.recursive(
    st.one_of(
        st.booleans(), st.integers(-9, 9), st.sampled_from(["", "a", "t", "1 second", "json", "${X}", "x.py:f"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=4,
)
SETTINGS = st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=6)
TABLES = st.one_of(VALUES, st.dictionaries(st.sampled_from(["a", "b", "A", "a-b", ""]), st.one_of(VALUES, SETTINGS)))
TREES = st.dictionaries(
    st.sampled_from(["name", "in", "table", "out", "plot", "spark", "trigger", "delivery", "checkpoints", "gateway"]),
    st.one_of(VALUES, TABLES),
)


@given(TREES)
def test_no_toml_breaks_the_check(tree: dict[str, Any]) -> None:
    def toml(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(name)} = {toml(one)}" for name, one in value.items()) + "}"
        return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)

    text = "\n".join(f"{name} = {toml(value)}" for name, value in tree.items())
    lines = text.count("\n") + 1
    assert all(1 <= fault.line <= lines for fault in check(text, {}, Path("none")).faults)
    read(text, None)


@given(st.text(string.ascii_letters + "[]{}=.,'\"\\#\n \t12-_é\0\r", max_size=60))
def test_no_text_breaks_the_check(text: str) -> None:
    assert check(text, {}, Path("none")).errors()


def test_without_spark_or_java_the_rest_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.toml"
    file.write_text(LEAST)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        done = CliRunner().invoke(main, ["pipeline", "check", str(file)])
    assert (done.exit_code, done.stdout) == (0, f"{file}: no errors in 1 input, 1 output\n")
    assert done.stderr.startswith(f"{file}: the SQL was not analysed: Spark is not installed: pip install")
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    done = CliRunner().invoke(main, ["pipeline", "check", str(file), "-o", "json"])
    assert (done.exit_code, json.loads(done.stdout)["sql_analysed"]) == (0, False)
    assert json.loads(done.stdout)["not_analysed_because"].startswith("Spark needs Java 17, which is not installed")
