"""Findings about clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from tidelog.cli.explain.findings.finding import NOTE, WARNING, Finding

FAR_OFF_S = 2.0
"""Seconds by which clocks may differ without a report: timestamps, tokens and retention depend on them."""


def examine_clocks(clocks: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for each clock that differs by more than ``FAR_OFF_S`` from the median, or from this
    machine's. ``clocks`` is process -> seconds by which its clock is ahead of this machine's."""
    if not clocks:
        return
    middle = median(clocks.values())
    for node, ahead in sorted(clocks.items()):
        if abs(ahead - middle) > FAR_OFF_S:
            how = "ahead of" if ahead > middle else "behind"
            what = f"the clock of {node} is {_span(abs(ahead - middle))} {how} those of most others"
            evidence = f"the clocks of {len(clocks)} processes were compared"
            yield Finding(
                WARNING,
                what,
                "Have its machine keep time (chrony): timestamps and retention go by it.",
                "clock-off",
                (node,),
                evidence,
            )
    if abs(middle) > FAR_OFF_S:
        how = "behind" if middle > 0 else "ahead of"
        what = f"the clock of this machine is {_span(abs(middle))} {how} the cluster's"
        yield Finding(
            NOTE,
            what,
            "Records that are produced here carry its timestamps, unless they bring their own.",
            "client-clock-off",
            evidence=f"the clocks of {len(clocks)} processes agree, and differ from this one",
        )


def _span(seconds: float) -> str:
    """Return a number of seconds as text, in seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
