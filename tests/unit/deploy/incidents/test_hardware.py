"""What incidents change below the processes: clocks, syncs, releases; and that twins and alerts of all are there."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from incidents import hardware, releases
from incidents.catalogue import load_catalogue
from tidelog.feature_levels import NEWEST

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"

CATALOGUE = load_catalogue()
ALERTS = {alert.name for alert in runpy.run_path(str(DEPLOY / "generate" / "alerts.py"))["ALERTS"]}
PROGRAM = """
import json, os, sys, time
began = time.monotonic()
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.fdatasync(file), os.fsync(file)
print(json.dumps([time.time(), time.monotonic() - began]))
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="the libraries are built by gcc")
def test_the_clock_and_the_syncs_of_a_process_are_as_its_files_say(tmp_path: Path) -> None:
    libraries = hardware.build(tmp_path)
    hardware.prepare(tmp_path)

    def observed() -> tuple[float, float]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, tmp_path / "file"],
            env=os.environ | hardware.variables(libraries, tmp_path),
            capture_output=True,
            check=True,
        )
        wall, took = json.loads(done.stdout)
        return wall - time.time(), took

    ahead, _ = observed()
    assert abs(ahead) < 60
    hardware.set_clock(tmp_path, -600)
    hardware.set_sync_delay(tmp_path, 0.4)
    ahead, took = observed()
    assert -660 < ahead < -540 and took >= 0.8, "two syncs"


def test_an_earlier_release_has_another_version_and_understands_less(tmp_path: Path) -> None:
    releases.make_earlier(tmp_path)
    program = "from importlib.metadata import version; print(version('tidelog'))"
    variables = releases.variables(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == releases.VERSION
    assert variables["TIDELOG_FEATURE_LEVEL_MAX"] == str(NEWEST - 1)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_incident_has_a_twin_of_the_same_symptom_and_another_cause_and_its_alert_exists(name: str) -> None:
    one = CATALOGUE[name]
    assert one.symptom.endswith(".") and (not one.alert or one.alert in ALERTS)
    if one.twin:
        twin = CATALOGUE[one.twin]
        assert twin.symptom == one.symptom and twin.cause != one.cause


def test_the_page_has_every_incident_with_the_cause_that_must_be_named() -> None:
    page = runpy.run_path(str(DEPLOY / "generate" / "incidents_page.py"))["page"]()
    rows = {one.name: f"| `{one.name}` | {one.symptom} | `{one.cause}` |" for one in CATALOGUE.values()}
    assert not [name for name, row in rows.items() if row not in page]
