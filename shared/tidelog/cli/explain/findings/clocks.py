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
            what = f"the clock of {node} is {abs(ahead - middle):.0f} s {how} those of most others"
            yield Finding(
                WARNING,
                what,
                "Have its machine keep time (chrony): timestamps and retention go by it.",
                "clock-off",
                (node,),
            )
    if abs(middle) > FAR_OFF_S:
        how = "behind" if middle > 0 else "ahead of"
        what = f"the clock of this machine is {abs(middle):.0f} s {how} the cluster's"
        yield Finding(
            NOTE,
            what,
            "Records that are produced here carry its timestamps, unless they bring their own.",
            "client-clock-off",
        )
