"""The benchmark runs against real processes and writes down what it says it does. What it measured is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "deploy" / "bench" / "bench.py"

pytestmark = pytest.mark.real


def test_the_benchmark_writes_down_its_figures(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    command = [sys.executable, str(BENCH), "--smoke", "--seconds", "0.5", "--flush", "os", "--flush", "fsync"]
    command += ["--data", str(tmp_path / "data"), "--json", str(report_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads(report_file.read_text())
    assert set(report) == {"machine", "seconds", "rounds", "start_s", "resident_mb", "rows"}
    assert report["resident_mb"] > 0 and report["start_s"] > 0
    rows = report["rows"]
    assert [row["flush"] for row in rows] == ["os"] * 3 + ["fsync"] * 3
    for row in rows:
        assert set(row) == {"case", "flush", "mb_per_s", "records_per_s", "p50_ms", "p99_ms", "cpu"}
        assert row["case"] and row["records_per_s"] > 0
        assert set(row["cpu"]) == {"c1", "g1", "r1", "r2", "r3", "client"}
    for row in (rows[0], rows[1]):
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert list((tmp_path / "data").iterdir()) == [], "the cluster's folder is gone"
