"""``tidelog conformance``: checks a client library in any language against a real cluster."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.exit_status import DONE, FAILED, UNUSABLE
from tidelog.cli.output import Table, list_output, print_for_programs, say, say_after

if TYPE_CHECKING:
    from tidelog.cli.conformance.cases import Case
    from tidelog.cli.conformance.suite import Outcome, Report

COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}


@click.command()
@click.option("--client", metavar="COMMAND", help="Command that starts the client under test, as in a shell.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Only cases whose name matches, such as 'records.*'.")
@click.option("--list", "lists", is_flag=True, help="List the cases, and run none.")
@list_output
def conformance(client: str | None, only: tuple[str, ...], lists: bool, output: str) -> None:
    """Check a client library in any language.

    The command starts a cluster of real processes on this machine, and the client: a small program around the library
    that reads commands as lines of JSON and answers each with one line. docs/conformance.md describes the lines. The
    cases send and read records, share groups, kill processes, and let a gateway lie. If the package pycddl is
    installed, every message of the library is checked against the published description of the protocol.

    Exit code 1 if a case failed or a message was wrong."""
    from tidelog.cli.conformance.suite import CASES

    cases = [case for case in CASES.values() if not only or any(fnmatchcase(case.name, one) for one in only)]
    if not cases:
        raise click.UsageError(f"no case matches {' or '.join(only)}; --list shows their names")
    if lists:
        _list(cases, output)
        return
    if not client:
        raise click.UsageError("--client is missing: the command that starts the client")
    report = _run(shlex.split(client), cases, quiet=bool(output))
    _show(report, output)
    sys.exit(DONE if report.is_passed else FAILED)


def _list(cases: Sequence[Case], output: str) -> None:
    """Print the cases."""
    table = Table("case", "needs", "meaning")
    for case in cases:
        table.add(case.name, case.needs, case.sentence)
    document = [{"case": case.name, "needs": case.needs, "meaning": case.sentence} for case in cases]
    if not print_for_programs(output, table, document):
        table.print()


def _run(command: Sequence[str], cases: Sequence[Case], *, quiet: bool) -> Report:
    """Run the cases over a new cluster, and return the report. Each outcome is printed as it comes, unless ``quiet``.
    Ends the process with ``UNUSABLE`` if the client cannot be started."""
    from tidelog.cli.conformance.client import Failed
    from tidelog.cli.conformance.suite import run_suite, running_cluster

    def show(outcome: Outcome) -> None:
        if not quiet:
            line = f"{outcome.case.name}  {outcome.seconds:.1f} s  {outcome.reason}"
            say_after(outcome.status, line.rstrip(), fg=COLOURS[outcome.status])

    with tempfile.TemporaryDirectory(prefix="tidelog-conformance-") as folder, running_cluster(Path(folder)) as local:
        try:
            return run_suite(command, cases, local, show)
        except Failed as error:
            say(f"tidelog: {error}", err=True)
            sys.exit(UNUSABLE)


def _show(report: Report, output: str) -> None:
    """Print the report."""
    table = Table("case", "status", "seconds", "reason")
    for one in report.outcomes:
        table.add(one.case.name, one.status, round(one.seconds, 3), one.reason)
    document = {
        "cases": [
            {"case": one.case.name, "status": one.status, "seconds": round(one.seconds, 3), "reason": one.reason}
            for one in report.outcomes
        ],
        "wrong_messages": report.wrong_messages,
    }
    if print_for_programs(output, table, document):
        return
    for fault in report.wrong_messages or ():
        say_after("wrong message", fault, fg="red")
    if report.wrong_messages is None:
        say("The messages were not checked: pip install pycddl.")
    counts = {status: sum(one.status == status for one in report.outcomes) for status in COLOURS}
    say(", ".join(f"{count} {status}" for status, count in counts.items()))
