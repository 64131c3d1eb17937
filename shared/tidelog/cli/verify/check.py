"""``tidelog verify check``: checks recorded histories, and prints the findings."""

from __future__ import annotations

import gc
import sys
from dataclasses import asdict
from typing import Any

import click

from tidelog.cli.exit_status import FAILED, UNUSABLE
from tidelog.cli.output import Table, print_for_programs, rows_output, say
from tidelog.errors import ConfigError
from tidelog.quantities import counted
from tidelog.verify import KINDS, Anomaly, Recording, load
from tidelog.verify import check as judge
from tidelog.verify.summary import RunSummary, summarize

SHOWN = 20
"""Number of findings that are printed; the others are counted."""


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False))
@click.option("--all", "show_all", is_flag=True, help=f"Print every finding, not the first {SHOWN} of a file.")
@rows_output
def check(files: tuple[str, ...], show_all: bool, output: str) -> None:
    """Check histories that 'tidelog verify record' has written, one by one. docs/verify.md lists the findings and
    their meaning. A file whose recorder was killed can be checked, too, except for findings that need the end of the
    log.

    Exit code 0: no findings. 1: findings, each shown with its records and times. 2: a file is no history, or
    damaged."""
    gc.disable()  # millions of objects without cycles: the garbage collector would only cost time
    reports: list[dict[str, Any]] = []
    table = Table("file", "letter", "kind", "text")
    findings, unusable = 0, 0
    for file in files:
        try:
            recording = load(file)
        except ConfigError as error:
            say(f"tidelog: {error.message}", err=True)
            unusable += 1
            continue
        anomalies = judge(recording.history)
        findings += len(anomalies)
        summary = summarize(recording)
        reports.append(_as_json(file, recording, summary, anomalies))
        for anomaly in anomalies:
            table.add(file, KINDS[anomaly.kind].letter, anomaly.kind, anomaly.text)
        if not output:
            print_verdict(file, recording, summary, anomalies, show_all)
    print_for_programs(output, table, reports)
    if unusable or findings:
        sys.exit(UNUSABLE if unusable else FAILED)


def _as_json(file: str, recording: Recording, summary: RunSummary, anomalies: list[Anomaly]) -> dict[str, Any]:
    """Return the summary and the findings of one history file as an object for JSON."""
    found = [{"kind": a.kind, "letter": KINDS[a.kind].letter, "text": a.text} for a in anomalies]
    return {"file": file, "about": recording.about, "summary": asdict(summary), "findings": found}


def print_verdict(
    file: str, recording: Recording, summary: RunSummary, anomalies: list[Anomaly], show_all: bool = False
) -> None:
    """Print the summary of one history file and its findings: the first ``SHOWN``, or all with ``show_all``. If there
    are findings, the recording's notes and the meaning of each kind of finding are printed, too."""
    partitions = counted(summary.partitions, "partition")
    say(f"{file}: {summary.operations:,} operations in {summary.seconds:.1f} s, {partitions}")
    for line in _lines(summary):
        say(f"  {line}")
    if not recording.complete:
        say("  the recorder did not come to its end: what needs the end of the log is not judged")
    for when, text in recording.notes if anomalies else ():
        say(f"  {when:.3f} s: {text}")
    shown = anomalies if show_all else anomalies[:SHOWN]
    for anomaly in shown:
        say(f"{KINDS[anomaly.kind].letter} {anomaly.kind}: {anomaly.text}")
    if len(anomalies) > len(shown):
        say(f"… and {len(anomalies) - len(shown)} more; --all prints them")
    for kind in dict.fromkeys(anomaly.kind for anomaly in anomalies):
        say(f"  {kind}: {KINDS[kind].meaning}")
    say(counted(len(anomalies), "finding") if anomalies else "nothing is wrong")


def _lines(summary: RunSummary) -> list[str]:
    """Return the figures of a recorded run as sentences, one in each line; figures that are zero for the whole run
    are left out."""
    sends, commits, fates = summary.sends, summary.commits, summary.transactions
    lines = [
        f"sent: {sends['ok']:,} batches acknowledged ({summary.acked_records:,} records),"
        f" {sends['failed']:,} refused, {sends['unknown']:,} unknown; {summary.conditional:,} conditional",
        f"read: {summary.read_records:,} records in {summary.reads:,} answers;"
        f" {summary.fresh:,} answers had to be fresh",
    ]
    if any(commits.values()):
        lines.append(
            f"groups: {commits['ok']:,} commits, {commits['failed']:,} refused, {commits['unknown']:,} unknown"
        )
    if any(fates.values()):
        lines.append(
            f"transactions: {fates['committed']:,} committed, {fates['aborted']:,} aborted, "
            f"{fates['unknown']:,} unknown"
        )
    if summary.drained:
        lines.append(
            f"at the end: {summary.stored_records:,} records in {summary.drained} logs, "
            f"{summary.replicas_compared} copies compared"
        )
    if summary.silent_partition:
        lines.append(
            f"longest time without an acknowledgement: {summary.longest_silence_s:.3f} s, from "
            f"{summary.silence_from_s:.3f} s, in {summary.silent_partition}"
        )
    if summary.may_be_lost:
        lines.append(f"unclean_election or commit_rule allowed records to be lost {summary.may_be_lost} times")
    return lines
