"""Faults of a whole cluster of real processes, in short form: ``make chaos`` has all of them, longer, with Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "deploy" / "chaos"
FAULTS = ["kill-leader", "pause-gateway-0.5", "cut-active-controllers"]
FAULTS_OF_ROOT = ["power-follower"]
"""They take disks of their own."""
FAULTS_OF_HISTORY = ["other-version-gateway"]
"""They take git: the same revision stands for an earlier one."""

pytestmark = pytest.mark.real


def run_chaos(report: Path, *arguments: str) -> str:
    """What it tells. Nothing must be found."""
    command = [sys.executable, str(RUN), *arguments, "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_faults_that_overlap_lose_nothing_and_the_report_says_so(tmp_path: Path) -> None:
    names = [*FAULTS, *(FAULTS_OF_ROOT if os.geteuid() == 0 else [])]
    history = (RUN.parents[1] / ".git").exists()
    names += FAULTS_OF_HISTORY if history else []
    arguments = [word for name in names for word in ("--fault", name)]
    arguments += ["--old", "HEAD"] if history else []
    told = run_chaos(tmp_path / "report.html", *arguments, "--every", "1")
    for name in names:
        assert re.search(rf"healed in .*{name} ", told), told

    page = (tmp_path / "report.html").read_text()
    assert "Every promise was kept" in page and f"--fault {names[0]}" in page
    assert not re.search(r"https?://", page), "the page needs another host"
    assert not list(tmp_path.glob("*-logs"))


def test_faults_strike_links_through_proxies_and_the_report_names_omitted_ones(tmp_path: Path) -> None:
    names = ["cut-leader-all", "delay", "refused"]
    arguments = [word for name in names for word in ("--fault", name)]
    told = run_chaos(tmp_path / "report.html", "--links", "proxies", *arguments, "--every", "1")
    for name in names:
        assert re.search(rf"healed in .*{name} ", told), told
    page = (tmp_path / "report.html").read_text()
    assert "Every promise was kept" in page and "through a proxy each" in page
    left_out = page.partition("Left out here")[2]
    assert "<b>loss-30</b>" in left_out and "<b>power-all</b>" in left_out
    assert "cut-leader" not in left_out.partition("Run it again")[0]
