"""Tests ``tidelog.cli.records.tables``: ``tidelog table``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from model.table_subjects import FORMATS, address_of, append_of
from tidelog.cli.main import main
from tidelog.tables.committer import MIN_EXPIRY_S, commit
from tidelog.tables.tables import open_table

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # SQLAlchemy leaves connections to be collected


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["table", *words])
    return done.exit_code, done.output


@pytest.mark.parametrize("format", FORMATS)
def test_small_files_are_joined(format: str, tmp_path: Path) -> None:
    address = address_of(format, tmp_path)
    table = open_table(address)
    for batch in range(3):
        commit(table, append_of(table, batch, batch), time.time_ns())
    catalog = [word for name, value in address.catalog.items() for word in ("--catalog", f"{name}={value}")]
    assert run("compact", format, address.place, *catalog) == (0, "3 files joined to 1\n")
    assert len(table.files()) == 1
    code, said = run("expire", format, address.place, *catalog, "-o", "json")
    assert (code, json.loads(said)) == (0, {"snapshots": 0, "files": 0})


def test_files_that_a_pipeline_may_still_commit_cannot_be_expired() -> None:
    code, said = run("expire", "delta", "nowhere", "--older-than", f"{MIN_EXPIRY_S - 1}s")
    assert code == 2
    assert "must be at least" in said


def test_a_table_that_does_not_exist_is_said(tmp_path: Path) -> None:
    code, said = run("compact", "parquet", str(tmp_path / "none"))
    assert code == 1
    assert "has no manifest" in said
    assert run("compact", "parquet", "x", "--storage", "endpoint")[0] == 2
