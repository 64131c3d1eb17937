"""What the demo leaves out on a machine that lacks something."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from tidelog.cli.demo import report
from tidelog.cli.demo.script import DemoRun

find_spec = importlib.util.find_spec


async def note(folder: Path) -> str:
    """Return what the report of a demo says of Spark."""
    demo = DemoRun(folder, folder / "out", None, 1, spark=True)
    await demo._run_spark()
    return next(line for line in report.text(demo.result) if line.startswith("spark"))


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "matplotlib"])
async def test_without_a_package_spark_is_left_out_with_a_hint(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != missing and find_spec("trio"))
    assert await note(tmp_path) == "spark      left out: Spark is not installed: pip install 'tidelog[spark,plots]'"


async def test_without_java_spark_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: find_spec("trio"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install openjdk-17-jre-headless" in await note(tmp_path)
