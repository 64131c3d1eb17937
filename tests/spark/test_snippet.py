"""The first program of docs/spark.md runs in an environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync
from pages.place import ROOT, blocks

pytestmark = [pytest.mark.spark]

PATIENCE_S = 240


def test_the_python_of_the_program_is_that_of_spark(java: None, cluster: Any, tmp_path: Path) -> None:
    with tidelog.sync.connect(cluster.url) as log:
        log.topics.create("snippet", config={"flush": "os"})
        with log.producer("snippet") as producer:
            producer.send(b"v", key=b"k")
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho the python3 of the PATH; exit 1\n")
    other.chmod(0o755)
    program, *_ = blocks((ROOT / "docs" / "spark.md").read_text(), "python")
    program = program.replace('"orders")', f'"snippet").option("gateway", "{cluster.url}")')
    quiet = '.config("spark.ui.enabled", "false").master("local[1]").getOrCreate()'
    (tmp_path / "program.py").write_text(program.replace(".getOrCreate()", quiet))
    here = Path(sys.executable).parent
    path = [name for name in os.environ["PATH"].split(os.pathsep) if Path(name) != here]
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "VIRTUAL_ENV"))}
    environ |= {"PATH": os.pathsep.join([str(tmp_path), *path]), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:6]] for line in done.stdout.splitlines()]
    assert ["[6B]", "[76]", "snippet", "0", "0"] in rows
    assert len(list((tmp_path / "tidelog").glob("spark-python-*"))) == 1, "the script by which Python starts faster"
