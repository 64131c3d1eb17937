"""Options of ``tidelog dev`` that are wrong."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from tidelog.cli.main import main


def test_an_origin_without_a_scheme_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = CliRunner().invoke(main, ["dev", "--data", str(data), "--allowed-origin", "localhost:3000"])
    assert (done.exit_code, "'localhost:3000' has not the form http://host:port" in done.stderr) == (2, True)
    assert not data.exists()
