"""A client in Go that was written from the published pages alone: it builds, agrees with the vectors, and passes the
conformance suite. Skipped without Go, or where its modules cannot be fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parents[1] / "docs" / "vectors"
GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
HANGING_S = 900.0

pytestmark = pytest.mark.real


def run(*command: str | Path) -> str:
    """Run a command in the folder of the client, and return what it prints. It must succeed."""
    done = subprocess.run(
        command,
        cwd=HERE / "go",
        env=os.environ | {"TIDELOG_VECTORS": str(VECTORS), "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=HANGING_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def go() -> str:
    """The Go command, with the modules of the client there."""
    if GO is None:
        pytest.skip("Go is missing")
    fetched = subprocess.run([GO, "mod", "download"], cwd=HERE / "go", capture_output=True, check=False)
    if fetched.returncode:
        pytest.skip("the modules of the Go client cannot be fetched")
    return GO


def test_the_client_agrees_with_the_published_vectors(go: str) -> None:
    run(go, "vet", "./...")
    assert "no test files" not in run(go, "test", "-count=1", ".", "./internal/batch")


def test_the_client_passes_the_conformance_suite(go: str, tmp_path: Path) -> None:
    run(go, "build", "-o", tmp_path / "driver", "./cmd/driver")
    said = run(Path(sys.executable).parent / "tidelog", "conformance", "--client", str(tmp_path / "driver"))
    assert "0 failed" in said, said
