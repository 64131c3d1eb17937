"""Faults of a whole cluster of real processes, in short form: ``make chaos`` has all of them, and longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "deploy" / "chaos" / "run.py"
FAULTS = ["kill-leader", "pause-gateway-0.5"]
FAULTS_OF_ROOT = ["cut-active-controllers", "power-follower"]
"""They take hosts and disks of their own."""

pytestmark = pytest.mark.real


def test_faults_that_overlap_lose_nothing_and_the_report_says_so(tmp_path: Path) -> None:
    names = [*FAULTS, *(FAULTS_OF_ROOT if os.geteuid() == 0 else [])]
    arguments = [word for name in names for word in ("--fault", name)]
    command = [sys.executable, str(RUN), *arguments, "--every", "1", "--report", str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert re.search(rf"healed in .*{name} ", done.stdout), done.stdout

    page = (tmp_path / "report.html").read_text()
    assert "Every promise was kept" in page and f"--fault {names[0]}" in page
    assert not re.search(r"https?://", page), "the page needs another host"
    assert not list(tmp_path.glob("*-logs"))
