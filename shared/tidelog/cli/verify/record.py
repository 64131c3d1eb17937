"""``tidelog verify record``: uses a cluster for a while, and records everything that its clients do and see."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
import trio

from tidelog.cli.admin.topics import config_of
from tidelog.cli.completion import topic_names
from tidelog.cli.exit_status import DONE, FAILED
from tidelog.cli.main import CONNECT_TIMEOUT_S, connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import say
from tidelog.cli.pasted import gateway_words
from tidelog.cli.progress import Bar, shown
from tidelog.quantities import BYTES, COUNT, SECONDS
from tidelog.runtime.process_settings import raise_open_files
from tidelog.verify import check as judge
from tidelog.verify import load
from tidelog.verify.cleanup import Leftovers, missing_groups, remove
from tidelog.verify.history_writer import Recorder
from tidelog.verify.run import groups_of
from tidelog.verify.run import record as record_history
from tidelog.verify.workload import Mix, Stage
from tidelog.wire.messages import TopicInfo

_DEFAULT = Mix()


@click.command()
@click.argument("file", type=click.Path(dir_okay=False), metavar="FILE")
@click.option(
    "--seconds", type=Quantity(SECONDS, least=0, above=True), default="1m", show_default=True, help="For so long."
)
@click.option(
    "-t",
    "--topic",
    "name",
    default="",
    shell_complete=topic_names,
    help="Use this topic, to which no other program may write meanwhile.  [default: a new one]",
)
@click.option("-p", "--partitions", type=click.IntRange(1), default=3, show_default=True, help="Of a new topic.")
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    help="The same.  [default: 3, or as many as there are servers]",
)
@click.option(
    "-c", "--config", "settings", multiple=True, metavar="KEY=VALUE", help="The same: a setting; repeatable."
)
@click.option(
    "--producers",
    type=click.IntRange(0),
    default=_DEFAULT.producers,
    show_default=True,
    help="Of three or more one has acks leader and one none; the others all.",
)
@click.option(
    "--appenders",
    type=click.IntRange(0),
    default=_DEFAULT.appenders,
    show_default=True,
    help="Append where the log ends, or not at all.",
)
@click.option(
    "--applications",
    type=click.IntRange(0),
    default=_DEFAULT.applications,
    show_default=True,
    help="With transactions, two processes each.",
)
@click.option(
    "--consumers",
    type=click.IntRange(0),
    default=_DEFAULT.consumers,
    show_default=True,
    help="In turn eventual, from any replica, bounded, linearizable.",
)
@click.option(
    "--members",
    type=click.IntRange(0),
    default=_DEFAULT.members,
    show_default=True,
    help="Of a consumer group; they come and go.",
)
@click.option(
    "--rate",
    type=Quantity(COUNT, least=0, above=True),
    default=_DEFAULT.rate,
    show_default=True,
    help="Records per second of each writer, about.",
)
@click.option(
    "--record-bytes",
    type=Quantity(BYTES, least=1, most=1 << 20, whole=True),
    default=_DEFAULT.record_bytes,
    show_default=True,
    help="Size of a value.",
)
@click.option(
    "--patience",
    type=Quantity(SECONDS, least=0, above=True),
    default="30s",
    show_default=True,
    help="Longest time without an acknowledgement that is no finding, while the cluster looks well.",
)
@click.option("--keep", is_flag=True, help="Delete nothing of what was made for it: the topic, and groups.")
@click.option("--seed", type=int, default=None, help="Of what the clients do.  [default: any]")
@gateway_option
def record(
    file: str,
    seconds: float,
    name: str,
    partitions: int,
    replication_factor: int | None,
    settings: tuple[str, ...],
    patience: float,
    keep: bool,
    seed: int | None,
    gateways: tuple[str, ...],
    **mix: int | float,
) -> None:
    """Use a running cluster for a while, with producers, consumers, groups, conditional appends and transactions, and
    write everything that they did and saw to FILE. Meanwhile kill, pause, cut off and restart what you like. Then,
    when the cluster is whole again, fresh clients read the log to its end, and the replicas are compared. Ctrl-C ends
    the first part early; a second one, everything. 'tidelog verify check FILE' checks the history.

    The topic and the groups that were created are deleted in the end. They stay with --keep, and if the history is
    not complete or has findings, so that they can be examined.

    Exit code 0: the history is complete. 1: the cluster did not answer at the end; the file can be checked only in
    part."""
    raise_open_files()
    config = config_of(settings)
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    wanted = Mix(**mix)  # type: ignore[arg-type]

    async def task() -> list[str]:
        topic, made = await _begin(gateways, name, partitions, replication_factor, config, wanted)
        about = {"topic": topic.name, "seed": chosen, "config": topic.config, **asdict(wanted)}
        with Recorder(file, about=about, patience_s=patience) as recorder, _shown() as on_stage:
            undone = await record_history(
                recorder, topic, lambda number: connect(_rotated(gateways, number), CONNECT_TIMEOUT_S), wanted,
                lambda: _wait(seconds), chosen, on_stage,
            )  # fmt: skip
        if keep or undone or not str(made):
            return undone
        if judge(load(file).history):
            say(f"there are findings: {made} stay, to be looked into", err=True)
            return undone
        async with connect(gateways) as log:
            stays = await remove(log, made)
        for line in stays or [f"{made} deleted; --keep would have kept them"]:
            say(line, err=True)
        return undone

    if Path(file).exists():
        raise click.BadParameter(f"{file} exists; a history is never overwritten", param_hint="FILE")
    undone: list[str] = run(task)
    for text in undone:
        say(f"tidelog: {text}", err=True)
    say(f"{file}: 'tidelog verify check {file}' judges it", err=True)
    sys.exit(FAILED if undone else DONE)


def _rotated(gateways: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the gateways in the order in which client ``number`` tries them: consecutive clients begin with
    different ones."""
    first = number % len(gateways)
    return (*gateways[first:], *gateways[:first])


async def _begin(
    gateways: tuple[str, ...], name: str, partitions: int, factor: int | None, config: dict[str, str], mix: Mix
) -> tuple[TopicInfo, Leftovers]:
    """Describe the topic to record on, or create a new one if ``name`` is "". Returns the topic, and what the
    recording leaves in the cluster when it ends: the created topic, and the groups that did not exist before."""
    async with connect(gateways) as log:
        if name:
            return await log.topics.describe(name), Leftovers("", await missing_groups(log, groups_of(name, mix)))
        live = sum(not server.fenced for server in (await log.cluster.status()).servers)
        new = f"verify-{secrets.token_hex(3)}"
        made = await log.topics.create(
            new, partitions=partitions, replication_factor=factor or max(1, min(3, live)), config=config
        )
    say(f"topic {new}; 'tidelog topics delete {new}{gateway_words(gateways[0])}' deletes it if it stays", err=True)
    return made, Leftovers(new, tuple(groups_of(new, mix)))


async def _wait(seconds: float) -> None:
    """Wait for ``seconds``, or until Ctrl-C. Afterwards Ctrl-C ends the process again."""
    with trio.move_on_after(seconds), trio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            return


class _Doing:
    """The current step of the recording, and what its clients have done so far. As text it is a line for the progress
    display."""

    what = ""
    stage: Stage | None = None

    def __str__(self) -> str:
        counts = self.stage.counts if self.stage is not None else {}
        done = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
        return f"{self.what} ({done})" if done else self.what


@contextmanager
def _shown() -> Iterator[Callable[[str, Stage], None]]:
    """Return a context manager that shows on stderr which step the recording is at: all the time on a terminal,
    otherwise as a line when a step begins. It yields a callback (step, its counts), which the recording calls at each
    step."""
    doing = _Doing()
    with shown(Bar(doing)):

        def on_stage(what: str, stage: Stage) -> None:
            doing.what, doing.stage = what, stage
            if not sys.stderr.isatty():
                say(str(doing), err=True)

        yield on_stage
