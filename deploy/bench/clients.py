"""What clients see of a local cluster, with ``tidelog bench``: the rows of docs/performance.md.

.venv/bin/python deploy/bench/clients.py [--seconds 10] [--json FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import trio
from tidelog.cli.local_cluster import LocalCluster, free_base_port

FLUSH_OS = ("--config", "flush=os")
SMALL = ("--record-bytes", "100")
CASES = (
    ("produce", *FLUSH_OS),
    ("produce", "--producers", "16", *FLUSH_OS),
    ("fanout", "--subscribers", "1", "--rate", "20", *SMALL, *FLUSH_OS),
    ("fanout", "--subscribers", "1", "--idle", "1000", "--rate", "20", *SMALL, *FLUSH_OS),
    ("fanout", "--subscribers", "100", "--rate", "20", *SMALL, *FLUSH_OS),
    ("latency", *SMALL, *FLUSH_OS),
    ("latency", *SMALL, "--config", "flush=fsync"),
)


def measure(gateway: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Run ``tidelog bench``; its report."""
    command = [sys.executable, "-m", "tidelog.cli", "bench", *arguments, "--json"]
    environment = os.environ | {"TIDELOG_GATEWAY": gateway}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def row(arguments: tuple[str, ...], figures: dict[str, Any]) -> str:
    """A line of the table. Delays in ms."""
    delays = [figures["latency_ms"][name] for name in ("p50", "p99", "p99_9", "max")]
    texts = ["" if delay is None else f"{delay:,.2f}" for delay in delays]
    speed = (f"{figures['records_per_s']:,.0f}", f"{figures['mb_per_s']:,.1f}")
    flush = arguments[-1].partition("=")[2]
    return "| " + " | ".join([arguments[0], figures["case"], flush, *speed, *texts]) + " |"


@click.command()
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Length of each case.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the reports here too.")
def main(seconds: float, json_file: Path | None) -> None:
    """Start a cluster, measure it as clients see it, print a table."""
    reports = []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        cluster = LocalCluster.create(
            Path(folder), controllers=1, replicas=3, gateways=1, base_port=free_base_port(5)
        )
        try:
            cluster.start()
            trio.run(cluster.wait_ready)
            click.echo("| bench | case | flush | records/s | MB/s | p50 | p99 | p99.9 | max ms |")
            click.echo("|---|---|---|---|---|---|---|---|---|")
            for arguments in CASES:
                report = measure(cluster.gateways()[0], (*arguments[:1], "--seconds", str(seconds), *arguments[1:]))
                reports.append(report)
                for figures in report["rows"]:
                    click.echo(row(arguments, figures))
        finally:
            cluster.stop()
    if json_file:
        json_file.write_text(json.dumps(reports, indent=2) + "\n")


if __name__ == "__main__":
    main()
