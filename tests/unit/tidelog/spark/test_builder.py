"""Tests ``tidelog.spark.builder``: which Python a session's processes run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tidelog.spark
from tidelog.spark.worker_python import worker_python

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")


@pytest.mark.parametrize(
    ("environ", "python"),
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "/of/the/user"}, "/of/the/user"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, None),
    ],
    ids=["by default", "set by the user", "under spark-submit"],
)
def test_spark_runs_this_python_unless_another_is_chosen(
    environ: dict[str, str], python: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(environ))
    made: Any = tidelog.spark.builder()
    assert os.environ.get("PYSPARK_PYTHON") == python
    assert made.appName("orders").master("local[1]") is made


def test_a_master_on_this_machine_has_a_python_that_starts_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"XDG_CACHE_HOME": str(tmp_path)})
    made: Any = tidelog.spark.builder("local[3]")
    assert os.environ["PYSPARK_PYTHON"] == worker_python("local") != sys.executable
    assert made._options == {"spark.master": "local[3]"}
