"""Planted incidents: each in a cluster of real processes under load, and what ``tidelog doctor`` says about it.

\b
    .venv/bin/python deploy/incidents --list                    # every incident, and what a newcomer sees first
    .venv/bin/python deploy/incidents read-only --seed 7        # one of them (or several, one after the other)
    .venv/bin/python deploy/incidents --all                     # all, with their twins
    .venv/bin/python deploy/incidents --two                     # five runs with two at once
    .venv/bin/python deploy/incidents --two quota read-only     # these two at once
    .venv/bin/python deploy/incidents --healthy 10              # no incident for ten minutes: no finding
    .venv/bin/python deploy/incidents --all --prometheus /usr/bin/prometheus    # and the alert of each fires

An incident is right if ``tidelog doctor`` names its cause, with evidence and next step, within 30 seconds, calls
nothing else a cause, and is silent after the mend. Its twin begins with the same symptom, and has another cause.
Names of topics and groups, the servers that are struck and the times come from the seed.

The processes run on this machine, on loopback. Exit code 0: all incidents were right; 1: one was not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from incidents.catalogue import load_catalogue
from incidents.incident import Incident
from incidents.load import leaves
from incidents.run import NAMED_S, Missed, Row, healthy, pairs, play

Turns = Sequence[Sequence[Incident]]
"""What is planted in one cluster: one turn after the other, and at once what belongs to one turn."""
PAIRS = 5
"""Runs with two incidents at once."""


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--seed", default=1, show_default=True, help="Seed of names, servers and times.")
@click.option("--all", "is_all", is_flag=True, help="All incidents, with their twins.")
@click.option("--two", is_flag=True, help=f"The two named at once; without names {PAIRS} pairs that the seed draws.")
@click.option("--one-cluster", is_flag=True, help="Plant the named ones one after the other in one cluster.")
@click.option("--limit", "limit_s", default=NAMED_S, show_default=True, help="Seconds until a cause must be named.")
@click.option("--healthy", "minutes", type=float, metavar="MINUTES", help="No incident: whatever is found is false.")
@click.option(
    "--prometheus",
    "program",
    type=click.Path(exists=True, dir_okay=False, executable=True, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="Run this Prometheus beside each cluster, with the rules of deploy/prometheus. An incident is right only if"
    " its alert fires, too. It fires as soon as its condition is met: the times in the rules are left out. With"
    " --healthy the times stay, and each alert that fires is false.",
)
@click.option("--list", "is_list", is_flag=True, help="List all incidents.")
@click.option("--record", is_flag=True, help="Keep the figures for the table of the documentation.")
def main(
    names: tuple[str, ...],
    seed: int,
    is_all: bool,
    two: bool,
    one_cluster: bool,
    limit_s: float,
    minutes: float | None,
    program: Path | None,
    is_list: bool,
    record: bool,
) -> None:
    """Play the chosen incidents, and print a row for each. Exits with 1 if one was not right."""
    catalogue = load_catalogue()
    if unknown := [name for name in names if name not in catalogue]:
        raise click.UsageError(f"there is no incident {unknown[0]!r}: --list shows all")
    if is_list:
        for one in catalogue.values():
            click.echo(f"{one.name:28} {one.cause:28} {one.symptom}")
        return
    if minutes is not None:
        runs, false, alerts = trio.run(healthy, minutes, seed, program)
        click.echo(f"{runs} runs of tidelog doctor in {minutes:g} minutes, {len(false)} with findings")
        if program:
            click.echo(f"{len(alerts)} alerts fired")
        for words in false + alerts:
            click.echo(f"    {words}")
        sys.exit(1 if false or alerts else 0)
    turns = [(catalogue[name],) for name in (catalogue if is_all else names)]
    plays: list[Turns] = [turns] if one_cluster else [[turn] for turn in turns]
    if two and names:
        if len(names) != 2:
            raise click.UsageError("--two takes two names, or none")
        plays = [[(catalogue[names[0]], catalogue[names[1]])]]
    elif two:
        plays += [[pair] for pair in pairs(catalogue, seed, PAIRS)]
    if not plays or not plays[0]:
        raise click.UsageError("name an incident, or choose --all, --two or --healthy")
    wrong = [turns for turns in plays if not _is_right(turns, seed, limit_s, record, program)]
    sys.exit(1 if wrong else 0)


def _is_right(turns: Turns, seed: int, limit_s: float, record: bool, program: Path | None) -> bool:
    """Play these incidents in one cluster, print what was said, and return whether it was right."""
    rows: list[Row] = []
    try:
        rows = trio.run(play, turns, seed, limit_s, program)
    except* (Missed, TimeoutError, trio.TooSlowError) as group:
        click.echo(f"{'; '.join(' and '.join(one.name for one in turn) for turn in turns)}: WRONG")
        for error in leaves(group):
            click.echo(f"    {str(error) or type(error).__name__}")
    for row in rows:
        _show(row)
        if record and len(turns[0]) == 1:
            row.save()
    return bool(rows)


def _show(row: Row) -> None:
    click.echo(f"{row.name}: named after {row.named_s} s, silent {row.silent_s} s after the mend (seed {row.seed})")
    click.echo(f"    sees:  {row.symptom}")
    click.echo(f"    cause: {row.cause}: {row.said}")
    click.echo(f"           {row.evidence}")
    click.echo(f"    next:  {row.next_step}")
    if row.consequences:
        click.echo(f"    therefore: {', '.join(row.consequences)}")


if __name__ == "__main__":
    main()
