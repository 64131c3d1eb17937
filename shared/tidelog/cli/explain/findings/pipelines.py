"""Findings about streaming queries, as their commits to consumer groups show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.cli.explain.findings.finding import WARNING, Finding, waiting
from tidelog.cli.explain.streaming_queries import OverdueQuery


def examine_queries(overdue: Sequence[OverdueQuery]) -> Iterator[Finding]:
    """Yield a finding for each streaming query that has committed nothing although records wait for it."""
    for one in overdue:
        what = f"the streaming query that reads {one.topic} as group {one.group} has died, or hangs"
        step = (
            f"See the log of its driver on {one.host}, and start it again: it goes on at its checkpoint."
            f" 'tidelog groups describe {one.group}' shows where it is."
        )
        evidence = (
            f"its last commit is {one.silent_s:.0f} s old, before that it came every {one.every_s:.1f} s;"
            f" {waiting(one.behind)}, the oldest for more than {one.overdue_s:.0f} s"
        )
        yield Finding(WARNING, what, step, "streaming-query-dead", (one.group,), evidence)
