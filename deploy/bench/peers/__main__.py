"""Tidelog beside Kafka, JetStream and Liftbridge: three servers of each on this machine, one product at a time.

    make peers                                        # fetches the others into build/peers
    make bench-peers [ROUNDS=5]
    .venv/bin/python deploy/bench/peers [--quick] [--products kafka] [--cases start] [--rounds 1]

In every round each product gets a fresh cluster and runs every case on it, so what else the machine does hits all of
them alike. Prints one table of the medians, and writes the figures of all rounds and plots into ``build/peers``.
Clients and servers share the first two cores that this process may use.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.processes import end_with_sigterm
from bench.peers.cases import CASES, Case, quick
from bench.peers.measurements import Order
from bench.peers.plots import Figures, draw
from bench.peers.products import PEERS, PRODUCTS, Product, cpu_s, disk_bytes, memory_mb

CORES = 2
"""Number of cores that clients and servers share."""
LIMIT_S = 600.0
"""Seconds after which a case has failed and its client is killed."""
SETTLE_S = 3.0
"""Seconds between the load and the idle case."""


class Client:
    """A client process that carries out one order. It is killed after ``LIMIT_S`` seconds."""

    def __init__(self, product: Product, order: Order) -> None:
        command = [str(product.python), str(Path(__file__).with_name("run_case.py")), json.dumps(asdict(order))]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the client)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._timer = threading.Timer(LIMIT_S, self._process.kill)
        self._timer.start()

    def read(self, what: str) -> Any:
        """Return the value of the key ``what`` in the next line that the process prints, after waiting for it. Raises
        ``RuntimeError`` with the last line of its error output if the process has ended."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)[what]
        self._process.wait()
        self._errors.seek(0)
        complaint = self._errors.read().decode(errors="replace").strip().splitlines()
        raise RuntimeError(complaint[-1] if complaint else f"no answer within {LIMIT_S:g} s")

    def write(self, **said: Any) -> None:
        """Send a line of JSON with these values to the process."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill the client's process."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class Round:
    """All cases of one product, run once, on a cluster of its own. It has the figures, and the errors of the cases
    that failed."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.figures: dict[str, float] = {}
        self.failures: dict[str, str] = {}

    def run(self, cases: list[Case]) -> None:
        """Run these cases in order. A case that fails is noted; cases that need its records fail, too. If the first
        one (the start) fails, the others are left out."""
        self.attempt(cases[0], self._start)
        if not self.failures:
            for case in cases[1:]:
                self.attempt(case, getattr(self, f"_{case.do}", self._measure))

    def attempt(self, case: Case, do: Any) -> None:
        """Run one case by ``do``, and keep its figures or its error."""
        try:
            for name, value in do(case).items():
                self.figures[f"{case.title}, {name}"] = value
        except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
            self.failures[case.title] = str(error)

    def _order(self, case: Case, **more: Any) -> Order:
        fields = ("do", "partitions", "size", "seconds", "records", "subscribers", "rate")
        row = {name: getattr(case, name) for name in fields} | more
        return Order(
            client=self.product.client,
            addresses=self.product.addresses,
            topic=case.topic or case.name,
            settings=self.product.settings,
            options=case.options_of(self.product.client),
            **row,
        )

    @contextmanager
    def _client(self, case: Case, **more: Any) -> Iterator[Client]:
        client = Client(self.product, self._order(case, **more))
        try:
            yield client
        finally:
            client.close()

    def _measure(self, case: Case) -> dict[str, float]:
        with self._client(case) as client:
            return dict(client.read("figures"))

    def _start(self, case: Case) -> dict[str, float]:
        """Measure the start of the servers, with a client that runs already, so that its own start does not count."""
        with self._client(case) as client:
            client.read("ready")
            began = time.monotonic()
            self.product.start()
            client.write(began=began)
            figures = dict(client.read("figures"))
        return figures | {"memory MB": sum(map(memory_mb, self.product.pids()))}

    def _produce(self, case: Case) -> dict[str, float]:
        """Measure producing, with the servers' CPU time and the bytes on their disks per byte of values."""
        disk, cpu = disk_bytes(self.product.folder), sum(map(cpu_s, self.product.pids()))
        figures = self._measure(case)
        written = figures.pop("written MB")
        figures["servers' CPU ms/MB"] = (sum(map(cpu_s, self.product.pids())) - cpu) * 1e3 / written
        figures["disk/value"] = (disk_bytes(self.product.folder) - disk) / 1e6 / written
        return figures

    def _tool(self, case: Case) -> dict[str, float]:
        command = self.product.tool(case.name, case.size, case.records, case.options == "tuned")
        if command is None:
            return {}
        if not self.product.makes_topics:
            with self._client(case, do="create") as client:
                client.read("figures")
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
        speed = self.product.records_per_s(done.stdout)
        return {"MB/s": speed * case.size / 1e6, "records/s": speed}

    def _idle(self, case: Case) -> dict[str, float]:
        """Measure CPU and memory of the servers after the other cases, with no client."""
        time.sleep(SETTLE_S)
        pids = self.product.pids()
        before, began = sum(map(cpu_s, pids)), time.monotonic()
        time.sleep(case.seconds)
        used = (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)
        return {"CPU %": used * 100, "memory MB": sum(map(memory_mb, pids))}

    def _failover(self, case: Case) -> dict[str, float]:
        with self._client(case) as client:
            leader = client.read("leader")
            killed = time.monotonic()
            self.product.kill(leader)
            client.write(killed=killed)
            return dict(client.read("figures"))


def run_round(name: str, cases: list[Case], data: Path) -> Round:
    """Start a product in an empty folder, run the cases that are for it, stop it and remove the folder. Returns the
    round."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=data))
    product = PRODUCTS[name](folder)
    measured = Round(product)
    try:
        measured.run([case for case in cases if case.is_for(product.client)])
    finally:
        product.stop()
        shutil.rmtree(folder)
    return measured


def table(figures: Figures) -> list[str]:
    """Return a Markdown table with a row for each figure and a column for each product: the medians of all rounds."""
    rows = list(
        dict.fromkeys(row for case in CASES for each in figures.values() for row in each if _is_of(row, case))
    )
    lines = ["| | " + " | ".join(figures) + " |", "|---" * (len(figures) + 1) + "|"]
    for row in rows:
        values = [shown(statistics.median(each[row])) if row in each else "" for each in figures.values()]
        lines.append(f"| {row} | " + " | ".join(values) + " |")
    return lines


def _is_of(row: str, case: Case) -> bool:
    return row.rpartition(", ")[0] == case.title


def shown(value: float) -> str:
    """Return a number with three digits, or with all digits before the point if it is 100 or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@click.command(help=__doc__)
@click.option("--products", "names", multiple=True, type=click.Choice(list(PRODUCTS)), help="Only these; repeatable.")
@click.option(
    "--cases", "chosen", multiple=True, type=click.Choice([case.name for case in CASES]), help="Only these."
)
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1), help="Rounds; medians are shown.")
@click.option("--quick", "is_quick", is_flag=True, help="Small counts: does it run?")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=PEERS,
    show_default=True,
    help="Folder for data, figures, plots.",
)
def main(names: tuple[str, ...], chosen: tuple[str, ...], rounds: int, is_quick: bool, out: Path) -> None:
    """Measure the products one after the other, print the table, and draw the plots. Exits with 1 if a case
    failed."""
    end_with_sigterm()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    wanted = [case for case in CASES if not chosen or case.name in needed(chosen)]
    cases = [quick(case) for case in wanted] if is_quick else wanted
    names = names or tuple(PRODUCTS)
    missing = [str(path) for name in names for path in PRODUCTS[name].needs if not path.exists()]
    if missing:
        raise click.ClickException(f"not fetched: {', '.join(dict.fromkeys(missing))}; run make peers")
    data = out / "data"
    data.mkdir(parents=True, exist_ok=True)
    figures: Figures = {name: {} for name in names}
    failures = []
    for number in range(rounds):
        for name in names:
            click.echo(f"round {number + 1} of {rounds}: {name}", err=True)
            measured = run_round(name, cases, data)
            for row, value in measured.figures.items():
                figures[name].setdefault(row, []).append(value)
            failures += [f"round {number + 1}, {name}, {case}: {why}" for case, why in measured.failures.items()]
        (out / "figures.json").write_text(json.dumps({"rounds": number + 1, "figures": figures}, indent=2) + "\n")
    click.echo("\n".join(table(figures)))
    for failure in failures:
        click.echo(failure, err=True)
    for file in draw(figures, out / "plots"):
        click.echo(file, err=True)
    if failures:
        raise SystemExit(1)


def needed(chosen: tuple[str, ...]) -> set[str]:
    """Return the names of these cases, of the cases whose records they read, and of the start."""
    return {"start", *chosen, *(case.topic for case in CASES if case.name in chosen)}


if __name__ == "__main__":
    main()
