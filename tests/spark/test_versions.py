"""Other versions of PySpark than the installed one, and Spark Connect: what works with them, and what errors say of
the rest. ``make spark-versions`` fetches them; without that they are skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

pytestmark = [pytest.mark.spark]

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 420
ALL = {
    "batch_read": 100,
    "filtered_read": 10,
    "unknown_option": "TIDELOG_OPTION",
    "batch_write": 100,
    "stream_read": 100,
    "stream_write": 110,
}
NO = "TIDELOG_VERSION"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("4.0", ALL | {"filtered_read": NO, "batch_write": NO, "stream_read": NO, "stream_write": NO}),
        ("4.1", ALL | {"stream_read": NO}),
        ("4.2", ALL),
        ("connect", ALL),
    ],
)
def test_what_works_works_and_the_rest_says_what_it_needs(
    java: None, cluster: Any, tmp_path: Path, version: str, expected: dict[str, int | str]
) -> None:
    fetched = ROOT / "build" / f"spark-{version}"
    if not (fetched / "installed").exists():
        pytest.skip(f"Spark {version} is missing: make spark-versions")
    topic = f"on-{version}"
    with tidelog.sync.connect(cluster.url) as log:
        log.topics.create(topic, config={"flush": "os"})
        log.topics.create(f"{topic}-copies", config={"flush": "os"})
        with log.producer(topic) as producer:
            for n in range(100):
                producer.submit(b"%d" % n, key=b"k", timestamp_ms=1000 + n)
    program = Path(__file__).parent / "versions" / "program.py"
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    environ |= {"PYTHONPATH": os.pathsep.join([str(fetched), str(ROOT / "shared")]), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(program), cluster.url, topic, "sc:local[1]" if version == "connect" else "local[1]"],
        cwd=tmp_path,
        env=environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
