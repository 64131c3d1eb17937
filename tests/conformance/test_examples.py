"""The examples of the documentation do what they say, on a real cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from real.running import Cluster

pytestmark = pytest.mark.real
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def run(cluster: Cluster, program: str, *arguments: str) -> list[str]:
    """Run an example program with the address of a gateway, and return the lines of its output. Fails if its exit
    code is not 0."""
    command = [sys.executable, EXAMPLES / program, cluster.gateways[0], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_orders_and_books_on_trio(cluster: Cluster) -> None:
    for day in (1, 2):
        lines = run(cluster, "orders_trio.py")
        assert {"30 orders are safe", "ada owes 1350", "grace owes 1450", "edsger owes 1550"} < set(lines)
        (last,) = [line for line in lines if line.startswith("tomorrow")]
        assert sum(map(int, re.findall(r": (\d+)", last))) == 30 * day


def test_tickets_on_asyncio(cluster: Cluster) -> None:
    lines = run(cluster, "tickets_asyncio.py")
    taken = [int(number) for line in lines for number in re.search(r"\[(.*)\]", line)[1].split(", ")]
    assert sorted(taken) == list(range(10))


def test_lines_of_files_in_threads(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("".join(f"line {number}\n" for number in range(5000)))
    (tmp_path / "two.txt").write_bytes(b"\x00\xff\nno end of line")
    lines = run(cluster, "lines_sync.py", str(tmp_path / "one.txt"), str(tmp_path / "two.txt"))
    assert lines == ["one.txt: 5000 lines, the same when read back", "two.txt: 2 lines, the same when read back"]
