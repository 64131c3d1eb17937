"""Faults against a whole cluster of real processes, under load, and the judgement over what was promised.

\b
    .venv/bin/python deploy/chaos --fault kill-leader     # one fault (or several, one after the other)
    .venv/bin/python deploy/chaos --minutes 5 --seed 7    # all of them, mixed, by a schedule of the seed
    .venv/bin/python deploy/chaos --list                  # every fault, and what it does

Three controllers, three replica servers and two gateways, each on a host (network namespace), a disk (loop mount),
a boot and a clock of its own. Producers with all levels of acks, conditional writers, transactions, a consumer group
and plain consumers go on all the time. At the end everything is healed, what was begun is settled, the history of all
clients is checked, and the logs of all replicas are compared byte by byte. The report is one HTML file.

With ``--table iceberg|delta`` the run is another: a pipeline writes a topic to a table in an object store, while its
driver, its workers, replica servers and the store are killed, ``--kills`` times while ``--records`` records come. At
the end DuckDB counts the rows: none may be lost, none there twice.

With ``--old REVISION`` the cluster begins as that one, half of it is upgraded, and processes change to and fro.
With ``--spark`` a Spark query copies all the time, too, and at the end each committed record is to be there once.

Linux only. Where the machine does not allow a fault (not root, no strace, no gcc, no netem, no Java), it is left out,
and the report says so. Without root, or with ``--links proxies``, all run on one host, and links are TCP proxies,
which can do all but lose packets. Exit code 0: nothing was found; 1: something was.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import trio
from rich.console import Console
from tidelog.verify import Recorder, check, load
from tidelog.verify.summary import RunSummary, summarize

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.processes import end_with_sigterm
from chaos.cluster import capabilities, versions
from chaos.cluster.cluster import ChaosCluster, OneHost, OwnHosts
from chaos.cluster.network_namespaces import enter_own_network
from chaos.driver import Drive, Outcome, Struck
from chaos.faults import FAULTS, Fault
from chaos.report.report import render
from chaos.schedule import GAP_S, Strike, schedule
from chaos.table.run import FORMATS, TablePlan, run_table
from chaos.workload.clients import Workload
from chaos.workload.meter import Meter
from chaos.workload.spark_copy import Copier

CONSOLE = Console(highlight=False, soft_wrap=True)
SOAK_GAP_S = (2.0, 8.0)
"""Shortest and longest pause between the beginnings of two faults of a soak, in seconds."""
SOAK_RETENTION = 2 << 20
"""Least bytes of a partition that a soak keeps: more than a consumer may be behind after an overload."""
SOAK_RETENTION_PER_MINUTE = 70_000
"""Bytes of a partition that a longer soak keeps, per minute of its length: about what comes in a sixth of the run, so
that most of the run shows whether sizes stay bounded."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of one run, made from the command line."""

    strikes: tuple[Strike, ...]
    one_by_one: bool
    seed: int
    retention_bytes: int
    report: Path
    keep: bool
    old: str
    """An earlier revision for half of the processes; "" for none."""
    lacking: Mapping[str, str]


@click.command(help=__doc__)
@click.option("--fault", "names", multiple=True, metavar="NAME", help="Only this fault; may be given several times.")
@click.option(
    "--times",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="How often each of these faults is done.",
)
@click.option(
    "--every",
    "every_s",
    type=float,
    metavar="S",
    help="Begin these faults so many seconds apart, so that they overlap.",
)
@click.option("--hold", "hold_s", type=float, metavar="S", help="Seconds that each of these faults lasts.")
@click.option(
    "--minutes", default=1.0, show_default=True, type=click.FloatRange(min=0.1), help="Length of a mixed run."
)
@click.option("--seed", default=1, show_default=True, help="Seed of the schedule, and of random choices.")
@click.option(
    "--soak",
    is_flag=True,
    help="Fewer faults at a time; old records are deleted; the growth of every process is judged.",
)
@click.option("--spark", is_flag=True, help="Run a Spark query that copies exactly once, and kill it, too.")
@click.option(
    "--links",
    type=click.Choice(["hosts", "proxies"]),
    default="hosts",
    show_default=True,
    help="Links between network namespaces (root), or through TCP proxies on this host (the only way without root).",
)
@click.option("--old", default="", metavar="REVISION", help="Run every second process from this revision.")
@click.option("--table", type=click.Choice(FORMATS), help="Only a pipeline with a table of this format.")
@click.option(
    "--records", default=100_000, show_default=True, type=click.IntRange(min=1), help="With --table: records."
)
@click.option("--kills", default=10, show_default=True, type=click.IntRange(min=0), help="With --table: faults.")
@click.option("--keep", is_flag=True, help="Keep history and logs beside the report even if nothing is found.")
@click.option(
    "--list", "is_list", is_flag=True, help="List every fault, what it does, and which this machine does not allow."
)
@click.option(
    "--report", default=Path("chaos.html"), show_default=True, type=click.Path(path_type=Path, dir_okay=False)
)
def main(
    names: tuple[str, ...],
    times: int,
    every_s: float | None,
    hold_s: float | None,
    minutes: float,
    seed: int,
    soak: bool,
    spark: bool,
    links: str,
    old: str,
    table: str | None,
    records: int,
    kills: int,
    keep: bool,
    is_list: bool,
    report: Path,
) -> None:
    """Run the chosen faults, or a mixed schedule, against a cluster, check what was promised, and write the report.
    Exits with 1 if something was found. With ``--list``, only print the faults."""
    if sys.platform != "linux":
        raise click.ClickException("Linux only: faults take its network namespaces, mounts, strace and /proc")
    if unknown := [name for name in names if name not in FAULTS]:
        raise click.UsageError(f"there is no fault {unknown[0]!r}: --list shows all")
    try:
        old = old and versions.resolve(old)
    except versions.NoRevision as error:
        raise click.UsageError(f"git does not know revision {old!r}. {error}".strip()) from error
    end_with_sigterm()
    if table is not None:
        _run_table(TablePlan(table, records, kills, seed), report)
        return
    if os.geteuid() == 0 and links == "hosts":
        enter_own_network()
    lacking = capabilities.missing()
    if not old and not is_list:
        lacking[capabilities.VERSIONS] = "it was not asked for: --old"
    if not spark and not is_list:
        lacking[capabilities.SPARK] = "it was not asked for: --spark"
    elif spark and capabilities.SPARK in lacking:
        CONSOLE.print(f"without Spark: {lacking[capabilities.SPARK]}", markup=False)
    if is_list:
        for fault in FAULTS.values():
            CONSOLE.print(f"[bold]{fault.name}[/bold]  {fault.words}{_left_out(fault, lacking)}")
        return
    if cannot := [name for name in names if _left_out(FAULTS[name], lacking)]:
        raise click.ClickException(f"{cannot[0]} cannot be done here{_left_out(FAULTS[cannot[0]], lacking)}")
    fit = [fault for fault in FAULTS.values() if not _left_out(fault, lacking)]
    if names:
        each = enumerate(names * times)
        strikes = tuple(_alone(FAULTS[name], n * (every_s or 0.0), seed + n, hold_s) for n, name in each)
    else:
        strikes = schedule(seed, minutes * 60, fit, SOAK_GAP_S if soak else GAP_S)
    one_by_one = bool(names) and every_s is None
    retention = max(SOAK_RETENTION, int(minutes * SOAK_RETENTION_PER_MINUTE)) if soak else -1
    plan = Plan(strikes, one_by_one, seed, retention, report, keep, old, lacking)
    outcome = _conduct(plan)
    if soak:
        outcome.faults += [f"{node}: {text}" for node, usage in outcome.usages.items() for text in usage.growth()]
    report.write_text(render(outcome, _command(), seed, lacking, old))
    for text in outcome.faults[:20]:
        CONSOLE.print(text, markup=False)
    acknowledged = sum(map(len, outcome.meter.acks.values()))
    summary = f"{len(outcome.strikes)} faults, {acknowledged} records acknowledged by all"
    CONSOLE.print(f"{summary}, {len(outcome.faults) or 'no'} findings; see {report}")
    sys.exit(1 if outcome.faults else 0)


def _run_table(plan: TablePlan, report: Path) -> None:
    """Run a plan with a table, print what became of it, and exit with 1 if something was found."""
    outcome = run_table(plan, lambda line: CONSOLE.print(line, markup=False), report.with_suffix(""))
    for reason in outcome.ended:
        CONSOLE.print(f"the pipeline ended: {reason}", markup=False)
    for text in outcome.faults:
        CONSOLE.print(text, markup=False)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.kills.items()))
    counted = outcome.counted
    CONSOLE.print(
        f"{plan.format}: {plan.records} records, {sum(outcome.kills.values())} faults ({kinds}), {outcome.starts}"
        f" starts of the pipeline, {outcome.batches} batches, {outcome.seconds:.0f} s: {counted.rows} rows in"
        f" {counted.files} files, {counted.lost} lost, {counted.twice} twice"
    )
    sys.exit(1 if outcome.faults else 0)


def _left_out(fault: Fault, lacking: Mapping[str, str]) -> str:
    why = "; ".join(lacking[need] for need in fault.needs if need in lacking)
    return f" (left out: {why})" if why else ""


def _alone(fault: Fault, at: float, seed: int, hold_s: float | None) -> Strike:
    """Return a strike of this fault at second ``at``, for ``hold_s`` seconds or (None) for the middle of the fault's
    usual times."""
    return Strike(at, fault.name, sum(fault.hold) / 2 if hold_s is None else hold_s, seed)


def _command() -> list[str]:
    return ["python", *sys.argv]


def _conduct(plan: Plan) -> Outcome:
    """Run the plan on a cluster in a temporary folder, check the history, and return the outcome. If something was
    found, or ``keep`` is set, the history and the logs are copied beside the report. The cluster and the folder are
    removed in any case."""
    folder = Path(tempfile.mkdtemp(prefix="tidelog-chaos-"))
    history = folder / "history"
    kind: type[ChaosCluster] = OneHost if capabilities.HOSTS in plan.lacking else OwnHosts
    cluster = kind.make(folder)
    try:
        cluster.prepare(plan.lacking)
        if plan.old:
            versions.unpack(plan.old, folder / "earlier")
            cluster.begin_earlier(folder / "earlier")
        cluster.start()
        outcome = trio.run(_drive, cluster, history, plan)
        CONSOLE.print("the history is checked")
        recording = load(history)
        summary = summarize(recording)
        outcome.faults += [f"{anomaly.kind}: {anomaly.text}" for anomaly in check(recording.history)]
        outcome.checked = _counts(summary)
        if outcome.faults or plan.keep:
            _keep(folder, history, plan.report)
        return outcome
    finally:
        cluster.stop()
        cluster.clear()
        if isinstance(cluster, OwnHosts):
            cluster.drop_hosts()
        shutil.rmtree(folder)


async def _drive(cluster: ChaosCluster, history: Path, plan: Plan) -> Outcome:
    with cluster.linked():
        await cluster.wait_ready()
        if plan.old:
            await cluster.upgrade_half()
        meter = Meter()
        outcome = Outcome(meter)
        with Recorder(history, about={"seed": plan.seed}) as recorder:
            workload = Workload(cluster.gateways(), meter, recorder, plan.seed, plan.retention_bytes)
            copier = None
            if capabilities.SPARK not in plan.lacking:
                copier = Copier(cluster.folder / "spark", cluster.gateways(), plan.retention_bytes)
            drive = Drive(cluster, workload, copier, outcome, _print_strike)
            try:
                await drive.run(plan.strikes, one_by_one=plan.one_by_one)
            except Exception as error:  # what was recorded until then is judged and shown all the same
                traceback.print_exc()
                outcome.faults.append(f"the run broke off: {error!r}")
                outcome.seconds = meter.now()
    return outcome


def _print_strike(struck: Struck) -> None:
    times = (
        f"{struck.began:7.1f} s  {struck.ended - struck.began:5.1f} s, healed in {struck.healed - struck.ended:.1f} s"
    )
    CONSOLE.print(f"{times}  {struck.fault} {struck.target}  {struck.note}", markup=False)


def _counts(summary: RunSummary) -> dict[str, int]:
    sends = {f"batches sent, {result}": count for result, count in summary.sends.items()}
    commits = {f"commits of the group, {result}": count for result, count in summary.commits.items()}
    fates = {f"transactions, {fate}": count for fate, count in summary.transactions.items()}
    return {
        "operations": summary.operations,
        **sends,
        "conditional appends": summary.conditional,
        **fates,
        **commits,
        "records that readers were shown": summary.read_records,
        "records in the logs at the end": summary.stored_records,
    }


def _keep(folder: Path, history: Path, report: Path) -> None:
    kept = report.with_suffix("")
    kept = kept.with_name(f"{kept.name}-logs")
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(history, kept / "history")
    for log in folder.glob("*/log"):
        shutil.copy(log, kept / f"{log.parent.name}.log")
    CONSOLE.print(f"the history and the logs of all processes are kept in {kept}")


if __name__ == "__main__":
    main()
