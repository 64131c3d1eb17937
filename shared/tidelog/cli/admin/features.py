"""``tidelog features …``: shows the cluster's feature level, and raises it when an upgrade is done."""

from __future__ import annotations

from dataclasses import asdict

import click

from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import Cell, Column, Table, list_output, print_for_programs, say
from tidelog.errors import TidelogError
from tidelog.feature_levels import CHANGES, NEWEST, Levels
from tidelog.wire.messages import FeaturesAnswer


@click.group()
def features() -> None:
    """Show and raise the feature level: the features that all processes of the cluster understand, and so may use. It
    is raised after all are upgraded."""


@features.command("list")
@list_output
@gateway_option
def list_features(output: str, gateways: tuple[str, ...]) -> None:
    """Show the cluster's feature level, what each level brought, and which levels each process understands."""

    async def task() -> FeaturesAnswer:
        async with connect(gateways) as log:
            try:
                return await log.cluster.features()
            except TidelogError as error:
                if error.code != "UNSUPPORTED":
                    raise
                return FeaturesAnswer(1)  # a release without levels answered: that is level 1

    known = run(task)
    table = Table("role", "id", Column("understands", "levels"))
    for one in known.processes:
        levels = str(Levels(one.level_min, one.level_max)) if one.level_max else ""
        table.add(one.role, one.node, Cell(levels, levels or "not in touch"), name=one.node)
    changes = {str(level): text for level, text in CHANGES.items()}
    document = {"level": known.level, "newest": NEWEST, "changes": changes}
    if print_for_programs(output, table, document | {"processes": [*map(asdict, known.processes)]}):
        return
    say(f"the cluster is at feature level {known.level}")
    for level, text in CHANGES.items():
        say(f"  {level} {'*' if level <= known.level else ' '} {text}")
    if known.processes:
        table.print()
    else:
        say("the active controller or this gateway is of a release without levels: upgrade them first")


@features.command("raise")
@click.option("--to", "level", type=click.IntRange(1), default=NEWEST, show_default=True, help="The level to reach.")
@click.option("--dry-run", is_flag=True, help="Only check whether it can be done, and list what prevents it.")
@click.option(
    "--leave-behind",
    "left_behind",
    multiple=True,
    metavar="ID",
    help="A controller or replica server that is down, and is refused when it comes back until it is upgraded.",
)
@gateway_option
def raise_level(level: int, dry_run: bool, left_behind: tuple[str, ...], gateways: tuple[str, ...]) -> None:
    """Raise the cluster's feature level: the last step of an upgrade, when every process runs the new release.

    This cannot be undone: from then on processes may use the features of that level, and processes that do not
    understand it are refused. Exit code 1 if some processes do not understand it yet; all of them are named, and
    nothing is changed."""

    async def task() -> int:
        async with connect(gateways) as log:
            before = (await log.cluster.features()).level
            await log.cluster.raise_level(level, left_behind=left_behind, dry_run=dry_run)
            return before

    before = run(task)
    if before == level:
        say(f"the cluster is at feature level {level} already")
    elif dry_run:
        say(f"the cluster can be raised from feature level {before} to {level}")
    else:
        say(f"the cluster is at feature level {level}, after {before}")
