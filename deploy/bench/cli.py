"""The CPU time of short commands: what a user pays for each call of ``tidelog``, and for each press of the tab key.

    .venv/bin/python deploy/bench/cli.py [--runs 10] [--json FILE]

Every command is a process of its own, run to its end against a cluster of real processes on this machine. The figure
is the CPU time of that process, user and system together (``getrusage``), with warm file caches and compiled modules:
each command runs once before it is counted. The table has the median, the least and the most of the runs. CPU time
depends on the machine, and a busy machine makes it higher.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.cluster import running_cluster

PROGRAM = Path(sys.executable).with_name("tidelog")
TOPICS = ("orders", "payments", "shipments")
"""Topics that the cluster has."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command that is measured. ``target_ms``: the CPU time below which it is to stay."""

    name: str
    words: tuple[str, ...]
    target_ms: int
    completes: bool = False
    """The words are the beginning of a command line, and the shell asks how the last one goes on."""


CASES = (
    Case("tidelog --version", ("--version",), 150),
    Case("tidelog --help", ("--help",), 150),
    Case("tidelog topics list", ("topics", "list"), 400),
    Case("tidelog topics describe orders", ("topics", "describe", "orders"), 400),
    Case("tidelog consume orders --to-end", ("consume", "orders", "--to-end"), 400),
    Case("TAB: tidelog topics describe o", ("topics", "describe", "o"), 300, completes=True),
    Case("TAB: tidelog consume o", ("consume", "o"), 300, completes=True),
    Case("TAB: tidelog top", ("top",), 150, completes=True),
)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The CPU times of the runs of a case, in ms."""

    case: str
    target_ms: int
    median_ms: float
    least_ms: float
    most_ms: float


def cpu_ms(case: Case, gateway: str) -> float:
    """Run a command against a gateway, and return the CPU time of its process in ms. Raises ``RuntimeError`` if the
    command fails or does not print what it should."""
    environ = os.environ | {"TIDELOG_GATEWAY": gateway}
    words = list(case.words)
    if case.completes:  # what the script of 'tidelog completion bash' sets
        environ |= {"COMP_WORDS": " ".join(["tidelog", *words]), "COMP_CWORD": str(len(words))}
        environ |= {"_TIDELOG_COMPLETE": "bash_complete"}
        words = []
    process = subprocess.Popen([PROGRAM, *words], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    output, complaint = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    asked_for_topics = "topics" in case.words or case.words == ("consume", "o")
    if process.returncode or (asked_for_topics and TOPICS[0].encode() not in output):
        raise RuntimeError(f"{case.name}: {process.returncode}, {output!r} {complaint!r}")
    return 1000 * (usage.ru_utime + usage.ru_stime)


def measure(case: Case, gateway: str, runs: int) -> CpuTimes:
    """Run a command once uncounted and ``runs`` times counted, and return its CPU times."""
    cpu_ms(case, gateway)
    times = [cpu_ms(case, gateway) for _ in range(runs)]
    return CpuTimes(case.name, case.target_ms, median(times), min(times), max(times))


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(1), default=10, show_default=True, help="Counted runs of each command.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here.")
def main(runs: int, json_file: Path | None) -> None:
    with running_cluster() as cluster:
        (gateway,) = cluster.gateways()
        for topic in TOPICS:
            create = [PROGRAM, "topics", "create", topic, "--gateway", gateway]
            subprocess.run(create, stdout=subprocess.DEVNULL, check=True)
        rows = [measure(case, gateway, runs) for case in CASES]
    print("| command | target, ms of CPU | median | least | most |")
    print("|---|---|---|---|---|")
    for row in rows:
        print(f"| `{row.case}` | {row.target_ms} | {row.median_ms:.0f} | {row.least_ms:.0f} | {row.most_ms:.0f} |")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
