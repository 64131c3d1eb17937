"""Tidelog beside Kafka, JetStream and Liftbridge: three servers of each on this machine, one product at a time.

    make peers                                        # fetches the others into build/peers
    make bench-peers [ROUNDS=5]
    .venv/bin/python deploy/bench/peers [--quick] [--products kafka] [--cases start] [--rounds 1]

In every round each product gets a fresh cluster and runs every case on it, and a second one for the cases with very
many subscribers, so what else the machine does hits all of them alike. Prints one table of the medians, and writes
the figures of all rounds and plots into ``build/peers``. Clients and servers share the first two cores that this
process may use. Every case has a time limit, after which it has failed and the next one begins.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.processes import cpu_s, end_with_sigterm, require_linux
from bench.peers.cases import CASES, Case, quick
from bench.peers.measurements import Order, moments
from bench.peers.plots import Figures, draw
from bench.peers.products import PEERS, PRODUCTS, Product, disk_bytes, memory_mb
from bench.peers.run_case import delays

CORES = 2
"""Number of cores that clients and servers share."""
MAKE_S = 60.0
"""Seconds that the configuration of a cluster may take."""
SETTLE_S = 3.0
"""Seconds between the load and the idle case."""
Gaps = dict[str, dict[str, str]]
"""The cases that are not measured: product -> title of the case -> reason."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raise ``TimeoutError``, which names ``what``, in the middle of whatever the main thread does after so many
    seconds."""

    def end(*_: object) -> None:
        raise TimeoutError(f"{what}: not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Client:
    """A client process that carries out one order."""

    def __init__(self, product: Product, order: Order) -> None:
        command = [str(product.python), str(Path(__file__).with_name("run_case.py")), json.dumps(asdict(order))]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the client)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

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
        raise RuntimeError(complaint[-1] if complaint else f"the client ended with {self._process.returncode}")

    def write(self, **said: Any) -> None:
        """Send a line of JSON with these values to the process."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill the client's process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class Round:
    """Cases of one product, run once, on a cluster of its own. It has the figures, the seconds that each case took,
    and the errors of the cases that failed."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.figures: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, str] = {}

    def run(self, cases: list[Case]) -> None:
        """Run these cases in order. A case that fails is noted; cases that need its records fail, too. If the first
        one (the start) fails, the others are left out."""
        self.attempt(cases[0], self._start)
        if not self.failures:
            for case in cases[1:]:
                self.attempt(case, getattr(self, f"_{case.do}", self._measure))

    def attempt(self, case: Case, do: Any) -> None:
        """Run one case by ``do`` within its time limit, and keep its figures or its error."""
        began = time.monotonic()
        try:
            with time_limit(case.limit_s, case.title):
                figures = do(case)
            self.seconds[case.title] = time.monotonic() - began
            for name, value in figures.items():
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
        speed = self.product.records_per_s(self.tool_output(case))
        return {"MB/s": speed * case.size / 1e6, "records/s": speed}

    def tool_output(self, case: Case, *more: str) -> str:
        """Run the product's own tool for load, with ``more`` at the end of its command, and return what it prints.
        Raises ``RuntimeError`` if it fails."""
        command = self.product.tool(case.name, case.size, case.records, case.options == "tuned")
        if not self.product.makes_topics:
            with self._client(case, do="create") as client:
                client.read("figures")
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip()[-300:])
        return done.stdout

    def _wide_fan_out(self, case: Case) -> dict[str, float]:
        """Measure one record at a time to subscribers in several processes, with the CPU time of the servers for each
        delivery and their memory. All subscribers have had a record before."""
        shares = [case.subscribers // case.processes] * case.processes
        with ExitStack() as stack:
            publisher = stack.enter_context(self._client(case, do="publish"))
            self._publish(publisher)
            readers = [stack.enter_context(self._client(case, do="subscribe", subscribers=share)) for share in shares]
            self._wait_open(case, readers, shares)
            memory = sum(map(memory_mb, self.product.pids()))
            cpu = sum(map(cpu_s, self.product.pids()))
            for at in moments(case.rate, case.records):
                time.sleep(max(0.0, at - time.monotonic()))
                self._publish(publisher)
                for reader in readers:
                    reader.read("received")
            cpu = sum(map(cpu_s, self.product.pids())) - cpu
            taken = [seconds for reader in readers for seconds in reader.read("delays")]
        return delays(taken) | {"servers' CPU us/delivery": cpu * 1e6 / len(taken), "servers' memory MB": memory}

    @staticmethod
    def _publish(publisher: Client) -> None:
        """Let the publisher send a record, as soon as it is ready, and wait for the ack, after which it is ready
        again."""
        publisher.write(more=True)
        publisher.read("ready")

    @staticmethod
    def _wait_open(case: Case, readers: list[Client], shares: list[int]) -> None:
        """Wait until all subscribers have had the first record, and print how many have."""
        opened = [0] * len(readers)
        while opened != shares:
            opened = [
                reader.read("opened") if count < share else count
                for reader, count, share in zip(readers, opened, shares, strict=True)
            ]
            click.echo(f"  {case.title}: {sum(opened):,} subscribers open", err=True)

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


def run_cluster(name: str, cases: list[Case], data: Path) -> Round:
    """Start a product in an empty folder, run the cases, stop it and remove the folder. Returns the round. Raises
    ``TimeoutError`` if the product takes too long to be configured."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=data))
    try:
        with time_limit(MAKE_S, f"configuration of {name}"):
            product = PRODUCTS[name](folder)
        measured = Round(product)
        try:
            measured.run(cases)
        finally:
            product.stop()
    finally:
        shutil.rmtree(folder)
    return measured


def run_round(name: str, cases: list[Case], data: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Run the cases on as many clusters of a product as they need, and return the figures and the errors. The start
    is that of the first cluster."""
    figures: dict[str, float] = {}
    failures: dict[str, str] = {}
    for group in clusters_of(cases):
        measured = run_cluster(name, group, data)
        figures = measured.figures | figures
        failures |= measured.failures
        for title, seconds in measured.seconds.items():
            click.echo(f"  {title}: {seconds:.0f} s", err=True)
    return figures, failures


def clusters_of(cases: list[Case]) -> list[list[Case]]:
    """Return the cases by the cluster that they share; each cluster begins with the first case, the start."""
    start, *others = cases
    shared = [case for case in others if case.processes == 1]
    wide = [case for case in others if case.processes > 1]
    return [[start, *some] for some in (shared, wide) if some] or [[start]]


def table(figures: Figures, gaps: Gaps) -> list[str]:
    """Return a Markdown table with a row for each figure and a column for each product: the medians of all rounds, or
    why there are none."""
    lines = ["| | " + " | ".join(figures) + " |", "|---" * (len(figures) + 1) + "|"]
    for case in CASES:
        rows = dict.fromkeys(row for each in figures.values() for row in each if _is_of(row, case))
        refused = {name: reasons[case.title] for name, reasons in gaps.items() if case.title in reasons}
        for row in rows or ([case.title] if refused else []):
            values = [
                shown(statistics.median(each[row])) if row in each else refused.get(name, "")
                for name, each in figures.items()
            ]
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
    require_linux()
    end_with_sigterm()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    wanted = [case for case in CASES if not chosen or case.name in needed(chosen)]
    cases = [quick(case) for case in wanted] if is_quick else wanted
    names = names or tuple(PRODUCTS)
    missing = [str(path) for name in names for path in PRODUCTS[name].needs if not path.exists()]
    if missing:
        raise click.ClickException(f"not fetched: {', '.join(dict.fromkeys(missing))}; run make peers")
    data = out / "data"
    data.mkdir(parents=True, exist_ok=True)
    figures: Figures = {name: {} for name in names}
    gaps = {name: gaps_of(PRODUCTS[name], cases) for name in names}
    failures = []
    for number in range(rounds):
        for name in names:
            began = time.monotonic()
            now = [case for case in cases if case.title not in gaps[name] and case.is_in(number)]
            measured, failed = run_round(name, now, data)
            for row, value in measured.items():
                figures[name].setdefault(row, []).append(value)
            failures += [f"round {number + 1}, {name}, {case}: {why}" for case, why in failed.items()]
            click.echo(f"round {number + 1} of {rounds}, {name}: {time.monotonic() - began:.0f} s", err=True)
        done = {"rounds": number + 1, "figures": figures, "not measured": gaps}
        (out / "figures.json").write_text(json.dumps(done, indent=2) + "\n")
    click.echo("\n".join(table(figures, gaps)))
    for failure in failures:
        click.echo(failure, err=True)
    for file in draw(figures, out / "plots"):
        click.echo(file, err=True)
    if failures:
        raise SystemExit(1)


def gaps_of(product: type[Product], cases: list[Case]) -> dict[str, str]:
    """Return the titles of the cases that are not measured with this product, with the reasons."""
    other = product.delivers_like
    reasons = {case.title: case.obstacle(product.client) for case in cases}
    reasons |= {case.title: f"see {other}" for case in cases if other and case.processes > 1}
    return {title: reason for title, reason in reasons.items() if reason}


def needed(chosen: tuple[str, ...]) -> set[str]:
    """Return the names of these cases, of the cases whose records they read, and of the start."""
    return {"start", *chosen, *(case.topic for case in CASES if case.name in chosen)}


if __name__ == "__main__":
    main()
