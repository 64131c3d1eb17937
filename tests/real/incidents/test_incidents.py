"""Planted incidents in a cluster of real processes, in short form: ``make incidents`` has all of them, and pairs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

RUN = Path(__file__).resolve().parents[3] / "deploy" / "incidents"
QUICK = ("read-only", "paused", "only-server-down", "stuck-stable-offset", "controllers-lost")
"""Incidents that are named and mended within seconds."""
COUNT = 3
LIMIT_S = "120"
"""Seconds until a cause must be named on a busy machine."""

pytestmark = pytest.mark.real


@pytest.mark.parametrize("seed", [1])
def test_the_doctor_names_the_cause_of_planted_incidents_and_is_silent_after_the_mend(seed: int) -> None:
    names = Random(seed).sample(QUICK, COUNT)
    command = [sys.executable, str(RUN), *names, "--seed", str(seed), "--one-cluster", "--limit", LIMIT_S]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        assert re.search(rf"^{name}: named after [0-9.]+ s, silent [0-9.]+ s after", done.stdout, re.M), done.stdout
