"""``tidelog cluster …``: starts, watches, disturbs and stops a cluster of real processes on this machine."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.exit_status import FAILED
from tidelog.cli.local.first_steps import first_steps
from tidelog.cli.local.local_cluster import LocalCluster, Process
from tidelog.cli.local.readiness import NO_FILES
from tidelog.cli.main import run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import WIDE, Cell, Table, list_output, print_for_programs, say
from tidelog.quantities import SECONDS

_data = click.option(
    "-d",
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tidelog-data"),
    show_default=True,
    help="Folder of the cluster: configuration, data and log of every process.",
)


def _describe(cluster: LocalCluster) -> dict[str, object]:
    """Return the cluster and its processes as an object for JSON, with the pid of each process and whether it
    runs."""
    return {
        "cluster": cluster.cluster,
        "gateways": cluster.gateways(),
        "processes": [
            {"role": p.role, "id": p.id, "pid": p.pid, "url": p.url, "log": p.log, "alive": p.is_alive()}
            for p in cluster.processes
        ],
    }


def _show(cluster: LocalCluster, output: str) -> None:
    """Print the processes of a cluster in the format ``output``. For a cluster with TLS, also print the environment
    variables that a client needs."""
    table = Table("id", "role", "pid", "url", "log")
    for p in cluster.processes:
        table.add(p.id, p.role, Cell(p.pid, p.pid) if p.is_alive() else Cell(None, "down"), p.url, p.log)
    if print_for_programs(output, table, _describe(cluster)):
        return
    table.print(wide=output == WIDE)
    if cluster.tls == NO_FILES:
        say("metrics: curl http://HOST:PORT/metrics, of each of them")
        return
    shown = {"CA": cluster.tls.ca, "CERT": cluster.tls.cert, "KEY": cluster.tls.key}
    say(f"export TIDELOG_GATEWAY={cluster.gateways()[0]}")
    for name, file in shown.items():
        say(f"export TIDELOG_CLIENT_{name}={file}")


def _suggest(cluster: LocalCluster, detach: bool) -> None:
    """Print what to do first with a cluster that has started, and with ``detach`` how to end it. With TLS the
    commands take the gateway from the variables that ``_show`` prints."""
    for line in first_steps(cluster.gateways()[0] if cluster.tls == NO_FILES else ""):
        say(line)
    if detach:
        say("It runs on. This ends it:")
        say(f"  tidelog cluster down --data {shlex.quote(str(cluster.folder))}")


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Start, watch, disturb and stop a cluster of real processes on this machine."""


@cluster.command()
@_data
@click.option("--controllers", type=click.IntRange(1, 7), help="Of a new cluster; 3 when not given.")
@click.option("--replicas", type=click.IntRange(1, 32), help="Of a new cluster; 3 when not given.")
@click.option("--gateways", type=click.IntRange(1, 8), help="Of a new cluster; 1 when not given.")
@click.option(
    "--base-port",
    type=click.IntRange(1, 65_000),
    help="First gateway's port, the others follow; 9292 for a new cluster when not given.",
)
@click.option("--tls", is_flag=True, help="Of a new cluster: with certificates of its own; they are in DATA/certs.")
@click.option("--detach", is_flag=True, help="Return when the cluster accepts writes; 'cluster down' ends it.")
@list_output
def up(
    folder: Path,
    controllers: int | None,
    replicas: int | None,
    gateways: int | None,
    base_port: int | None,
    tls: bool,
    detach: bool,
    output: str,
) -> None:
    """Start a cluster, new or from the data in the folder, and print its processes when it accepts writes. Ctrl-C
    ends it; with --detach the command returns, and the cluster runs on."""
    local = LocalCluster.create(
        folder, controllers=controllers, replicas=replicas, gateways=gateways, base_port=base_port, tls=tls
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the started processes are ended
    try:
        local.start()
        run(local.wait_ready)
        _show(local, output)
        if not output:
            _suggest(local, detach)
        if detach:
            return
        say("Running; Ctrl-C ends it.", err=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    except BaseException:
        local.stop_started()
        raise
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    LocalCluster.load(folder).stop()  # other commands may have restarted processes meanwhile


@cluster.command()
@_data
@list_output
def status(folder: Path, output: str) -> None:
    """List the processes with their URLs and logs, and whether each runs."""
    _show(LocalCluster.load(folder), output)


@cluster.command()
@_data
def down(folder: Path) -> None:
    """End every process of this cluster, and no other: SIGTERM, then SIGKILL after 5 s. The data stays."""
    local = LocalCluster.load(folder)
    running = [process.id for process in local.processes if process.is_alive()]
    local.stop()
    say(f"ended {', '.join(running)}" if running else "nothing was running")


def _running(local: LocalCluster, node_id: str) -> Process | None:
    """Return the process with this id if it runs. Otherwise print on stderr that it does not run, and return None.
    Raises ``ConfigError`` if the cluster has no such process."""
    process = local.get(node_id)
    if process.is_alive():
        return process
    say(f"{node_id} does not run; 'tidelog cluster restart {node_id}' starts it", err=True)
    return None


def _act_on(node_id: str, folder: Path, act: Callable[[LocalCluster], None], words: str) -> None:
    """Call ``act`` with the cluster in ``folder`` if its process ``node_id`` runs, and print ``words`` with the
    process's id and pid. If the process does not run, ends the command with status ``FAILED``."""
    local = LocalCluster.load(folder)
    process = _running(local, node_id)
    if process is None:
        raise SystemExit(FAILED)
    act(local)
    say(f"{words} {node_id} (pid {process.pid})")


@cluster.command()
@click.argument("node_id")
@_data
def kill(node_id: str, folder: Path) -> None:
    """Send SIGKILL to one process: nothing is flushed, and no other process is notified. Does nothing if it does not
    run."""
    local = LocalCluster.load(folder)
    if process := _running(local, node_id):
        local.kill(node_id)
        say(f"killed {node_id} (pid {process.pid})")


@cluster.command()
@click.argument("node_id")
@_data
def end(node_id: str, folder: Path) -> None:
    """Send SIGTERM to one process, so that it ends in order: a replica server first hands over its leaderships. Exit
    code 1 if it does not run."""
    _act_on(node_id, folder, lambda local: local.terminate(node_id), "ended")


@cluster.command()
@click.argument("node_id")
@_data
def pause(node_id: str, folder: Path) -> None:
    """Send SIGSTOP to one process: it hangs, and its connections stay open. Exit code 1 if it does not run."""
    _act_on(node_id, folder, lambda local: local.pause(node_id), "paused")


@cluster.command()
@click.argument("node_id")
@_data
def resume(node_id: str, folder: Path) -> None:
    """Send SIGCONT to a paused process, so that it continues. Exit code 1 if it does not run."""
    _act_on(node_id, folder, lambda local: local.resume(node_id), "resumed")


@cluster.command()
@click.argument("node_id")
@_data
@click.option("--timeout", "timeout_s", type=Quantity(SECONDS, least=0), default="1m", show_default=True)
def restart(node_id: str, folder: Path, timeout_s: float) -> None:
    """Start a process again on its own data (killing it first if it runs), and return when it is live: a replica
    server is registered and known to the gateways that run, the others listen. Exit code 1 if that takes too long;
    the process runs on then."""
    local = LocalCluster.load(folder)
    local.restart(node_id)
    say(f"started {node_id} (pid {local.get(node_id).pid})")
    if not run(partial(local.wait_live, node_id, timeout_s)):
        say(f"{node_id} is not live after {timeout_s:g} s: see {local.get(node_id).log}", err=True)
        raise SystemExit(FAILED)
    say(f"{node_id} is live")
