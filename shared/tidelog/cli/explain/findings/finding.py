"""A finding of ``tidelog doctor``.

A *problem* does not work now, a *warning* is a weakness at the next failure, a *note* may well be intended."""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM, WARNING, NOTE = "problem", "warning", "note"
MOST_NAMED = 5
"""Most partitions of one kind that a finding names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of ``tidelog doctor``: its level (``PROBLEM``, ``WARNING`` or ``NOTE``), what is wrong, and what
    the operator can do next."""

    level: str
    what: str
    next_step: str


def in_order(found: list[Finding]) -> list[Finding]:
    """Return the findings sorted by level: problems, then warnings, then notes. Findings of one level keep their
    order."""
    return sorted(found, key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.level))
