"""The public conformance suite of Durable Streams, unchanged, against a ``tidelog dev`` cluster. ``make
streams-suite`` fetches it; without it, or without Node, it is skipped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.js_tools import NODE
from tidelog.cli.local.local_cluster import free_base_port

HERE = Path(__file__).resolve().parent
SUITE = HERE.parents[1] / "build" / "streams"
VITEST = SUITE / "node_modules" / "vitest" / "vitest.mjs"
ORIGIN = "https://example.com"
"""The page that the suite pretends to be."""
NOT_OFFERED = "Fork - "
"""The beginning of the chapters about forks, which this server does not offer."""
HANGING_S = 1200.0
STARTING_S = 120.0
"""Seconds after which a cluster that does not start, or does not end, is killed."""

needs_suite = pytest.mark.skipif(NODE is None or not VITEST.exists(), reason="needs Node and 'make streams-suite'")


@contextmanager
def dev(folder: Path, origin: str = ORIGIN) -> Iterator[str]:
    """A ``tidelog dev`` cluster that pages of this origin may use. Yields the address of its streams."""
    port = free_base_port(1)
    command = [Path(sys.executable).parent / "tidelog", "dev", "-d", folder, "--port", str(port)]
    with subprocess.Popen([*command, "--allowed-origin", origin], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            with killed_late(process):
                while b"Ctrl-C" not in (line := process.stdout.readline()):
                    assert line, "tidelog dev has ended, or was too slow"
            yield f"http://127.0.0.1:{port}/v1/streams"
        finally:
            process.send_signal(signal.SIGINT)
            with killed_late(process):
                process.communicate()


@contextmanager
def killed_late(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process if the block takes too long, so that whatever waits for the process ends."""
    timer = threading.Timer(STARTING_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@needs_suite
def test_the_suite_passes_but_for_forks(tmp_path: Path) -> None:
    for name in ("conformance.test.js", "package.json"):
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    (tmp_path / "node_modules").symlink_to(SUITE / "node_modules")
    report = tmp_path / "report.json"
    with dev(tmp_path / "data") as streams:
        command = [str(NODE), VITEST, "run", "--reporter=json", f"--outputFile={report}", "--testTimeout=120000"]
        command += [f"--testNamePattern=^(?!.*{NOT_OFFERED})"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"STREAMS_URL": streams},
            capture_output=True,
            timeout=HANGING_S,
            check=False,
        )
    assert report.exists(), done.stderr.decode()
    found = [test for file in json.loads(report.read_text())["testResults"] for test in file["assertionResults"]]
    failed = [test["fullName"] + "\n" + test["failureMessages"][0] for test in found if test["status"] == "failed"]
    assert not failed, "\n".join(failed)
    passed = {test["fullName"] for test in found if test["status"] == "passed"}
    assert len(passed) >= 250, "the suite has become smaller"
    assert not any(name.startswith(NOT_OFFERED) for name in passed)
