"""``tidelog mirror``: copies a topic to another cluster, for as long as it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

import click
import trio

from tidelog.cli.admin.topics import config_of
from tidelog.cli.completion import context_names
from tidelog.cli.contexts import load
from tidelog.cli.main import client_name, run, token_in
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import print_json, result_output, say
from tidelog.quantities import SECONDS

if TYPE_CHECKING:
    from tidelog.backup.mirror import Mirror
    from tidelog.client.log import Log

SIDES = {"from": "source", "to": "target"}
"""Prefix of the options of each cluster -> what the cluster is to the mirror."""
_SHOWN = {
    "ca": "PEM file of the authorities for the {0}'s certificates (wss://).",
    "cert": "PEM file of the certificate to show to the {0}.",
    "key": "PEM file of its key.",
    "token-file": "File with the bearer token to show to the {0}.",
}


def _sides(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command the options that exist for each of the two clusters, such as ``--from-ca`` and ``--to-ca``:
    gateways, TLS files and token file. Returns the command."""
    for side, name in reversed(SIDES.items()):
        for option, help in reversed(_SHOWN.items()):
            command = click.option(f"--{side}-{option}", metavar="FILE", default="", help=help.format(name))(command)
        command = click.option(
            f"--{side}-context",
            metavar="NAME",
            default="",
            shell_complete=context_names,
            help=f"The context of the {name} ('tidelog context'): its gateways and files.",
        )(command)
        command = click.option(
            f"--{side}",
            f"{side}_gateways",
            multiple=True,
            metavar="URL",
            help=f"A gateway of the {name}; may be given several times.",
        )(command)
    return command


@click.command()
@click.argument("topic")
@_sides
@click.option(
    "--as", "name", default="", metavar="NAME", help="Name of the topic in the target.  [default: the same]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    default=None,
    help="Of a new target.  [default: the source's]",
)
@click.option(
    "-c",
    "--config",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of a new target: other than the source's; repeatable.",
)
@click.option("--groups", is_flag=True, help="Copy the positions of consumer groups, too, every few seconds.")
@click.option("--to-end", is_flag=True, help="Stop where the source ends now.")
@click.option(
    "--skip-lost", is_flag=True, help="Continue after records that the source deleted before they were copied."
)
@click.option(
    "--every", type=Quantity(SECONDS, least=0.1), default="10s", show_default=True, help="Time between two reports."
)
@result_output
def mirror(topic: str, name: str, every: float, output: str, to_end: bool, **options: Any) -> None:
    """Copy TOPIC from one cluster to another, and keep copying new records until Ctrl-C: every record once, with its
    offset, key, value, headers and timestamp, in the same partition.

    A topic that is missing in the target is created there with as many partitions. No other program may write to it.
    A mirror that is started again, on any machine, continues where the target ends. It waits for clusters that are
    down and leaders that move. It ends with an error if the source has lost records that were copied, or deleted
    records that were not."""
    from tidelog.backup.mirror import SOURCE, TARGET, Mirror, MirrorSettings, errors_of

    config = config_of(options["settings"], "--config")
    factor = options["replication_factor"] or 0
    wanted = MirrorSettings(name or topic, factor, config, to_end, options["groups"], options["skip_lost"])

    source_client, target_client = _connect("from", options), _connect("to", options)

    async def task() -> Mirror:
        async with AsyncExitStack() as clients:
            with errors_of(SOURCE):
                source = await clients.enter_async_context(source_client)
            with errors_of(TARGET):
                target = await clients.enter_async_context(target_client)
            mirror = Mirror(source, target, topic, wanted)
            await _until_signal(mirror, wanted.name, every)
            return mirror

    _report(run(task), wanted.name, output, last=True)


async def _until_signal(mirror: Mirror, name: str, every: float) -> None:
    """Run the mirror until it has ended by itself, or until SIGINT or SIGTERM. Prints its progress every ``every``
    seconds. Raises the errors of the mirror."""
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        async def report() -> None:
            while True:
                await trio.sleep(every)
                _report(mirror, name)

        nursery.start_soon(wait)
        await mirror.run(ready=lambda: nursery.start_soon(report))
        nursery.cancel_scope.cancel()


def _report(mirror: Mirror, name: str, output: str = "", *, last: bool = False) -> None:
    """Print how many offsets the mirror has copied and how far it is behind, and why partitions wait. During the run
    this goes to stderr; the ``last`` report goes to stdout, in the format ``output``."""
    parts = mirror.partitions
    lags = [progress.lag for progress in parts.values()]
    copied, size = sum(each.copied for each in parts.values()), sum(each.bytes for each in parts.values())
    lag = sum(lags) if lags and min(lags) >= 0 else -1
    if output and last:
        ends = {str(number): progress.end for number, progress in parts.items()}
        print_json({"topic": name, "copied": copied, "bytes": size, "lag": lag, "ends": ends})
        return
    behind = f"{lag:,} behind" if lag >= 0 else "not known how far behind"
    say(f"{name}: {copied:,} offsets copied, {size / 1e6:,.1f} MB; {behind}", err=not last)
    for number, progress in parts.items():
        if progress.waits:
            say(f"{name}/{number} waits: {progress.waits}", err=True)
    for group, reason in mirror.groups_refused.items():
        say(f"group {group} was not set: {reason}", err=True)


def _connect(side: str, options: dict[str, Any]) -> AbstractAsyncContextManager[Log]:
    """Return a context manager that connects to one of the two clusters with the TLS files and the token of its
    options, or of its context. ``side`` is ``from`` or ``to``. Raises ``click.UsageError`` if it is named by both, or
    by neither."""
    import tidelog
    from tidelog.net.tls import TlsOptions

    name, given = options[f"{side}_context"], options[f"{side}_gateways"]
    if bool(name) == bool(given):
        raise click.UsageError(f"name the {SIDES[side]}: --{side} URL, or --{side}-context NAME")
    if name:
        found = load().get(name)
        gateways, tls, token_file = found.gateways, TlsOptions(found.ca, found.cert, found.cert_key), found.token_file
    else:
        tls = TlsOptions(*[options[f"{side}_{part}"] for part in ("ca", "cert", "key")])
        gateways, token_file = given, options[f"{side}_token_file"]
    return tidelog.connect(gateways, tls=tls, token=token_in(token_file), name=client_name())
