"""What clients see of a local cluster, with ``tidelog bench``: the rows of docs/lab/clients.md.

.venv/bin/python deploy/bench/clients.py [--seconds 10] [--only plain] [--compare tokens] [--rounds 6] [--json FILE]

First all cases without any security, then a few of them with TLS on every plane, with tokens and rules, with
encryption at rest, and with all three: each on a cluster of its own. CPU is that of the gateway and of the replica
servers; memory that of the gateway: how much more it was at its highest than before the case.

With ``--compare`` it measures only what one of these setups costs. Two clusters run beside each other, one plain and
one with that setup, and each case is measured on both in turn. The table has the ratio within each pair: 1 is "as
good as plain", more is better.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import trio
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.processes import cpu_s, end_with_sigterm, forget_peak, require_linux, resident_mb
from bench.regression.verdict import Figure

FLUSH_OS = ("--config", "flush=os")
SMALL = ("--record-bytes", "100")
CASES = (
    ("produce", *FLUSH_OS),
    ("produce", "--producers", "16", *FLUSH_OS),
    ("consume", *FLUSH_OS),
    ("fanout", "--subscribers", "1", "--rate", "20", *SMALL, *FLUSH_OS),
    ("fanout", "--subscribers", "1", "--idle", "1000", "--rate", "20", *SMALL, *FLUSH_OS),
    ("fanout", "--subscribers", "100", "--rate", "20", *SMALL, *FLUSH_OS),
    ("latency", *SMALL, *FLUSH_OS),
    ("latency", *SMALL, "--config", "flush=fsync"),
)
SECURE_CASES = (
    ("produce", *FLUSH_OS),
    ("consume", *FLUSH_OS),
    ("latency", "--acks", "all", *SMALL, *FLUSH_OS),
)
"""The cases that are also measured with security, in every setup."""
PRINCIPAL = "bench"
STRICT = """
authentication = true
authorization = true
"""
"""Settings of a gateway that asks every client for a token and checks rules."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A choice of security features. ``tokens``: clients need tokens, and rules are checked."""

    name: str
    tls: bool = False
    tokens: bool = False
    encrypted: bool = False


SETUPS = (
    Setup("plain"),
    Setup("TLS", tls=True),
    Setup("tokens", tokens=True),
    Setup("encryption at rest", encrypted=True),
    Setup("all three", tls=True, tokens=True, encrypted=True),
)
COLUMNS = ("security", "bench", "case", "flush", "records/s", "MB/s", "p50", "p99", "p99.9", "max ms")
COSTS = ("gateway CPU s", "replicas CPU s", "gateway MB more")


class Measured:
    """A running cluster of one setup, with the environment in which ``tidelog`` commands reach it."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        files = local.tls
        shown = {"TIDELOG_CLIENT_CA": files.ca, "TIDELOG_CLIENT_CERT": files.cert, "TIDELOG_CLIENT_KEY": files.key}
        self.environment = {name: value for name, value in shown.items() if value}

    def tidelog(self, *arguments: str) -> str:
        """Run a ``tidelog`` command against the cluster and return its output. Raises ``CalledProcessError`` if it
        fails."""
        environment = os.environ | {"TIDELOG_GATEWAY": self.local.gateways()[0]} | self.environment
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout.decode()

    def ask_for_tokens(self) -> None:
        """Create a token and rules for the benchmark, and restart the gateway so that it demands both."""
        token = self.tidelog("tokens", "create", PRINCIPAL).strip()
        for resource in ("topic:*", "cluster"):
            self.tidelog("acls", "add", PRINCIPAL, "*", resource)
        with (self.local.folder / "g1" / "config.toml").open("a") as config:
            config.write(STRICT)
        self.restart_gateway()
        self.environment = {"TIDELOG_TOKEN": token} | {
            name: value for name, value in self.environment.items() if name == "TIDELOG_CLIENT_CA"
        }
        self.tidelog("status")  # it waits until the gateway is there

    def restart_gateway(self) -> None:
        """Start the gateway again, as a process that shares no memory with the other services. Those that are started
        with the cluster are forked from one process, and take about a tenth less CPU for a record."""
        self.local.restart("g1")

    def measure(self, arguments: tuple[str, ...]) -> dict[str, Any]:
        """Run a case of ``tidelog bench`` and return its report, with the CPU seconds of gateway and replica servers
        and the rise of the gateway's memory in MB added."""
        gateway = self.local.get("g1").pid
        replicas = [process.pid for process in self.local.of_role("replica")]
        forget_peak(gateway)
        before, memory = (cpu_s(gateway), sum(map(cpu_s, replicas))), resident_mb(gateway)
        report: dict[str, Any] = json.loads(self.tidelog("bench", *arguments, "--json"))
        report["gateway_cpu_s"] = round(cpu_s(gateway) - before[0], 2)
        report["replicas_cpu_s"] = round(sum(map(cpu_s, replicas)) - before[1], 2)
        report["gateway_mb"] = round(resident_mb(gateway, "VmHWM") - memory, 1)
        return report


@contextmanager
def running(setup: Setup) -> Iterator[Measured]:
    """Run a cluster of this setup during the block: a controller, three replica servers and a gateway, in a temporary
    folder."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
        folder = Path(name)
        local = LocalCluster.create(
            folder, controllers=1, replicas=3, gateways=1, base_port=free_base_port(5), tls=setup.tls
        )
        for server in local.of_role("replica") if setup.encrypted else ():
            key = folder / server.id / "key"
            key.write_text(f"k:{base64.b64encode(os.urandom(32)).decode()}")
            with (folder / server.id / "config.toml").open("a") as config:
                config.write(f'encryption_key_file = "{key}"\n')
        try:
            local.start()
            trio.run(local.wait_ready)
            measured = Measured(local)
            if setup.tokens:
                measured.ask_for_tokens()
            yield measured
        finally:
            local.stop()


def rows(setup: Setup, arguments: tuple[str, ...], report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table for a report, with delays in ms; only the first line has the servers' figures."""
    costs = [str(report[name]) for name in ("gateway_cpu_s", "replicas_cpu_s", "gateway_mb")]
    flush = arguments[-1].partition("=")[2]
    for figures in report["rows"]:
        delays = [figures["latency_ms"][name] for name in ("p50", "p99", "p99_9", "max")]
        texts = ["" if delay is None else f"{delay:,.2f}" for delay in delays]
        speed = (f"{figures['records_per_s']:,.0f}", f"{figures['mb_per_s']:,.1f}")
        yield "| " + " | ".join([setup.name, arguments[0], figures["case"], flush, *speed, *texts, *costs]) + " |"
        costs = [""] * len(COSTS)


def figures_of(report: dict[str, Any]) -> Iterator[tuple[str, float, bool]]:
    """Yield (unit, value, whether less is better) of the figures that count in the report of a case with one row."""
    (row,) = report["rows"]
    cpu_s = report["gateway_cpu_s"] + report["replicas_cpu_s"]
    if report["bench"] == "latency":
        yield "p50 ms", row["latency_ms"]["p50"], True
    else:
        yield "MB/s", row["mb_per_s"], False
    yield "CPU ms per 1,000 records", 1e6 * cpu_s / row["records"], True


def compare(setup: Setup, seconds: float, rounds: int) -> list[Figure]:
    """Measure each case on a plain cluster and on one of this setup, in turn, ``rounds`` times, and return the
    pairs."""
    figures: dict[tuple[str, str], Figure] = {}
    with running(SETUPS[0]) as plain, running(setup) as other:
        if setup.tokens:
            plain.restart_gateway()
            plain.tidelog("status")
        for number in range(rounds):
            for case in SECURE_CASES:
                length = () if case[0] == "consume" else ("--seconds", str(seconds))
                sides = (plain, other) if number % 2 == 0 else (other, plain)
                reports = {side: side.measure((*case[:1], *length, *case[1:])) for side in sides}
                pairs = zip(figures_of(reports[plain]), figures_of(reports[other]), strict=True)
                for (unit, base, less), (_, now, _) in pairs:
                    figure = figures.setdefault((case[0], unit), Figure(case[0], unit, less))
                    ratio = figure.add(base, now)
                    click.echo(
                        f"{number + 1}/{rounds} {case[0]}: {unit} {base:,.2f} and {now:,.2f}, ratio {ratio:.2f}"
                    )
    return list(figures.values())


def show_comparison(figures: list[Figure]) -> None:
    """Print a Markdown table with a line for each figure."""
    click.echo(
        "| case | figure | plain | compared | ratio | lowest, highest pair | pairs |\n|---|---|---|---|---|---|---|"
    )
    for figure in figures:
        ratios = figure.ratios
        middles = f"{median(figure.base):,.2f} | {median(figure.now):,.2f} | {median(ratios):.2f}"
        click.echo(
            f"| {figure.name} | {figure.unit} | {middles} | {min(ratios):.2f}, {max(ratios):.2f} | {len(ratios)} |"
        )


@click.command(help=__doc__)
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Length of each case.")
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([setup.name for setup in SETUPS]),
    help="Only this setup; repeatable.",
)
@click.option(
    "--compare",
    "compared",
    type=click.Choice([setup.name for setup in SETUPS[1:]]),
    help="Only this setup, beside a plain cluster.",
)
@click.option("--rounds", type=click.IntRange(1), default=6, show_default=True, help="Pairs, with --compare.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the reports here too.")
def main(seconds: float, names: tuple[str, ...], compared: str | None, rounds: int, json_file: Path | None) -> None:
    """Measure and print what clients see of clusters of each setup, or compare one setup with a plain cluster."""
    require_linux()
    end_with_sigterm()
    if compared:
        figures = compare(next(setup for setup in SETUPS if setup.name == compared), seconds, rounds)
        show_comparison(figures)
        if json_file:
            json_file.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
        return
    reports = []
    columns = (*COLUMNS, *COSTS)
    click.echo(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for setup in SETUPS:
        if names and setup.name not in names:
            continue
        with running(setup) as measured:
            for case in CASES if setup.name == "plain" else SECURE_CASES:
                length = () if case[0] == "consume" else ("--seconds", str(seconds))
                report = measured.measure((*case[:1], *length, *case[1:]))
                reports.append({"setup": setup.name} | report)
                for line in rows(setup, case, report):
                    click.echo(line)
    if json_file:
        json_file.write_text(json.dumps(reports, indent=2) + "\n")


if __name__ == "__main__":
    main()
