"""The records of the demo: metrics of this host, or the lines of a file; and what it leaves out on a machine that
lacks something."""

from __future__ import annotations

import importlib.util
import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
from tidelog.cli.demo import report
from tidelog.cli.demo.script import DemoRun, host_metrics

find_spec = importlib.util.find_spec


def first(count: int) -> dict[str, float]:
    """The first metrics by name; the key of each record is its name."""
    found = {}
    for key, value in islice(host_metrics(), count):
        document = json.loads(value)
        assert key == document["metric"].encode() and document["time"] > 0
        found[document["metric"]] = document["value"]
    return found


def test_a_host_tells_of_its_processors_its_memory_and_its_network() -> None:
    kinds = {name.partition(".")[0] for name in first(500)}
    assert {"cpu", "memory", "load", "net"} <= kinds


def test_a_host_without_proc_tells_what_any_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not path.is_relative_to("/proc") and exists(path))
    found = first(20)
    assert {"cpu.user_ticks", "cpu.children_system_ticks", "load.15m", "disk.free_bytes"} <= set(found)
    assert len(found) == 9, "and then all of them again"


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
