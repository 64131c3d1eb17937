"""Values of single metrics, with their labels, from the pages of metrics that processes answered with."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def samples(page: str, name: str) -> list[tuple[Mapping[str, str], float]]:
    """Return (labels, value) of each sample of the metric ``name`` on a page in Prometheus' text format."""
    found: list[tuple[Mapping[str, str], float]] = []
    for line in page.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            found.append((dict(_LABEL.findall(labels)), float(value)))
    return found


def total(page: str, name: str, **labels: str) -> float:
    """Return the sum of the samples of a metric that have these labels; 0 if there are none."""
    return sum(value for has, value in samples(page, name) if labels.items() <= has.items())
