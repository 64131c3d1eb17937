"""A finding of ``tidelog doctor``.

A *problem* does not work now, a *warning* is a weakness at the next failure, a *note* may well be intended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.quantities import counted

PROBLEM, WARNING, NOTE = "problem", "warning", "note"
MOST_NAMED = 5
"""Most partitions of one kind that a finding names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of ``tidelog doctor``: its level (``PROBLEM``, ``WARNING`` or ``NOTE``), what is wrong, and what
    the operator can do next. A finding with ``because_of`` is a consequence; any other is a cause."""

    level: str
    what: str
    next_step: str
    cause: str
    """Stable code of what is wrong, for programs, such as ``last-stable-offset-held``."""
    about: tuple[str, ...] = ()
    """Names of what the finding concerns: servers, partitions as ``TOPIC/PARTITION``, groups; () for the whole
    cluster. A finding can be a consequence only of one with which it shares a name, or that concerns the whole
    cluster; if both name partitions, they must share one."""
    evidence: str = ""
    """Observed facts that show it, where ``what`` does not hold them."""
    because_of: str = ""
    """The ``cause`` of the finding of which this one is a consequence; "" for a cause."""


def waiting(records: int) -> str:
    """Return the sentence that so many records wait."""
    return f"{counted(records, 'record')} {'waits' if records == 1 else 'wait'}"


def concern_the_same(about: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether findings about these names can have to do with each other."""
    if not about or not others:
        return True
    parts, other_parts = ({name for name in names if "/" in name} for names in (about, others))
    if parts and other_parts:
        return bool(parts & other_parts)
    return bool({*about} & {*others})


def in_order(found: list[Finding]) -> list[Finding]:
    """Return the findings sorted by level: problems, then warnings, then notes. Findings of one level keep their
    order. The consequences of a cause follow it: of several findings with that code the first that has to do with
    them."""
    by_level = sorted(found, key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.level))
    roots = [one for one in by_level if not one.because_of]
    shown: list[Finding] = []

    def show(one: Finding) -> None:
        if one not in shown:
            shown.append(one)
            for other in by_level:
                if other.because_of == one.cause and concern_the_same(one.about, other.about):
                    show(other)

    for one in (*roots, *by_level):
        show(one)
    return shown
