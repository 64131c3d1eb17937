"""``tidelog dev``: a whole cluster in one process, for development."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import click
import trio

from tidelog.cli.local.first_steps import first_steps
from tidelog.cli.local.readiness import wait_ready
from tidelog.cli.main import run
from tidelog.cli.output import say

HOST = "127.0.0.1"
"""Default address that the gateway listens on."""


def _check_origins(_: click.Context, param: click.Parameter, origins: tuple[str, ...]) -> tuple[str, ...]:
    """Return the origins if they have the form of origins, else raise ``click.BadParameter``. A callback of click."""
    from tidelog.net.origins import is_origin

    for origin in origins:
        if not is_origin(origin):
            raise click.BadParameter(f"{origin!r} has not the form http://host:port", param=param)
    return origins


@click.command()
@click.option(
    "-d",
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tidelog-dev"),
    show_default=True,
    help="Folder of the data; used again at the next start.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=9292, show_default=True, help="The gateway's port.")
@click.option(
    "--host",
    default=HOST,
    show_default=True,
    help="Address that the gateway listens on. Every client that can connect may read, write and kill nodes.",
)
@click.option("--replicas", type=click.IntRange(1, 9), default=3, show_default=True, help="Replica servers.")
@click.option(
    "--allowed-origin",
    "origins",
    multiple=True,
    metavar="URL",
    callback=_check_origins,
    help="Web pages from there may connect, too, such as http://localhost:3000; repeatable.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log what the services do.")
def dev(folder: Path, host: str, port: int, replicas: int, origins: tuple[str, ...], verbose: bool) -> None:
    """Run a controller, replica servers and a gateway in this process, until Ctrl-C. What was acknowledged is on disk
    and is there again after a restart. In its console (/console/ at the gateway's port) single nodes can be killed,
    paused, cut off and healed; for processes of their own use 'tidelog cluster up'."""
    from tidelog.private import DIRECTORY_MODE, close_to_others
    from tidelog.runtime import logs

    close_to_others()
    folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)  # an existing folder may hold other files, too
    logs.configure(level="info" if verbose else "error")
    run(partial(serve, folder.resolve(), port, replicas, host, origins))


async def serve(folder: Path, port: int, replicas: int, host: str = HOST, origins: tuple[str, ...] = ()) -> None:
    """Run a controller, ``replicas`` replica servers and a gateway as tasks of this process, with their data below
    ``folder``. The gateway listens on ``port`` of the address ``host``, and admits web pages of its own and of these
    origins. Prints their addresses when the cluster accepts writes. Returns after SIGINT or SIGTERM."""
    from tidelog_controller.config import ControllerConfig
    from tidelog_gateway.config import GatewayConfig
    from tidelog_replica.config import ReplicaConfig

    from tidelog.cli.local.playground import LocalPlayground
    from tidelog.testing.real.service_tasks import ServiceTask

    cluster = "dev"
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(stop)
            playground = LocalPlayground(nursery)
            services: dict[str, str] = {}
            services["c1"] = controller = await playground.start(
                ControllerConfig(node="c1", cluster=cluster, port=0, data_dir=str(folder / "c1"))
            )
            for number in range(1, replicas + 1):
                node = f"r{number}"
                services[node] = await playground.start(
                    ReplicaConfig(
                        node=node, cluster=cluster, port=0, data_dir=str(folder / node), controllers=(controller,)
                    )
                )
            listen = GatewayConfig(
                node="g1", cluster=cluster, host=host, port=port, controllers=(controller,), insecure=True,
                allowed_origins=origins,
            )  # fmt: skip
            transport = playground.transport("g1")
            gateway = services["g1"] = await ServiceTask(nursery, listen, transport, playground=playground).start()
            await wait_ready(gateway, replicas)
            say(f"gateway  {gateway}")
            say(f"console  {gateway.replace('ws:', 'http:')}/console/")
            say(f"data     {folder}")
            for node, url in services.items():
                say(f"metrics  {url.replace('ws:', 'http:')}/metrics of {node}")
            for line in first_steps(gateway):
                say(line)
            say("Ctrl-C ends it.")
