"""``tidelog cluster …``: a cluster of real processes on this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tidelog.cli.local_cluster import LocalCluster
from tidelog.cli.main import json_option, print_json, run

_data = click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tidelog-data"),
    show_default=True,
    help="Folder of the cluster: configuration, data and log of every process.",
)


def _describe(cluster: LocalCluster) -> dict[str, object]:
    return {
        "cluster": cluster.cluster,
        "gateways": cluster.gateways(),
        "processes": [
            {"role": p.role, "id": p.id, "pid": p.pid, "url": p.url, "log": p.log, "alive": p.is_alive()}
            for p in cluster.processes
        ],
    }


def _show(cluster: LocalCluster, as_json: bool) -> None:
    if as_json:
        print_json(_describe(cluster))
        return
    table = Table("id", "role", "pid", "url", "log", box=None)
    for p in cluster.processes:
        table.add_row(p.id, p.role, str(p.pid) if p.is_alive() else "down", p.url, p.log)
    Console().print(table)


@click.group()
def cluster() -> None:
    """A cluster of real processes on this machine."""


@cluster.command()
@_data
@click.option("--controllers", type=click.IntRange(1, 7), default=3, show_default=True)
@click.option("--replicas", type=click.IntRange(1, 32), default=3, show_default=True)
@click.option("--gateways", type=click.IntRange(1, 8), default=1, show_default=True)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65_000),
    default=9292,
    show_default=True,
    help="First gateway's port; the others follow.",
)
@click.option("--detach", is_flag=True, help="Return when the cluster accepts writes; 'cluster down' ends it.")
@json_option
def up(
    folder: Path, controllers: int, replicas: int, gateways: int, base_port: int, detach: bool, as_json: bool
) -> None:
    """Start a cluster, new or from the data in the folder; ready when it accepts writes."""
    local = LocalCluster.create(
        folder, controllers=controllers, replicas=replicas, gateways=gateways, base_port=base_port
    )
    local.start()
    try:
        run(local.wait_ready)
    except BaseException:
        local.stop()
        raise
    _show(local, as_json)
    if not detach:
        click.echo("Running; Ctrl-C ends it.", err=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
        finally:
            local.stop()


@cluster.command()
@_data
@json_option
def status(folder: Path, as_json: bool) -> None:
    """List the processes and whether they run."""
    _show(LocalCluster.load(folder), as_json)


@cluster.command()
@_data
def down(folder: Path) -> None:
    """End every process of this cluster, and no other; the data stays."""
    LocalCluster.load(folder).stop()


@cluster.command()
@click.argument("node_id")
@_data
def kill(node_id: str, folder: Path) -> None:
    """SIGKILL one process: nothing is flushed or said."""
    LocalCluster.load(folder).kill(node_id)


@cluster.command()
@click.argument("node_id")
@_data
def pause(node_id: str, folder: Path) -> None:
    """SIGSTOP one process: it hangs, its connections stay open."""
    LocalCluster.load(folder).pause(node_id)


@cluster.command()
@click.argument("node_id")
@_data
def resume(node_id: str, folder: Path) -> None:
    """Let a paused process go on."""
    LocalCluster.load(folder).resume(node_id)


@cluster.command()
@click.argument("node_id")
@_data
def restart(node_id: str, folder: Path) -> None:
    """Start a process again on its own data (killing it first when it runs)."""
    LocalCluster.load(folder).restart(node_id)
