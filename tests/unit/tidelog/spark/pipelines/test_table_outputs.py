"""Tests ``tidelog.spark.pipelines.table_outputs``: the options that a declaration means."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidelog.errors import ConfigError
from tidelog.spark.errors import SourceError
from tidelog.spark.pipelines.declaration import DeclaredOutput, parse
from tidelog.spark.pipelines.restart_policy import is_worth_restart
from tidelog.spark.pipelines.table_outputs import options_of, prepared_options


def placed(folder: Path | str, path: str) -> str:
    return path if "://" in path else f"{folder}/{path}"


def test_folders_are_below_that_of_the_pipeline(tmp_path: Path) -> None:
    for declared, kind in (
        (DeclaredOutput("x", "t", delta="lake", partition_by=("day(at)", "city")), "delta"),
        (DeclaredOutput("x", "t", manifest="lake", partition_by=("day(at)", "city")), "parquet"),
    ):
        options = options_of(declared, lambda path: placed(tmp_path, path))
        assert options == {"format": kind, "table": f"{tmp_path}/lake", "partitionBy": "day(at),city"}
    latest = options_of(DeclaredOutput("x", "t", delta="lake", upsert_by="id"), lambda path: placed(tmp_path, path))
    assert latest["upsertBy"] == "id"
    url = options_of(DeclaredOutput("x", "t", delta="s3://b/lake"), lambda path: placed(tmp_path, path))
    assert url["table"] == "s3://b/lake"


def test_a_catalog_that_is_given_is_taken_as_it_is(tmp_path: Path) -> None:
    declared = DeclaredOutput("x", "t", iceberg="a.b", catalog={"type": "rest", "uri": "http://c"})
    assert options_of(declared, lambda path: placed(tmp_path, path)) == {
        "format": "iceberg",
        "table": "a.b",
        "catalog.type": "rest",
        "catalog.uri": "http://c",
    }


def test_without_a_catalog_there_is_one_in_a_file(tmp_path: Path) -> None:
    declared = DeclaredOutput("x", "t", iceberg="a.b")
    options = options_of(declared, lambda path: placed(tmp_path, path))
    assert options["catalog.uri"] == f"sqlite:///{tmp_path}/warehouse/catalog.db"
    assert (tmp_path / "warehouse").is_dir()
    with pytest.raises(ConfigError, match="give catalog"):
        options_of(declared, lambda path: f"s3://bucket/{path}")


def test_a_table_that_cannot_be_reached_is_worth_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="PySpark is not installed: pip install 'tidelog[spark]'")
    monkeypatch.setattr("tidelog.spark.table_sink.PREPARE_WAITS_S", ())
    (tmp_path / "file").write_text("in the place of the folder")
    rows: Any = SimpleNamespace(schema=types.StructType().add("id", types.LongType()))
    declared = DeclaredOutput("x", "t", manifest="file/table")
    with pytest.raises(SourceError, match="cannot be reached") as failed:
        prepared_options(rows, declared, "p", lambda path: placed(tmp_path, path), {})
    assert is_worth_restart(str(failed.value))
    wrong = DeclaredOutput("x", "t", manifest="table", partition_by=("day(id)",))
    with pytest.raises(ConfigError, match=r"\[out.x\]: \[TIDELOG_TABLE_SCHEMA\]"):
        prepared_options(rows, wrong, "p", lambda path: placed(tmp_path, path), {})


def test_declarations_of_tables() -> None:
    outputs = """
        name = "p"
        [in.t]
        topic = "t"
        [out.a]
        from = "t"
        iceberg = "a.b"
        catalog = { type = "rest", uri = "http://c" }
        [out.b]
        from = "t"
        manifest = "files"
    """
    assert [(one.iceberg, one.manifest) for one in parse(outputs).outputs] == [("a.b", ""), ("", "files")]
    with pytest.raises(ConfigError, match="exactly one of topic, iceberg, delta, manifest, parquet"):
        parse(outputs + 'delta = "files"')
    with pytest.raises(ConfigError, match="upsert-by goes with iceberg and delta"):
        parse(outputs + 'upsert-by = "id"')
    with pytest.raises(ConfigError, match="catalog goes with iceberg"):
        parse(outputs + 'catalog = { type = "rest" }')
